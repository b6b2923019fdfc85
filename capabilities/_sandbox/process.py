"""Starts one sandbox process, feeds and watches it, ends it, and reads what it sent back."""

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
from dataclasses import dataclass, field
from typing import Any

from .checks import HostileOutputError, check_json, clean_png, parse_message, plain_text
from .layout import Layout, command, request
from .limits import CodeError, Figure, Level, SandboxLimits, SandboxOutcome

_SETTLE_SECONDS = 3.0


class InputTooLargeError(ValueError):
    """Code and inputs together are more than `input_bytes`."""


@dataclass
class _Capture:
    """One stream of the process: its beginning is kept, the rest only counted."""

    keep: int
    kept: bytearray = field(default_factory=bytearray)
    total: int = 0

    async def drain(self, stream: asyncio.StreamReader, most: int, full: asyncio.Event) -> None:
        """Read to the end, setting `full` when more than `most` bytes came.

        Reading goes on after that: asyncio reports the end of a process only with its pipes'.
        """
        while data := await stream.read(1 << 16):
            self.kept += data[: max(0, self.keep - len(self.kept))]
            self.total += len(data)
            if self.total > most:
                full.set()


async def run_once(
    level: Level,
    layout: Layout,
    limits: SandboxLimits,
    code: str,
    inputs: Any,
    demanded: Sequence[str] = (),
) -> SandboxOutcome:
    """Run `code` once at this isolation level. Cancelling ends the whole process tree.

    Args:
        level: How to wall the process off.
        layout: What it may see of the host.
        limits: What it may use.
        code: Python source text.
        inputs: JSON data the code finds as `inputs`.
        demanded: Walls that must stand; the run is refused when one cannot be built.

    Raises:
        InputTooLargeError: The code and its inputs exceed `limits.input_bytes`.
    """
    scaffold = await asyncio.to_thread(tempfile.mkdtemp, prefix="capgraph-sandbox-")
    try:
        payload = await asyncio.to_thread(
            _payload, level, layout, limits, scaffold, demanded, code, inputs
        )
        run = _Run(level, limits, scaffold)
        try:
            await run.start(layout)
            await run.watch(payload)
        except OSError as error:
            return SandboxOutcome(broken=f"the sandbox did not start: {error}", level=level)
        finally:
            await run.end()
        return await asyncio.to_thread(run.outcome)
    finally:
        await asyncio.to_thread(shutil.rmtree, scaffold, ignore_errors=True)


def _payload(
    level: Level,
    layout: Layout,
    limits: SandboxLimits,
    scaffold: str,
    demanded: Sequence[str],
    code: str,
    inputs: Any,
) -> bytes:
    """Build the request, refusing one that is too large."""
    size = len(code) + len(json.dumps(inputs))
    if size > limits.input_bytes:
        raise InputTooLargeError(f"{size} bytes, the limit is {limits.input_bytes}")
    message = request(
        level, layout, limits, scaffold=scaffold, demanded=demanded, code=code, inputs=inputs
    )
    return json.dumps(message).encode()


