"""AtomicValueStore in rows: what another process wrote is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capgraph.helpers.clock import SystemClock
from capgraph.stores.atomic_values import FOREVER, TableValues
from capgraph.stores.sqlite import SqliteFile

pytestmark = [pytest.mark.may_block]


def _count(value: Any, now: float) -> tuple[Any, float, float]:
    return (value or 0) + 1, FOREVER, now


def _look(value: Any, now: float) -> tuple[Any, float, Any]:
    return value, FOREVER, value


async def test_changes_of_another_process_are_visible(tmp_path: Path) -> None:
    ours, theirs = (TableValues(SqliteFile(str(tmp_path / "cells.db"))) for _ in range(2))
    clock = SystemClock()
    for number in range(5):
        await ours.achange("n", _count, clock)
        await theirs.achange("n", _count, clock)
        assert await ours.achange("n", _look, clock) == 2 * number + 2
    await ours.achange("n", _count, clock)
    await theirs.aclear("n")
    assert await ours.achange("n", _look, clock) is None
    await ours.achange("n", _count, clock)
    assert (await theirs.aread("n", clock))[0] == {"n": 1}
