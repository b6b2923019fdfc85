"""No signal is lost and nothing is repeated, whenever the process of a turn that waits is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.driver import ROOT
from tests.support.sweeps import LONG


@pytest.mark.may_block
def test_killed_at_instants_of_a_wait(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.faults.waiting_scene", str(tmp_path), "1" if LONG else "9"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["instants"] > 50
    assert found["wrong"] == []
