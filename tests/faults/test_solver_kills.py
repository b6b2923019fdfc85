"""However a task is solved, a kill at any instant repeats no effect and changes no answer."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import scene
from tests.faults.databases import sqlite_url
from tests.faults.driver import Killer, Tally, Zygote
from tests.faults.solvers import SOLVERS
from tests.support.sweeps import LONG, SEED, sample

pytestmark = [pytest.mark.may_block, pytest.mark.timeout(10_000 if LONG else 900)]


class SolverKiller(Killer):
    """Kills one way to solve the task."""

    solver = ""

    def order(self, **more: Any) -> dict[str, Any]:
        return super().order(solver=self.solver, **more)

    def to_the_end(self, order: dict[str, Any], tried: int) -> Tally:
        code = self._zygote.run(order)
        folder = Path(order["folder"])
        scene.FOLDER = folder
        done, path = scene.lines("once"), folder / "result"
        found = json.loads(path.read_text()) if path.exists() else {}
        same = all(found.get(key) == self.expected[key] for key in ("answer", "success"))
        tally = Tally(tried=tried, asked=len(scene.lines("asked")))
        tally.repeated, tally.lost = max(0, len(done) - 1), int(not done)
        tally.survived = tried if same and code == 0 and done == ["paid 21"] else 0
        if tally.survived != tried:
            log = (folder / "log").read_text()[-600:]
            tally.notes.append(f"{folder}: exit {code}, done {done}, found {found}: {log}")
        return tally


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as started:
        yield started


@pytest.mark.row("G21")
@pytest.mark.sampled(0.4)
@pytest.mark.parametrize("solver", SOLVERS)
def test_killed_at_instants(solver: str, zygote: Zygote, tmp_path: Path) -> None:
    kind = type(solver, (SolverKiller,), {"solver": solver})
    killer = kind(zygote, sqlite_url(Path("{folder}/threads.db")), tmp_path, random.Random(SEED))
    assert "21" in killer.expected["answer"]
    total = Tally()
    for instant in sample(range(1, killer.instants + 1), 4)[:30]:
        total += killer.at_instants(instant)
    assert total.tried > 0
    assert total.clean, total.notes
