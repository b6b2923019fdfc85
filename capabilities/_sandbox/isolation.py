"""Selection of the strongest isolation on this host. A probe tries to escape from each level."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from .layout import WORK_FOLDER, HostLayout, build_environment, find_layout
from .limits import ISOLATION_LEVELS, MIB, IsolationLevel, SandboxLimits, SandboxOutcome
from .process import run_once

PROTECTIONS = {
    "files": "files of the host cannot be read or written",
    "network": "no network access, not even to this machine",
    "other_processes": "other processes cannot be seen or signaled",
    "single_process": "no process can be started, so none can outlive the run",
    "threads": "the number of threads is limited",
    "memory": "memory is limited",
    "environment": "the agent's environment is not visible",
    "own_folder": "the size of the working folder is limited",
}

# Runs inside the sandbox and attempts what each protection must prevent.
_ESCAPE_PROBE = """
import os, socket, threading, time

def fails(attempt):
    try:
        attempt()
    except (OSError, MemoryError, RuntimeError):
        return True
    return False

def connect():
    socket.create_connection(("127.0.0.1", inputs["port"]), timeout=1).close()

def fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)

def threads():
    stop = threading.Event()
    threading.stack_size(1 << 16)  # so that the memory limit is not reached first
    try:
        for _ in range(inputs["threads"] + 8):
            threading.Thread(target=stop.wait, daemon=True).start()
    finally:
        stop.set()

