"""Lifecycle of one sandbox process: start, supervision, termination, and outcome.

The request, the output, and the messages are unnamed files. No task needs to read pipes while the
code runs, and the kernel limits the size of the files.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any

from .checks import HostileOutputError, check_json, decode_output, parse_message, sanitize_png
from .layout import HostLayout, build_command, build_request
from .limits import CodeError, Figure, IsolationLevel, SandboxLimits, SandboxOutcome

_EXIT_TIMEOUT_SECONDS = 3.0
_POLL_SECONDS = 0.1
_MAX_MESSAGES = 8
_MAX_LAYERS_CHARS = 10_000
_MAX_LINES = 10_000_000


class InputTooLargeError(ValueError):
    """Raised if the code and its inputs together exceed the limit `input_bytes`."""


async def run_once(
    level: IsolationLevel,
    layout: HostLayout,
    limits: SandboxLimits,
    code: str,
    inputs: Any,
    required_layers: Sequence[str] = (),
) -> SandboxOutcome:
    """Run `code` once at an isolation level. Cancellation kills the whole process tree.

    Args:
        level: Isolation level.
        layout: Visible parts of the host.
        limits: Limits of the run.
        code: Python source.
        inputs: JSON data that the code reads from `inputs`.
        required_layers: Isolation layers without which the run is refused.

    Raises:
        InputTooLargeError: The code and its inputs exceed `limits.input_bytes`.
    """
    size = len(code) + len(await asyncio.to_thread(json.dumps, inputs))
    if size > limits.input_bytes:
        raise InputTooLargeError(
            f"the code and its inputs have {size} bytes, more than the limit of {limits.input_bytes}"
        )
    run = await asyncio.to_thread(_SandboxProcess, level, limits)
    try:
        message = await asyncio.to_thread(
            build_request,
            level,
            layout,
            limits,
            scaffold=run.scaffold,
            required_layers=required_layers,
            code=code,
            inputs=inputs,
        )
        try:
            await run.start(layout, message)
            await run.watch()
        except OSError as error:
            return SandboxOutcome(sandbox_error=f"the sandbox did not start: {error}", level=level)
        finally:
            await run.stop()
        return await asyncio.to_thread(run.outcome)
    finally:
        await asyncio.to_thread(run.close)


class _SandboxProcess:
    """Sandbox process for one run of code."""

    def __init__(self, level: IsolationLevel, limits: SandboxLimits) -> None:
        self.level = level
        self.limits = limits
        self.is_contained = level in ("bubblewrap", "namespaces")
        self.scaffold = tempfile.mkdtemp(prefix="capgraph-sandbox-")
        self.stdin, self.stdout, self.stderr, self.messages = (
            tempfile.TemporaryFile()  # noqa: SIM115 - close() does
            for _ in range(4)
        )
        self.process: asyncio.subprocess.Process | None = None
        self.limit: str | None = None
        self.started = time.monotonic()
        self.seconds = 0.0

    async def start(self, layout: HostLayout, message: dict[str, Any]) -> None:
        """Write the request and start the process."""
        sink = self.messages.fileno()
        arguments = await asyncio.to_thread(build_command, self.level, layout, self.limits, sink)
        await asyncio.to_thread(self._write, message)
        self.process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=self.stdin,
            stdout=self.stdout,
            stderr=self.stderr,
            pass_fds=(sink,),
            env={},
            cwd="/",
            start_new_session=True,
        )

    def _write(self, message: dict[str, Any]) -> None:
        self.stdin.write(json.dumps(message).encode())
        self.stdin.seek(0)

    async def watch(self) -> None:
        """Wait until the process exits or reaches a limit that the kernel does not enforce."""
        assert self.process is not None  # start() was called before
        ended = asyncio.create_task(self.process.wait())
        try:
            async with asyncio.timeout(self.limits.wall_seconds):
                while not ended.done() and self.limit is None:
                    await asyncio.wait({ended}, timeout=_POLL_SECONDS)
                    self.limit = await asyncio.to_thread(self._exceeded_limit)
        except TimeoutError:
            self.limit = "wall time"
        finally:
            ended.cancel()

    def _exceeded_limit(self) -> str | None:
        """Return the name of the limit that the run exceeds, or None."""
        if (
            max(_file_size(self.stdout), _file_size(self.stderr))
            > self.limits.max_output_file_bytes
        ):
            return "output"
        if _file_size(self.messages) > self.limits.max_outcome_bytes:
            return "result size"
        # Without containment the working folder is on disk, and the kernel does not limit it.
        full = not self.is_contained and _folder_size(self.scaffold) > self.limits.folder_bytes
        return "folder size" if full else None

    async def stop(self) -> None:
        """Kill the process and all its descendants."""
        process = self.process
        if process is None:
            return
        if not self.is_contained and process.returncode is None:
            # Let the supervisor kill the processes of the code before it is killed itself.
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _EXIT_TIMEOUT_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        self.seconds = time.monotonic() - self.started
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _EXIT_TIMEOUT_SECONDS)

    def close(self) -> None:
        """Delete all files of the run."""
        for file in (self.stdin, self.stdout, self.stderr, self.messages):
            file.close()
        shutil.rmtree(self.scaffold, ignore_errors=True)

    def outcome(self) -> SandboxOutcome:
        """Return the run's outcome, built from the process's untrusted messages."""
        max_bytes = self.limits.output_bytes
        outcome = SandboxOutcome(
            stdout=decode_output(
                _read_head(self.stdout, max_bytes), max_bytes, _file_size(self.stdout)
            ),
            stderr=decode_output(
                _read_head(self.stderr, max_bytes), max_bytes, _file_size(self.stderr)
            ),
            seconds=round(self.seconds, 3),
            level=self.level,
        )
        try:
            messages = self._messages()
        except HostileOutputError as error:
            messages = []
            if self.limit is None:
                outcome.error = CodeError(type="ResultError", message=f"the result is {error}")
                return outcome
        by_event = {str(message.get("event")): message for message in messages}
        if self.limit is not None:
            outcome.limit = self.limit
        elif "ready" not in by_event:
            outcome.sandbox_error = self._startup_error(by_event.get("broken"), outcome.stderr)
        elif "done" in by_event:
            self._accept_result(by_event["done"], outcome)
        elif "failed" in by_event:
            _accept_failure(by_event["failed"], outcome)
        else:
            self._classify_exit(outcome)
        layers = by_event.get("ready", {}).get("layers")
        if isinstance(layers, dict) and len(str(layers)) <= _MAX_LAYERS_CHARS:
            outcome.layers = layers
        return outcome

    def _messages(self) -> list[dict[str, Any]]:
        """Return the messages of the process.

        Forged messages that are expensive to parse are refused.

        Raises:
            HostileOutputError: There are too many messages or values.
        """
        data = _read_head(self.messages, self.limits.max_outcome_bytes)
        if data.count(b"\n") > _MAX_MESSAGES:
            raise HostileOutputError("the output has too many messages")
        # A value of a few bytes can take a hundred times as much memory when parsed.
        if sum(map(data.count, (b",", b"[", b"{"))) > self.limits.result_bytes:
            raise HostileOutputError("the output has too many values")
        return [parse_message(line) for line in data.split(b"\n") if line]

    def _startup_error(self, message: dict[str, Any] | None, stderr: str) -> str:
        """Return the reason why the isolation could not be set up."""
        if message is not None:
            stage, cause = message.get("stage"), message.get("message")
            return f"{_safe_text(stage, 100)}: {_safe_text(cause, 1000)}"
        code = self.process.returncode if self.process else None
        return (
            f"the sandbox process exited with status {code} before it was ready:"
            f" {stderr.strip()[-500:]}"
        )

    def _accept_result(self, message: dict[str, Any], outcome: SandboxOutcome) -> None:
        """Add the result and the figures that pass validation to the outcome."""
        try:
            check_json(message.get("result"), self.limits.result_depth)
            if len(json.dumps(message.get("result"))) > self.limits.result_bytes:
                raise HostileOutputError("the result exceeds its size limit")
        except HostileOutputError as error:
            outcome.error = CodeError(type="ResultError", message=str(error))
            return
        outcome.result = message.get("result")
        for item in _dict_items(message.get("rejected"))[: self.limits.figures]:
            outcome.rejected_figures[safe_file_name(item.get("name"))] = _safe_text(
                item.get("reason"), 200
            )
        remaining_bytes = self.limits.figure_bytes
        used_names: set[str] = set()
        for item in _dict_items(message.get("figures"))[: self.limits.figures]:
            name = safe_file_name(item.get("name"), used_names)
            try:
                data = base64.b64decode(str(item.get("data")), validate=True)
                remaining_bytes -= len(data)
                if remaining_bytes < 0:
                    raise HostileOutputError("the figures exceed their size limit")
                clean, width, height = sanitize_png(data)
            except ValueError as error:
                outcome.rejected_figures[name] = str(error)
                continue
            outcome.figures.append(Figure(name=name, width=width, height=height, data=clean))

    def _classify_exit(self, outcome: SandboxOutcome) -> None:
        """Record in the outcome which limit or signal ended a process that sent no final message."""
        code = self.process.returncode if self.process else None
        number = -code if code is not None and code < 0 else (code or 0) - 128
        if number == signal.SIGXCPU:
            outcome.limit = "processor time"
        elif number == signal.SIGKILL:
            # Killed by the kernel: out of memory, or past the hard limit on CPU time.
            spent = self.seconds >= self.limits.cpu_seconds
            outcome.limit = "processor time" if spent else "memory"
        elif number > 0:
            name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
            outcome.error = CodeError(type="Crash", message=f"the code was killed by {name}")
        else:
            outcome.error = CodeError(
                type="Exit", message=f"the code exited its process with status {code}"
            )


def _accept_failure(message: dict[str, Any], outcome: SandboxOutcome) -> None:
    """Add the code's exception, or the limit that it reached, to the outcome."""
    line = message.get("line")
    outcome.error = CodeError(
        type=_safe_text(message.get("type"), 100),
        message=_safe_text(message.get("message"), 1000),
        line=line if isinstance(line, int) and 0 < line < _MAX_LINES else None,
        traceback=_safe_text(message.get("traceback"), 4000),
    )
    if message.get("limit") in ("memory", "folder size"):
        outcome.limit, outcome.error = message["limit"], None


