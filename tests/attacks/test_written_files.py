"""Files with conversations that other users of the machine could read."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from capgraph.stores import open_saver, open_store
from capgraph.stores.database import open_tables

PLAN = '{"steps": [{"context_key": "a", "capability": "read_level"}]}'
MODULE = '''
from capgraph import capability_node

@capability_node
def read_level() -> float:
    """Read the level of the tank."""
    return 2.5
'''


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0o000)
    yield
    os.umask(before)


def modes(folder: Path, *patterns: str) -> set[int]:
    found = [file for pattern in patterns for file in folder.glob(pattern) if file.is_file()]
    assert found
    return {file.stat().st_mode & 0o777 for file in found}


def command(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "capgraph", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert done.returncode == 0, done.stderr


def test_databases_and_recordings_of_the_command_line_are_private(tmp_path: Path) -> None:
    (tmp_path / "tank_agent.py").write_text(MODULE)
    (tmp_path / "agent.yml").write_text("modules: [tank_agent]\n")
    (tmp_path / "plan.json").write_text(PLAN)
    shared = ("--config", "agent.yml", "--db", "threads.db")
    command(tmp_path, "ask", "--plan", "plan.json", "--thread", "t", *shared)
    command(tmp_path, "eval", "turns.yml", "--from-threads", *shared)
    assert modes(tmp_path, "threads.db*", "turns.yml", "turns_turns/*") == {0o600}


async def test_every_way_to_open_a_database_creates_it_private(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}"
    async with open_saver(f"{url}/saver.db"), open_store(f"{url}/store.db"):
        tables = open_tables(f"{url}/tables.db")
        await tables.run("SELECT 1")
        found = await asyncio.to_thread(modes, tmp_path, "*.db*")
        await asyncio.to_thread(tables.close)
    assert found == {0o600}
