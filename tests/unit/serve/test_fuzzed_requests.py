"""Requests made up from the document of the API: a sample, and ten minutes of them in the long form."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serve_process import CANARY, ROOT, Served, serve_process, things_of
from tests.support.sweeps import LONG, SEED

# Its parts and those of LangGraph's server do not go together, so it has an environment of its own.
COMMAND = Path(os.environ.get("SCHEMATHESIS") or ROOT / ".venv/fuzz/bin/schemathesis")
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,nothing_of_another_user"
)
LENGTH = ["--max-time", "600"] if LONG else ["--phases", "examples,fuzzing", "--max-examples", "2"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serve_process(tmp_path) as found:
        yield found


@pytest.mark.skipif(not COMMAND.exists(), reason="'make fuzz' installs schemathesis and runs this")
@pytest.mark.timeout(1800)
def test_fuzzed_requests_neither_crash_nor_leak(served: Served) -> None:
    anns, bobs = things_of(served, served.ann, CANARY), things_of(served, served.bob, "bobs")
    environment = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": str(ROOT / "tests/support/fuzz_hooks.py"),
        "FUZZ_THINGS": " ".join([*anns, *bobs]),
        "FUZZ_CANARY": CANARY,
    }
    words = ["--seed", str(SEED), "--checks", CHECKS, "--continue-on-failure", "--warnings", "off"]
    words += ["--header", f"Authorization:Bearer {served.bob}", "--suppress-health-check", "all"]
    ran = subprocess.run(
        [COMMAND, "run", f"http://{served.host}/openapi.json", *words, *LENGTH],
        cwd=served.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-8000:]
    assert served.ask("GET", f"/api/threads/{anns.thread}", served.ann).status == 200
