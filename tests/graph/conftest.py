"""A database file and its saver, for the tests that run whole graphs on one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from capgraph.stores import open_saver


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


@pytest.fixture
async def saver(path: Path) -> AsyncIterator[Any]:
    async with open_saver(f"sqlite:///{path}") as opened:
        yield opened
