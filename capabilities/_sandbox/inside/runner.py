"""Runs the user's code and reports what came of it: typed data and figures, never objects."""

from __future__ import annotations

import base64
import errno
import gc
import json
import linecache
import os
import stat
import sys
import traceback
from typing import Any, NoReturn

CODE_FILE = "code.py"
FIGURES = "figures"
_MAX_TRACEBACK = 4_000


class Channel:
    """Sends one JSON message a line to the agent."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        os.set_inheritable(descriptor, False)

    def send(self, message: dict[str, Any]) -> None:
        """Write one message, whole."""
        data = json.dumps(message, allow_nan=False).encode() + b"\n"
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]


class ResultError(Exception):
    """What the code left in `result` cannot be handed back."""


def run_code(request: dict[str, Any], channel: Channel) -> NoReturn:
    """Run the request's code in this process, report, and end the process."""
    limits = request["limits"]
    try:
        _prepare_folder(request)
        done = _execute_code(request["code"], request["inputs"], limits)
        channel.send({"event": "done", **done})
        status = 0
    except BaseException as error:
        gc.collect()
        channel.send({"event": "failed", **describe_error(error)})
        status = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status or 1  # the reader has gone, or the code closed the stream
    # Not sys.exit: threads and exit handlers of the user's code must not hold the process up.
    os._exit(status)


def _prepare_folder(request: dict[str, Any]) -> None:
    """Lay out the own folder and let imports find the host's packages."""
    # The first entry is this package's own folder; the standard library's are already there.
    sys.path[:1] = []
    sys.path += request["packages"]
    os.mkdir(FIGURES)
    with open(CODE_FILE, "w", encoding="utf-8") as handle:
        handle.write(request["code"])
    with open("inputs.json", "w", encoding="utf-8") as handle:
        json.dump(request["inputs"], handle)
    sys.argv = [CODE_FILE]


def _execute_code(code: str, inputs: Any, limits: dict[str, int]) -> dict[str, Any]:
    """Run the code and collect `result` and the figures."""
    lines = code.splitlines(keepends=True)
    linecache.cache[CODE_FILE] = (len(code), None, lines, CODE_FILE)
    names: dict[str, Any] = {"__name__": "__main__", "__file__": CODE_FILE, "inputs": inputs}
    # The one place where code from outside is run: this process has nothing left to lose.
    exec(compile(code, CODE_FILE, "exec"), names)  # noqa: S102
    result = to_json(names.get("result"), "result", limits["result_depth"])
    size = len(json.dumps(result).encode())
    if size > limits["result_bytes"]:
        raise ResultError(
            f"result is {size} bytes of JSON, more than the {limits['result_bytes']} allowed; "
            "return a summary instead of the rows"
        )
    _save_open_figures()
    figures, rejected = _collect_figures(limits)
    return {"result": result, "figures": figures, "rejected": rejected}


def to_json(value: Any, location: str, depth: int) -> Any:
    """Return `value` as plain JSON data, or raise ResultError that names the offending place.

    Args:
        value: Plain data, or a number, array or table of numpy or pandas.
        location: The place, as a Python expression, for the error.
        depth: How many more levels may follow.
    """
    if depth < 0:
        raise ResultError(f"{location[:120]} is nested too deeply; return flatter data")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ResultError(f"{location} is {value}, which JSON cannot hold; use None instead")
        return float(value)
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ResultError(
                    f"{location} has the key {key!r:.80} of type {type(key).__name__}; use str(key)"
                )
        return {
            key: to_json(item, f"{location}[{key!r}]", depth - 1) for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [to_json(item, f"{location}[{i}]", depth - 1) for i, item in enumerate(value)]
    return _convert(value, location, depth)


def _convert(value: Any, location: str, depth: int) -> Any:
    """Convert what numpy, pandas and datetime give into plain data by the methods they offer."""
    kind = type(value).__name__
    if kind == "DataFrame":
        return to_json(value.to_dict(orient="records"), location, depth)
    if kind == "Series":
        return to_json({str(key): item for key, item in value.items()}, location, depth)
    for method in ("isoformat", "tolist"):
        if callable(getattr(value, method, None)):
            return to_json(getattr(value, method)(), location, depth - 1)
    raise ResultError(
        f"{location} is a {kind}, which is not JSON data; "
        "use None, bool, int, float, str, list or dict with str keys"
    )


def _save_open_figures() -> None:
    """Save matplotlib figures that the code drew but did not save itself."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or os.listdir(FIGURES):
        return
    for number in pyplot.get_fignums():
        pyplot.figure(number).savefig(os.path.join(FIGURES, f"figure-{number}.png"))


def _collect_figures(limits: dict[str, int]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Read the PNG files below `figures/`; links and everything else are named and left."""
    figures: list[dict[str, str]] = []
    rejected: list[dict[str, str]] = []
    left = limits["figure_bytes"]
    for name in sorted(os.listdir(FIGURES))[: 10 * limits["figures"]]:
        try:
            if len(figures) >= limits["figures"]:
                raise ResultError(f"only {limits['figures']} figures are kept")
            data = _read_plain_file(os.path.join(FIGURES, name), left)
        except (OSError, ResultError) as error:
            rejected.append({"name": name[:200], "reason": str(error)[:200]})
            continue
        left -= len(data)
        figures.append({"name": name[:200], "data": base64.b64encode(data).decode()})
    return figures, rejected


def _read_plain_file(path: str, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes without following a link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as handle:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ResultError("not a plain file")
        data = handle.read(limit + 1)
    if len(data) > limit:
        raise ResultError("over the size limit for figures")
    return data


def describe_error(error: BaseException) -> dict[str, Any]:
    """Say what went wrong, where in the user's code, and which limit it was, if it was one."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == CODE_FILE
    ]
    line = frames[-1].lineno if frames else None
    if isinstance(error, SyntaxError) and error.filename == CODE_FILE:
        line = error.lineno
    limit = None
    if isinstance(error, MemoryError):
        limit = "memory"
    elif isinstance(error, OSError) and error.errno in (errno.EFBIG, errno.ENOSPC, errno.EDQUOT):
        limit = "folder size"
    shown = "".join(traceback.format_list(frames[-10:]))
    shown += "".join(traceback.format_exception_only(type(error), error))
    return {
        "type": type(error).__name__,
        "message": str(error)[:1_000],
        "line": line,
        "traceback": shown[-_MAX_TRACEBACK:],
        "limit": limit,
    }
