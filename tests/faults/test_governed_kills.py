"""Limit, breaker, retries, time limit, guard, budget, permission and audit around each effect, killed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.databases import sqlite_url
from tests.faults.driver import Killer, Tally, Zygote
from tests.support.sweeps import LONG, SEED, sample

pytestmark = [pytest.mark.may_block, pytest.mark.timeout(10_000 if LONG else 900)]
KILLS = 50


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as started:
        yield started


def sweep(killer: Killer) -> None:
    total = Tally()
    instants = random.Random(SEED).sample(range(1, killer.instants + 1), KILLS)
    for instant in sample(instants, 4):
        total += killer.at_instants(instant)
    assert total.tried > 0, "nothing was tried"
    assert (total.lost, total.repeated) == (0, 0), total.notes
    assert total.survived == total.tried, total.notes


def test_killed_on_sqlite(zygote: Zygote, tmp_path: Path) -> None:
    url = sqlite_url(Path("{folder}/threads.db"))
    sweep(Killer(zygote, url, tmp_path, random.Random(SEED), governed=True))


@pytest.mark.service
def test_killed_on_postgresql(zygote: Zygote, server: Any, tmp_path: Path) -> None:
    sweep(Killer(zygote, server.database(), tmp_path, random.Random(SEED), governed=True))