def fill():
    for number in range(3):
        with open(f"fill{number}", "wb") as handle:
            handle.write(bytes(inputs["folder_bytes"] // 2))
    time.sleep(3)

canary = inputs["canary"]
agent = inputs["agent"]
result = {
    "files": fails(lambda: open(canary).read()) and fails(lambda: open(canary + ".new", "w"))
        and fails(lambda: os.listdir(os.path.dirname(canary))),
    "network": fails(connect),
    "other_processes": fails(lambda: os.kill(agent, 0))
        and fails(lambda: os.listdir(f"/proc/{agent}/fd"))
        and fails(lambda: open(f"/proc/{agent}/environ", "rb").read()),
    "single_process": fails(fork),
    "threads": fails(threads),
    "memory": fails(lambda: bytearray(inputs["memory_bytes"])),
    "environment": sorted(os.environ) == inputs["environment"],
}
"""
_DISK_PROBE = _ESCAPE_PROBE.split("canary = ", maxsplit=1)[0] + "result = fails(fill)\n"


class IsolationReport(BaseModel):
    """Report of a probe: the protections that an isolation level provides on this host.

    Example:
        >>> report = IsolationReport(
        ...     level="limits", protections={"memory": True, "network": False}
        ... )
        >>> report.is_strong, report.missing_protections[0]
        (False, 'files')
    """

    level: IsolationLevel | None = None
    protections: dict[str, bool] = {}
    layers: dict[str, Any] = {}
    rejected_levels: dict[str, str] = {}

    @property
    def missing_protections(self) -> list[str]:
        """Names of the protections that this host does not provide.

        `PROTECTIONS` describes each of them.
        """
        return [name for name in PROTECTIONS if not self.protections.get(name)]

    @property
    def is_strong(self) -> bool:
        """True if the host provides all protections."""
        return self.level is not None and not self.missing_protections

    def summary(self) -> str:
        """Return the isolation level, its missing protections, and the rejected levels as text."""
        lines = [f"Isolation level: {self.level or 'none available on this host'}."]
        if self.missing_protections and self.level is not None:
            lines.append(
                "Missing: "
                + "; ".join(PROTECTIONS[name] for name in self.missing_protections)
                + "."
            )
        lines += [f"Not used: {level}: {reason}." for level, reason in self.rejected_levels.items()]
        return " ".join(lines)


class SandboxSettings(BaseModel):
    """Settings of the sandbox that runs Python code.

    Example:
        >>> SandboxSettings(limits={"wall_seconds": 10}).limits.wall_seconds
        10.0
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    isolation: IsolationLevel | Literal["auto"] = Field(
        "auto", description="Isolation level; auto selects the strongest."
    )
    allow_weak_isolation: bool = Field(False, description="Run without some protections.")
    readable: tuple[str, ...] = Field((), description="Additional read-only paths.")
    limits: SandboxLimits = SandboxLimits()


class Sandbox:
    """Sandbox that runs code at the strongest isolation level of this host, which it probes once.

    Args:
        settings: Settings of the sandbox.
    """

    def __init__(self, settings: SandboxSettings) -> None:
        self.settings = settings
        self._report: IsolationReport | None = None
        self._layout: HostLayout | None = None

    async def report(self) -> IsolationReport:
        """Return this host's isolation report.

        The first call probes the host and takes about a second.
        """
        if self._report is None:
            layout = await self._find_layout()
            self._report = await _probe_host(self.settings, layout)
        return self._report

    async def run(
        self, code: str, inputs: Any = None, limits: SandboxLimits | None = None
    ) -> SandboxOutcome:
        """Run code in the sandbox, or refuse to run it if the host does not isolate it.

        Args:
            code: Python source that assigns its answer to the variable `result`.
            inputs: JSON data that the code reads from the variable `inputs`.
            limits: Limits of this run. Defaults to the limits in the settings.
        """
        report = await self.report()
        if report.level is None or not (report.is_strong or self.settings.allow_weak_isolation):
            return SandboxOutcome(sandbox_error=report.summary(), level=report.level)
        demanded = [name for name, built in report.layers.items() if built]
        layout = await self._find_layout()
        chosen = limits or self.settings.limits
        return await run_once(report.level, layout, chosen, code, inputs, demanded)

    async def _find_layout(self) -> HostLayout:
        if self._layout is None:
            self._layout = await asyncio.to_thread(find_layout, self.settings.readable)
        return self._layout


@functools.lru_cache(maxsize=8)
def sandbox_for(settings: SandboxSettings) -> Sandbox:
    """Return the sandbox for these settings. Equal settings share one sandbox and its probe."""
    return Sandbox(settings)


async def _probe_host(settings: SandboxSettings, layout: HostLayout) -> IsolationReport:
    """Probe the allowed isolation levels, strongest first.

    Return the first one without missing protections, or else the best one.
    """
    if sys.platform != "linux":
        reason = f"needs Linux, this is {sys.platform}"
        return IsolationReport(rejected_levels=dict.fromkeys(ISOLATION_LEVELS, reason))
    levels = ISOLATION_LEVELS if settings.isolation == "auto" else (settings.isolation,)
    reports: list[IsolationReport] = []
    rejected: dict[str, str] = {}
    for level in levels:
        report = await _probe_level(level, layout)
        if report.is_strong:
            return report.model_copy(update={"tried": rejected})
        if report.level is None:
            rejected[level] = report.rejected_levels[level]
        else:
            rejected[level] = f"without {', '.join(report.missing_protections)}"
            reports.append(report)
    if not reports:
        return IsolationReport(rejected_levels=rejected)
    best = min(reports, key=lambda report: len(report.missing_protections))
    rejected.pop(str(best.level))
    return best.model_copy(update={"tried": rejected})


async def _probe_level(level: IsolationLevel, layout: HostLayout) -> IsolationReport:
    """Run code that tries to escape, and report which attempts the isolation level prevents."""
    limits = SandboxLimits(
        wall_seconds=10, cpu_seconds=5, memory_bytes=512 * MIB, threads=8, folder_bytes=2 * MIB
    )
    folder = await asyncio.to_thread(_create_canary_folder)
    connections: list[int] = []

    def close_connection(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        writer.close()

    server = await asyncio.start_server(close_connection, "127.0.0.1", 0)
    try:
        inputs = {
            "canary": str(folder / "canary"),
            "agent": os.getpid(),
            "port": server.sockets[0].getsockname()[1],
            "environment": sorted(build_environment(WORK_FOLDER)),
            **limits.model_dump(include={"threads", "memory_bytes", "folder_bytes"}),
        }
        outcome = await run_once(level, layout, limits, _ESCAPE_PROBE, inputs)
        filled = await run_once(level, layout, limits, _DISK_PROBE, inputs)
    finally:
        server.close()
        await server.wait_closed()
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    if not outcome.succeeded or not isinstance(outcome.result, dict):
        reason = outcome.sandbox_error or outcome.limit or (outcome.error and outcome.error.message)
        return IsolationReport(rejected_levels={level: str(reason)})
    walls = {name: outcome.result.get(name) is True for name in PROTECTIONS}
    walls["network"] = walls["network"] and not connections
    walls["own_folder"] = filled.result is True or filled.limit == "folder size"
    return IsolationReport(level=level, protections=walls, layers=outcome.layers)


def _create_canary_folder() -> Path:
    """Create a folder with a world-readable file that only the sandbox can hide."""
    folder = Path(tempfile.mkdtemp(prefix="capgraph-probe-"))
    folder.chmod(0o755)
    (folder / "canary").write_text("canary", encoding="ascii")
    (folder / "canary").chmod(0o644)
    return folder
