"""What only some runs need is imported by them, not with ``capgraph.graph``."""

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


def test_a_graph_is_imported_without_what_only_its_runs_need() -> None:
    code = f"import sys, capgraph.graph; print([m for m in {LATER} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