class _Run:
    """One sandbox process from start to end."""

    def __init__(self, level: Level, limits: SandboxLimits, scaffold: str) -> None:
        self.level = level
        self.limits = limits
        self.scaffold = scaffold
        self.process: asyncio.subprocess.Process | None = None
        self.stdout = _Capture(limits.output_bytes)
        self.stderr = _Capture(limits.output_bytes)
        self.messages = _Capture(limits.outcome_bytes)
        self.readers: list[asyncio.Task[None]] = []
        self.transport: asyncio.ReadTransport | None = None
        self.flood, self.overflow = asyncio.Event(), asyncio.Event()
        self.limit: str | None = None
        self.started = time.monotonic()
        self.seconds = 0.0

    async def start(self, layout: Layout) -> None:
        """Start the process and begin to read everything it sends."""
        source, sink = os.pipe()
        try:
            arguments = await asyncio.to_thread(command, self.level, layout, self.limits, sink)
            self.process = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(sink,),
                env={},
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            os.close(source)
            raise
        finally:
            os.close(sink)
        outcome = asyncio.StreamReader()
        self.transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(outcome), os.fdopen(source, "rb", buffering=0)
        )
        assert self.process.stdout is not None  # both are pipes
        assert self.process.stderr is not None
        flood, most = self.flood, self.limits.flood_bytes
        self.readers = [
            asyncio.create_task(self.stdout.drain(self.process.stdout, most, flood)),
            asyncio.create_task(self.stderr.drain(self.process.stderr, most, flood)),
            asyncio.create_task(
                self.messages.drain(outcome, self.limits.outcome_bytes, self.overflow)
            ),
        ]

    async def watch(self, payload: bytes) -> None:
        """Hand over the request and wait until the process ends or reaches a limit."""
        assert self.process is not None  # start() comes first
        watched = {
            asyncio.create_task(self._feed(payload)): None,
            asyncio.create_task(self.process.wait()): None,
            asyncio.create_task(self.flood.wait()): "output",
            asyncio.create_task(self.overflow.wait()): "result size",
        }
        if self.level not in ("bubblewrap", "namespaces"):
            watched[asyncio.create_task(self._folder_overflow())] = "folder size"
        _feed, ended, *_ = watched
        pending: set[asyncio.Task[Any]] = set(watched)
        remaining = self.limits.wall_seconds
        try:
            while not ended.done() and self.limit is None:
                done, pending = await asyncio.wait(
                    pending, timeout=remaining, return_when=asyncio.FIRST_COMPLETED
                )
                remaining = self.started + self.limits.wall_seconds - time.monotonic()
                if not done:
                    self.limit = "wall time"
                elif not ended.done():
                    self.limit = next((watched[task] for task in done if watched[task]), None)
        finally:
            for task in watched:
                task.cancel()
            await asyncio.gather(*watched, return_exceptions=True)

    async def _feed(self, payload: bytes) -> None:
        """Write the request; a process that ended early is reported by its exit, not here."""
        assert self.process is not None  # start() comes first
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.process.stdin.write(payload)
            await self.process.stdin.drain()
            self.process.stdin.close()
            await self.process.stdin.wait_closed()

    async def _folder_overflow(self) -> None:
        """Return once the own folder holds too much; only needed where it is on the disk."""
        while await asyncio.to_thread(_folder_size, self.scaffold) <= self.limits.folder_bytes:  # noqa: ASYNC110
            await asyncio.sleep(0.2)

    async def end(self) -> None:
        """End the process tree, whatever state it is in, and collect what it still said."""
        process = self.process
        if process is None:
            return
        if self.level not in ("bubblewrap", "namespaces") and process.returncode is None:
            # The supervisor ends what the code may have started; only then is it ended itself.
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _SETTLE_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        self.seconds = time.monotonic() - self.started
        # The streams end when the last process holding them has gone.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _SETTLE_SECONDS)
        if self.readers:
            await asyncio.wait(self.readers, timeout=_SETTLE_SECONDS)
        for task in self.readers:
            task.cancel()
        await asyncio.gather(*self.readers, return_exceptions=True)
        if self.transport is not None:
            self.transport.close()
        if process.stdin is not None:
            process.stdin.close()
        # asyncio closes the remaining pipes only through the process transport.
        process._transport.close()  # type: ignore[attr-defined]

    def outcome(self) -> SandboxOutcome:
        """Judge what came back. Nothing of it is trusted, least of all its own account."""
        keep = self.limits.output_bytes
        outcome = SandboxOutcome(
            stdout=plain_text(bytes(self.stdout.kept), keep, self.stdout.total),
            stderr=plain_text(bytes(self.stderr.kept), keep, self.stderr.total),
            seconds=round(self.seconds, 3),
            level=self.level,
        )
        try:
            messages = [parse_message(line) for line in bytes(self.messages.kept).splitlines()]
        except HostileOutputError as error:
            messages = []
            if self.limit is None:
                outcome.error = CodeError(type="ResultError", message=f"the result is {error}")
                return outcome
        by_event = {str(message.get("event")): message for message in messages}
        if self.limit is not None:
            outcome.limit = self.limit
        elif "ready" not in by_event:
            outcome.broken = self._why_broken(by_event.get("broken"), outcome.stderr)
        elif "done" in by_event:
            self._take_result(by_event["done"], outcome)
        elif "failed" in by_event:
            _take_failure(by_event["failed"], outcome)
        else:
            self._judge_exit(outcome)
        layers = by_event.get("ready", {}).get("layers")
        outcome.layers = layers if isinstance(layers, dict) else {}
        return outcome

    def _why_broken(self, message: dict[str, Any] | None, stderr: str) -> str:
        """Say why the walls could not be built."""
        if message is not None:
            return f"{message.get('stage')}: {message.get('message')}"
        code = self.process.returncode if self.process else None
        return f"it ended with status {code} before it was ready: {stderr.strip()[-500:]}"

    def _take_result(self, message: dict[str, Any], outcome: SandboxOutcome) -> None:
        """Check result and figures and put what passes into the outcome."""
        try:
            check_json(message.get("result"), self.limits.result_depth)
            if len(json.dumps(message.get("result"))) > self.limits.result_bytes:
                raise HostileOutputError("result is larger than allowed")
        except HostileOutputError as error:
            outcome.error = CodeError(type="ResultError", message=str(error))
            return
        outcome.result = message.get("result")
        for item in _records(message.get("rejected")):
            outcome.rejected_figures[file_name(item.get("name"))] = _text(item.get("reason"), 200)
        left = self.limits.figure_bytes
        taken: set[str] = set()
        for item in _records(message.get("figures"))[: self.limits.figures]:
            name = file_name(item.get("name"), taken)
            try:
                data = base64.b64decode(str(item.get("data")), validate=True)
                left -= len(data)
                if left < 0:
                    raise HostileOutputError("over the size limit for figures")
                clean, width, height = clean_png(data)
            except ValueError as error:
                outcome.rejected_figures[name] = str(error)
                continue
            outcome.figures.append(Figure(name=name, width=width, height=height, data=clean))

    def _judge_exit(self, outcome: SandboxOutcome) -> None:
        """Tell a limit from a crash when the process ended without a word."""
        code = self.process.returncode if self.process else None
        number = -code if code is not None and code < 0 else (code or 0) - 128
        if number == signal.SIGXCPU:
            outcome.limit = "processor time"
        elif number == signal.SIGKILL:
            # Unasked for: the kernel, out of memory or past the hard limit on processor time.
            spent = self.seconds >= self.limits.cpu_seconds
            outcome.limit = "processor time" if spent else "memory"
        elif number > 0:
            name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
            outcome.error = CodeError(type="Crash", message=f"the code was ended by {name}")
        else:
            outcome.error = CodeError(
                type="Exit", message=f"the code ended its process with status {code}"
            )