def _dict_items(value: Any) -> list[dict[str, Any]]:
    """Return the dictionaries of a list and drop everything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _safe_text(value: Any, max_bytes: int) -> str:
    """Return a value as short text without control characters."""
    data = str(value).encode("utf-8", errors="replace")
    return decode_output(data[-max_bytes:], max_bytes, 0)


def safe_file_name(requested_name: Any, used_names: set[str] | None = None) -> str:
    """Return a safe file name for a figure that is not among `used_names`.

    Example:
        >>> safe_file_name("../../etc/pass wd")
        'etc_pass_wd.png'
    """
    stem = (
        re.sub(r"[^A-Za-z0-9._-]+", "_", str(requested_name)).removesuffix(".png").strip("._-")[:80]
    )
    stem = stem or "figure"
    name, number = f"{stem}.png", 1
    while used_names is not None and name.lower() in used_names:
        number += 1
        name = f"{stem}-{number}.png"
    if used_names is not None:
        used_names.add(name.lower())
    return name


def _file_size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _read_head(file: IO[bytes], limit: int) -> bytes:
    """Return the start of a file, regardless of its position."""
    return os.pread(file.fileno(), limit, 0)


def _folder_size(folder: str) -> int:
    """Return a folder's disk usage in bytes: at least one block per entry, without following links."""
    total = 0
    for parent, _, names in os.walk(folder):
        total += 4096
        for name in names:
            with contextlib.suppress(OSError):
                total += max(4096, os.lstat(os.path.join(parent, name)).st_size)
    return total
