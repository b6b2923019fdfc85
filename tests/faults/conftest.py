"""One PostgreSQL server for all fault tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import scene
from tests.faults.databases import postgres


@pytest.fixture(scope="session")
def server() -> Iterator[Any]:
    with postgres() as started:
        yield started


@pytest.fixture(autouse=True)
def _effects_leave_their_marks_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene, "FOLDER", tmp_path)
