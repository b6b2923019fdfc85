"""No signal is lost and nothing is repeated, whenever the process of a turn that waits is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.databases import sqlite_url
from tests.faults.driver import ROOT
from tests.support.sweeps import LONG

pytestmark = pytest.mark.may_block


def sweep(url: str, folder: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.faults.waiting_scene", url, folder, "1" if LONG else "43"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["instants"] > 50
    assert found["wrong"] == []


def test_killed_at_instants_of_a_wait(tmp_path: Path) -> None:
    sweep(sqlite_url(Path("{folder}/t.db")), tmp_path)


@pytest.mark.service
def test_killed_at_instants_of_a_wait_on_postgresql(server: Any, tmp_path: Path) -> None:
    sweep(server.database(), tmp_path)
