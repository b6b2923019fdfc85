"""Old import names as arguments of tools that run modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_module_runs_under_its_old_name(tmp_path: Path) -> None:
    program = (
        "import runpy, sys, inspect\n"
        "from capgraph.compat import install_framework_alias\n"
        "install_framework_alias()\n"
        "sys.argv = ['framework', '--version']\n"
        "runpy.run_module('framework', run_name='__main__', alter_sys=True)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.startswith("capgraph "), ran.stderr