def _take_failure(message: dict[str, Any], outcome: SandboxOutcome) -> None:
    """Put the code's exception, or the limit it ran into, into the outcome."""
    line = message.get("line")
    outcome.error = CodeError(
        type=_text(message.get("type"), 100),
        message=_text(message.get("message"), 1000),
        line=line if isinstance(line, int) else None,
        traceback=_text(message.get("traceback"), 4000),
    )
    if message.get("limit") in ("memory", "folder size"):
        outcome.limit, outcome.error = message["limit"], None


def _records(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list, dropping everything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: Any, limit: int) -> str:
    """Return `value` as short harmless text."""
    data = str(value).encode("utf-8", errors="replace")
    return plain_text(data[-limit:], limit, 0)


def file_name(value: Any, taken: set[str] | None = None) -> str:
    """Turn what the code calls a figure into a plain file name not in `taken`.

    Example:
        >>> file_name("../../etc/pass wd")
        'etc_pass_wd.png'
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", str(value)).removesuffix(".png").strip("._-")[:80]
    stem = stem or "figure"
    name, number = f"{stem}.png", 1
    while taken is not None and name.lower() in taken:
        number += 1
        name = f"{stem}-{number}.png"
    if taken is not None:
        taken.add(name.lower())
    return name


def _folder_size(folder: str) -> int:
    """Add up the space below `folder`, without following links, counting each entry as a block."""
    total = 0
    for parent, _, names in os.walk(folder):
        total += 4096
        for name in names:
            with contextlib.suppress(OSError):
                total += max(4096, os.lstat(os.path.join(parent, name)).st_size)
    return total
