"""Private files are created without releasing the locks of a database that is in use."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from capgraph.helpers.files import create_private

pytestmark = pytest.mark.may_block
WRITE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0)
try:
    connection.execute("INSERT INTO numbers VALUES (2)")
    connection.commit()
except sqlite3.OperationalError as error:
    print(error)
"""


def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    create_private(tmp_path / "new.db")
    assert stat.S_IMODE((tmp_path / "new.db").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["new.db"]


def test_an_existing_database_stays_locked(tmp_path: Path) -> None:
    path = tmp_path / "used.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE numbers (number INTEGER)")
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("INSERT INTO numbers VALUES (1)")
        create_private(path)
        command = [sys.executable, "-c", WRITE, str(path)]
        other = subprocess.run(command, capture_output=True, text=True, check=True)
        assert other.stdout.strip() == "database is locked"
        connection.execute("COMMIT")
        assert connection.execute("SELECT number FROM numbers").fetchall() == [(1,)]
    assert [path.name for path in tmp_path.iterdir()] == ["used.db"]


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_databases_in_memory_create_no_file(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    create_private(path)
    assert list(tmp_path.iterdir()) == []
