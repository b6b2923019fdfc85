"""Imports of ``capgraph.graph``."""

from __future__ import annotations

import subprocess
import sys

LATER = (
    "capgraph.telemetry.events",
    "capgraph.planning.strategies",
    "capgraph.configs.settings",
    "sqlite3",
    "yaml",
)


def test_importing_a_graph_does_not_import_modules_that_only_runs_need() -> None:
    code = f"import sys, capgraph.graph; print([m for m in {LATER} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
