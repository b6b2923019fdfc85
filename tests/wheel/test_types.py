"""The types of the installed package, as type checkers and imports see them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wheel.conftest import ROOT, Environment

CACHE = ROOT / ".venv" / "pyright"
"""Made by ``make .venv/.wheel``: the programs that pyright would otherwise download."""
LEAST = 0.98


@pytest.mark.timeout(900)
def test_public_names_have_known_types(environment: Environment, tmp_path: Path) -> None:
    """Unknown types of pydantic, LangGraph, and other packages are ignored.

    Without ``--ignoreexternal``, every pydantic model counts as partially unknown.
    """
    # pyright takes the environment from the first "python" on the path.
    variables = {
        "PATH": os.pathsep.join([str(environment.bin), os.environ["PATH"]]),
        "PYRIGHT_PYTHON_CACHE_DIR": str(CACHE),
        "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",  # it looks for newer versions otherwise
    }
    options = ["--verifytypes", "capgraph", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(
        [sys.executable, "-m", "pyright", *options],
        cwd=tmp_path,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright does not start, see 'make .venv/.wheel': {done.stderr[-200:]}")
    report = json.loads(done.stdout)["typeCompleteness"]
    assert str(environment.site) in report["packageRootDirectory"]
    unknown = [s for s in report["symbols"] if s["isExported"] and not s["isTypeKnown"]]
    causes = [
        f"{symbol['name']}: {found['message']}"
        for symbol in unknown
        for found in symbol["diagnostics"]
        if "missing type annotation" in found["message"]
    ]
    assert report["completenessScore"] >= LEAST, "\n".join(causes)


def test_every_package_is_typed_and_imported_without_a_warning(
    environment: Environment, tmp_path: Path
) -> None:
    root = environment.site / "capgraph"
    packages = sorted(
        ".".join(path.parent.relative_to(environment.site).parts)
        for path in root.rglob("__init__.py")
        if not any(part.startswith("_") for part in path.parent.relative_to(root).parts)
        and "templates" not in path.parts
    )
    assert {"capgraph", "capgraph.compat", "capgraph.serve"} <= set(packages)
    assert (root / "py.typed").is_file()
    failed = {}
    for package in packages:
        done = environment.python(f"import {package}", cwd=tmp_path, check=False)
        if done.returncode:
            failed[package] = done.stderr[-300:]
    assert not failed
