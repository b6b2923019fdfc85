"""``capgraph dev`` and the terminal output of ``capgraph serve``, in processes of their own."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.screens import draw_screen

pytestmark = [pytest.mark.may_block, pytest.mark.timeout(180)]

CAPABILITY = '''
from capgraph import capability_node


@capability_node(examples=["how full is the tank?"])
def tank_level() -> float:
    """{description}"""
    return 2.5
'''

WITHOUT_EXAMPLES = """
from capgraph import BaseCapability, capability_node


@capability_node
class ReadTheLevel(BaseCapability):
    name = "read_the_level_of_the_tank"
    description = "Read the level."

    async def execute(self) -> float:
        return 2.5
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "station.py").write_text(CAPABILITY.format(description="Read the level."))
    (tmp_path / "agent.yml").write_text("name: station\nmodules: [station]\n")
    return tmp_path


def set_columns(terminal: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))


def start(project: Path, *arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(project), *sys.path])}
    return subprocess.Popen(
        [sys.executable, "-m", "capgraph", *arguments, "--config", "agent.yml", "--db", "memory"],
        cwd=project,
        env=environment,
        **streams,
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    finally:
        process.kill()


@pytest.fixture
def development(project: Path) -> Iterator[subprocess.Popen[bytes]]:
    arguments = ("dev", "--no-open", "--port", "0")
    process = start(project, *arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    yield process
    stop(process)
    assert process.stdout is not None
    process.stdout.close()


def test_a_changed_file_restarts_the_server_on_the_same_port(
    project: Path, development: subprocess.Popen[bytes]
) -> None:
    assert development.stdout is not None
    address = development.stdout.readline().decode().split()[1]
    assert httpx.get(f"{address}healthz").status_code == 200
    # The watcher needs a moment after the start; a repeated change is noticed at some point.
    line = b""
    for attempt in range(20):
        (project / "station.py").write_text(CAPABILITY.format(description=f"Attempt {attempt}."))
        if select.select([development.stdout], [], [], 3)[0]:
            line = development.stdout.readline()
            break
    assert line.startswith(b"Changed: station.py")
    assert development.stdout.readline().decode().split()[1] == address
    assert httpx.get(f"{address}healthz").status_code == 200


def test_serve_lists_what_it_serves_on_a_terminal(project: Path) -> None:
    (project / "station.py").write_text(WITHOUT_EXAMPLES)
    reader, terminal = pty.openpty()
    set_columns(terminal, 80)
    process = start(
        project,
        "serve",
        "--no-open",
        "--port",
        "0",
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    shown = ""
    try:
        deadline = time.monotonic() + 120
        while "Ctrl-C" not in shown and time.monotonic() < deadline:
            shown += os.read(reader, 65536).decode()
        address = next(line for line in shown.splitlines() if line.startswith("serving")).split()[1]
        assert f"console   {address}" in shown
        assert f"JSON API  {address}api" in shown
        assert "{" not in shown
        lines, long_lines = draw_screen(shown, 80)
        assert any("read_the_level" in line for line in lines), "a warning without examples"
        assert long_lines == []
        assert any(line.startswith(f"{address}login?link=") for line in lines)
    finally:
        stop(process)
        os.close(reader)


def test_help_fits_eighty_columns_and_every_command_has_a_group() -> None:
    command = [sys.executable, "-m", "capgraph", "--help"]
    environment = {**os.environ, "COLUMNS": "80"}
    shown = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "..." not in shown.split("Run:")[1]
    headings = [line for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    assert headings == ["Options:", "Run:", "Build:", "Inspect:", "Operate:"]
