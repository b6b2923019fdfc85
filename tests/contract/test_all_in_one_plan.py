"""Tools, a graph that asks, an agent with a tool and a sub-agent in one plan, killed and resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.all_in_one import EFFECTS, KILLED
from tests.support.sweeps import sample

pytestmark = pytest.mark.may_block
ROOT = Path(__file__).parents[2]
Run = Callable[[Path, int], int]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    environment = {**os.environ, "LANGSMITH_TRACING": "false", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.all_in_one"],
        env=environment,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def one(folder: Path, instant: int) -> int:
            order = json.dumps({"folder": str(folder), "instant": instant})
            print(order, file=process.stdin, flush=True)
            return int(process.stdout.readline())  # type: ignore[union-attr]

        yield one
        process.stdin.close()


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def test_killed_at_any_instant_it_ends_the_same_and_no_effect_is_repeated(
    run: Run, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    assert run(whole, 0) == 0
    expected = result(whole)
    assert expected["status"] == "completed"
    assert expected["data"]["PRICE"]["price"] == {"total": 10, "payer": "Ada"}
    for instant in sample(range(1, expected["instants"]), 6):
        folder = tmp_path / str(instant)
        folder.mkdir()
        # Its last instants may not come again: other tasks are done in another order.
        assert run(folder, instant) in (KILLED, 0)
        assert run(folder, 0) == 0
        found = result(folder)
        assert (found["status"], found["data"]) == ("completed", expected["data"]), instant
        acted = Counter((folder / "world").read_text().splitlines())
        assert all(acted[line] == 1 for line, *_ in EFFECTS.values()), (instant, acted)
        # One kill can lose no more than what was under way.
        assert all(acted[line] <= 2 for line in ("read", "add")), (instant, acted)
        assert acted["model"] <= 3, (instant, acted)
