"""What the scenes of a test leave behind stands in the folder of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import scene


@pytest.fixture(autouse=True)
def _effects_leave_their_marks_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene, "FOLDER", tmp_path)
