"""Runs ``llama-server`` on a free port of the loopback interface, and always ends it."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.local_model.fetch import model_file, server_file

OPTIONS = (
    *("-c", "16384"),
    *("-np", "2"),
    # Threads of llama.cpp spin: more of them than idle cores make it ten times slower.
    *("-t", "1", "-tb", "1", "--poll", "0"),
    *("--temp", "0"),
    "--jinja",
)
_START_SECONDS = 180.0
_STOP_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def running_server(command: Sequence[str] | None = None) -> Iterator[str]:
    """Run a server for the length of a block, and yield the URL of its OpenAI endpoints.

    Args:
        command: Program and options, to which ``--host`` and ``--port`` are added; the fetched server
            with the fetched model by default.

    Raises:
        RuntimeError: The server ended or was not healthy in time. The message has its last output.
    """
    if command is None:
        command = [str(server_file()), "-m", str(model_file()), *OPTIONS]
    port = _free_port()
    address = ["--host", "127.0.0.1", "--port", str(port)]
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+b") as log:
        process = subprocess.Popen(
            [*command, *address], stdout=log, stderr=log, preexec_fn=_end_with_parent
        )
        try:
            _wait_until_healthy(process, port, Path(log.name))
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            _stop(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    """Have the kernel end the server where this process is killed and cannot do so itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"llama-server ended with {process.returncode}:\n{_tail(log)}")
        if _is_healthy(port):
            return
        time.sleep(0.2)
    raise RuntimeError(f"llama-server is not healthy after {_START_SECONDS:g} s:\n{_tail(log)}")


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    return False


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
