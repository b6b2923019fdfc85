"""Runs the user's code and reports its result as JSON data and figures, never as objects."""

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
    """Channel that sends JSON messages to the agent, one per line."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        os.set_inheritable(descriptor, False)

    def send(self, message: dict[str, Any]) -> None:
        """Write one complete message."""
        data = json.dumps(message, allow_nan=False).encode() + b"\n"
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]


class ResultError(Exception):
    """Raised if the code's `result` is not JSON data or exceeds a limit."""


def run_code(request: dict[str, Any], channel: Channel) -> NoReturn:
    """Run the code of the request, report the outcome, and exit the process."""
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
            status = status or 1  # the reader exited, or the code closed the stream
    # Not sys.exit: threads and exit handlers of the user's code must not delay the exit.
    os._exit(status)


def _prepare_folder(request: dict[str, Any]) -> None:
    """Write the files of the working folder and make the host's packages importable."""
    # Replace the first entry, this package's folder; the standard library is already included.
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
    # The only place that runs untrusted code. This process has no rights left.
    exec(compile(code, CODE_FILE, "exec"), names)  # noqa: S102
    result = to_json(names.get("result"), "result", limits["result_depth"])
    size = len(json.dumps(result).encode())
    if size > limits["result_bytes"]:
        raise ResultError(
            f"result has {size} bytes of JSON, more than the limit of {limits['result_bytes']}; "
            "return a summary instead of the rows"
        )
    _save_open_figures()
    figures, rejected = _collect_figures(limits)
    return {"result": result, "figures": figures, "rejected": rejected}


def to_json(value: Any, location: str, depth: int) -> Any:
    """Return `value` as plain JSON data, or raise ResultError that names the location.

    Args:
        value: Plain data, or a number, array, or table of numpy or pandas.
        location: Location in the result, as a Python expression for the error.
        depth: Number of further levels allowed.
    """
    if depth < 0:
        raise ResultError(f"{location[:120]} is nested too deeply; return flatter data")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ResultError(
                f"{location} is {value}, which JSON cannot represent; use None instead"
            )
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
    """Convert values of numpy, pandas, and datetime to plain data through their methods."""
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
    """Save the matplotlib figures that the code drew but did not save."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or os.listdir(FIGURES):
        return
    for number in pyplot.get_fignums():
        pyplot.figure(number).savefig(os.path.join(FIGURES, f"figure-{number}.png"))


def _collect_figures(limits: dict[str, int]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Read the PNG files in `figures/`. Links and other files are rejected by name."""
    figures: list[dict[str, str]] = []
    rejected: list[dict[str, str]] = []
    remaining_bytes = limits["figure_bytes"]
    for name in sorted(os.listdir(FIGURES))[: 10 * limits["figures"]]:
        try:
            if len(figures) >= limits["figures"]:
                raise ResultError(f"the code saved more than {limits['figures']} figures")
            data = _read_plain_file(os.path.join(FIGURES, name), remaining_bytes)
        except (OSError, ResultError) as error:
            rejected.append({"name": name[:200], "reason": str(error)[:200]})
            continue
        remaining_bytes -= len(data)
        figures.append({"name": name[:200], "data": base64.b64encode(data).decode()})
    return figures, rejected


def _read_plain_file(path: str, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes without following links."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as handle:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ResultError("not a regular file")
        data = handle.read(limit + 1)
    if len(data) > limit:
        raise ResultError("the figures exceed their size limit")
    return data


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return the type, message, line, and traceback of an error, and the limit that it reached."""
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
