"""Cells in rows: what was written last is not read again, and never trusted unseen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from framework.base.clock import SystemClock
from framework.stores.cells import FOREVER, RowCells
from framework.stores.rows import FileRows

pytestmark = [pytest.mark.may_block]


class Watched(FileRows):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.verbs: list[str] = []

    def run_blocking(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        self.verbs.append(statement.split()[0])
        return super().run_blocking(statement, values)


@pytest.fixture
def rows(tmp_path: Path) -> Watched:
    return Watched(str(tmp_path / "cells.db"))


def _count(value: Any, now: float) -> tuple[Any, float, float]:
    return (value or 0) + 1, FOREVER, now


def _look(value: Any, now: float) -> tuple[Any, float, Any]:
    return value, FOREVER, value


async def test_a_value_of_ones_own_is_changed_by_one_statement(
    rows: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framework.stores.cells._SWEEP_SHARE", 0)
    cells, clock = RowCells(rows), SystemClock()
    first = await cells.achange("n", _count, clock)
    assert rows.verbs == ["CREATE", "SELECT", "INSERT"]
    second = await cells.achange("n", _count, clock)
    third = await cells.achange("n", _count, clock)
    assert rows.verbs[3:] == ["UPDATE", "UPDATE"]
    assert first < second < third < first + 60
    assert await cells.achange("n", _look, clock) == 3


async def test_what_another_process_wrote_is_seen(rows: Watched, tmp_path: Path) -> None:
    ours, theirs = RowCells(rows), RowCells(FileRows(str(tmp_path / "cells.db")))
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


async def test_the_clock_is_asked_for_again(rows: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    cells, clock = RowCells(rows), SystemClock()
    await cells.achange("n", _count, clock)
    monkeypatch.setattr("framework.stores.cells._TRUSTED", -1.0)
    rows.verbs.clear()
    await cells.achange("n", _count, clock)
    assert rows.verbs[:2] == ["SELECT", "UPDATE"]
