"""The console's pure parts, run by Node where there is one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("state.test.mjs")


def test_javascript_unit_tests() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is missing: the console's reducer is tried by the browser's tests only")
    command = [node, "--no-warnings", "--experimental-default-type=module", "--test", str(CASES)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout[-4000:]
    assert "# fail 0" in found.stdout
