"""Coverage-guided fuzzing of plans, answers and configuration files, where atheris installs.

``python -m tests.faults.fuzz_coverage --seconds 60``. Any exception that is not the project's own,
and any input that takes longer than five seconds, ends the run with the input that did it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from capgraph.base import CapabilitySpec, Requirement, load_execution_plan_from_file
from capgraph.configs.errors import CapgraphError
from capgraph.configs.settings import load_settings
from capgraph.planning import StaticCatalog, check_plan, repair_plan

CATALOG = StaticCatalog.of(
    CapabilitySpec("fetch", "Fetch it.", provides=("DATA",)),
    CapabilitySpec("sum", "Add it.", provides=("TOTAL",), requires=(Requirement("DATA"),)),
)


@cache
def folder() -> Path:
    """Where the inputs are written that are read as files."""
    return Path(tempfile.mkdtemp(prefix="capgraph-fuzz-"))


def one_input(data: bytes) -> None:
    """Give one input to everything that reads foreign text."""
    if not data:
        return
    try:
        if data[0] % 2:
            _as_plan(data[1:])
        else:
            file = folder() / "settings.yml"
            file.write_bytes(data[1:])
            load_settings(file)
    except CapgraphError:
        return  # a clear error is what bad input is to end in


def _as_plan(data: bytes) -> None:
    file = folder() / "plan.json"
    file.write_bytes(data)
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        value = data.decode("utf-8", "replace")
    check_plan(value, CATALOG)
    repaired = repair_plan(value, CATALOG)
    if repaired.ok and check_plan(repaired.plan, CATALOG):
        raise AssertionError(f"A repaired plan does not check clean: {value!r}")
    load_execution_plan_from_file(file)


def main() -> None:
    """Fuzz for a while."""
    import atheris

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    seconds = parser.parse_args().seconds
    atheris.instrument_all()
    atheris.Setup(
        [sys.argv[0], f"-max_total_time={seconds}", "-timeout=5", "-max_len=4096"], one_input
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
