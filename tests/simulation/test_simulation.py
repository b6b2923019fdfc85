"""Seeds, some hundreds of them: what holds in each, and that a mistake in what is tried is found.

``SEED=17 SEEDS=1 pytest tests/simulation`` replays one; ``LONG_TESTS=1`` tries 100,000.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

from capgraph.pipeline.journal import Journal
from capgraph.stores.leases import Lease, LeaseOwner
from tests.simulation.loop import Stuck, VirtualLoop
from tests.simulation.world import Broken, SimLeases, live
from tests.support.sweeps import LONG, SEED

SEEDS = int(os.environ.get("SEEDS") or (100_000 if LONG else 100))
PARTS = 100 if SEEDS >= 1000 else 2 if SEEDS > 1 else 1

pytestmark = [pytest.mark.may_block, pytest.mark.timeout(3600)]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What goes wrong on purpose is not logged; nothing else is expected to be."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_that_may_not_happen_does(part: int) -> None:
    first = SEED if SEEDS == 1 else SEED * 1_000_000
    for seed in range(first + part, first + SEEDS, PARTS):
        live(seed)


def test_a_seed_is_the_same_again() -> None:
    seed = next(n for n in range(100) if any("---" in line for line in live(n).trace))
    assert live(seed).trace == live(seed).trace


class AlwaysGranted(SimLeases):
    """Leases that are always granted."""

    async def _is_expired(self, holder: LeaseOwner, claim: LeaseOwner) -> bool | None:
        return True


class NotLookedTwice(SimLeases):
    """Leases that are taken over as soon as they are late."""

    async def _is_expired(self, holder: LeaseOwner, claim: LeaseOwner) -> bool | None:
        return await super()._is_expired(holder, claim) is not False


class NeverConfirmed(SimLeases):
    """Leases that are never confirmed."""

    def _is_fresh(self, lease: Lease) -> bool:
        return True

    async def confirm(self, thread_id: str, *, force_query: bool = True) -> None:
        """Look nowhere."""


@pytest.mark.parametrize("mistake", [AlwaysGranted, NotLookedTwice, NeverConfirmed])
def test_a_mistake_in_the_leases_is_found(mistake: type[SimLeases]) -> None:
    found = _found(leases=mistake)
    assert found.startswith("seed ")
    assert "Again: SEED=" in found


def test_a_mistake_in_the_ledger_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody leaves word that an effect began."""
    write = Journal.write

    async def forgetful(self: Journal, key: str, record: dict[str, Any], **how: Any) -> None:
        if record.get("status") != "begun":
            await write(self, key, record, **how)

    monkeypatch.setattr(Journal, "write", forgetful)
    assert "times" in _found()


def test_a_turn_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker takes over the thread of a worker that ended."""
    monkeypatch.setattr("tests.simulation.world.LAST", 300.0)

    class Forever(SimLeases):
        async def _is_expired(self, holder: LeaseOwner, claim: LeaseOwner) -> bool | None:
            return False

    assert "turns were lost" in _found(leases=Forever)


def _found(most: int = 300, **options: Any) -> str:
    for seed in range(most):
        try:
            live(seed, **options)
        except Broken as exc:
            return str(exc)
    raise AssertionError(f"{most} seeds found nothing")


def test_who_waits_for_nothing_is_stuck() -> None:
    loop = VirtualLoop()
    with pytest.raises(Stuck):
        loop.run_until_complete(loop.create_future())
    loop.close()
