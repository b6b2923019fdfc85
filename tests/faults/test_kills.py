"""The short form of ``python -m tests.faults``: what is promised, tried a few times."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import outages
from tests.faults.databases import sqlite_url
from tests.faults.driver import Killer, Tally, Zygote
from tests.support.sweeps import LONG, SEED, examples, sample

pytestmark = [
    pytest.mark.may_block,
    pytest.mark.timeout(10_000 if LONG else 900),
    pytest.mark.sampled(0.5),
]


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as started:
        yield started


@pytest.fixture(scope="module")
def sqlite(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Killer:
    folder = tmp_path_factory.mktemp("sqlite")
    return Killer(zygote, sqlite_url(Path("{folder}/threads.db")), folder, random.Random(SEED))


@pytest.fixture(scope="module")
def postgresql(zygote: Zygote, server: Any, tmp_path_factory: pytest.TempPathFactory) -> Killer:
    folder = tmp_path_factory.mktemp("postgres")
    return Killer(zygote, server.database(), folder, random.Random(SEED))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.service)])
def killer(request: pytest.FixtureRequest) -> Killer:
    found: Killer = request.getfixturevalue(request.param)
    return found


def _clean(tally: Tally) -> None:
    assert tally.tried > 0, "nothing was tried"
    assert (tally.lost, tally.repeated) == (0, 0), tally.notes
    assert tally.survived == tally.tried, tally.notes


def test_killed_at_instants(killer: Killer) -> None:
    total = Tally()
    for instant in sample(range(1, killer.instants + 1), 6):
        total += killer.at_instants(instant)
    _clean(total)


def test_killed_at_random_again_and_again(killer: Killer) -> None:
    total = Tally()
    for _ in range(examples(2)):
        total += killer.at_random(3)
    _clean(total)


def test_killed_between_start_and_end_of_an_effect_asks_and_does_not_repeat(
    sqlite: Killer, zygote: Zygote
) -> None:
    # Wherever exactly the instants lie: killed at each of a stretch, some fall inside an effect.
    total = Tally()
    for instant in range(80, 104, 2):
        total += sqlite.at_instants(instant)
        if total.asked:
            break
    assert total.asked > 0, "no kill fell between the start and the end of an effect"
    _clean(total)


def test_killed_in_steps_over_a_list(zygote: Zygote, tmp_path: Path) -> None:
    url, rng = sqlite_url(Path("{folder}/threads.db")), random.Random(SEED)
    killer = Killer(zygote, url, tmp_path, rng, each=True)
    total = Tally()
    for instant in sample(range(1, killer.instants + 1), 8):
        total += killer.at_instants(instant)
    for _ in range(examples(2)):
        total += killer.at_random(3)
    _clean(total)


def test_two_processes_go_on_with_one_thread(sqlite: Killer, zygote: Zygote) -> None:
    _clean(outages.two_at_once(sqlite, zygote, 1))


def test_the_clock_moves(sqlite: Killer, zygote: Zygote) -> None:
    _clean(outages.clock_moved(sqlite, zygote, (3600.0, -3600.0, 60.0)))


def test_the_disk_is_full(sqlite: Killer, zygote: Zygote) -> None:
    _clean(outages.disk_full(sqlite, zygote, (20_000, 90_000)))


def test_the_file_is_locked(sqlite: Killer, zygote: Zygote) -> None:
    _clean(outages.sqlite_locked(sqlite, zygote, 1.0))


@pytest.mark.service
def test_the_database_is_gone_for_a_while(postgresql: Killer, zygote: Zygote, server: Any) -> None:
    _clean(outages.postgres_gone(postgresql, zygote, server, 1.5))
