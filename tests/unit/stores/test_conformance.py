"""LangGraph's own suite for savers, on the savers that ``open_saver`` opens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate

from capgraph.stores import open_saver

pytestmark = [pytest.mark.may_block, pytest.mark.row("T27")]


@pytest.mark.parametrize("key", [None, "0123456789abcdef"], ids=["plain", "encrypted"])
async def test_sqlite_does_all_that_a_saver_can(tmp_path: Path, key: str | None) -> None:
    places = iter(range(100))

    async def fresh() -> AsyncIterator[Any]:
        url = f"sqlite:///{tmp_path}/{next(places)}.db"
        async with open_saver(url, encryption_key=key) as saver:
            yield saver

    report = await validate(checkpointer_test("sqlite")(fresh))
    report.print_report()
    assert all(result.passed for result in report.results.values())
