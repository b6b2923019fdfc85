"""What only PostgreSQL has to keep: text beside the blobs, tables made by two at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from framework.stores import (
    fork_thread,
    list_threads,
    open_saver,
    open_store,
    prune_threads,
    thread_summary,
)
from tests.faults.scene import CONFIG, make_graph

pytestmark = [pytest.mark.may_block, pytest.mark.service, pytest.mark.timeout(120)]
KEY = "0123456789abcdef"


async def test_two_that_start_at_once_make_the_tables_together(server: Any) -> None:
    url = server.database()

    async def start() -> None:
        async with open_saver(url), open_store(url) as store:
            await store.aput(("a",), "b", {"c": 1})

    await asyncio.gather(*(start() for _ in range(4)))


async def test_threads_are_encrypted_listed_forked_and_pruned(server: Any) -> None:
    import psycopg

    url = server.database()
    async with open_saver(url, encryption_key=KEY) as saver:
        graph = make_graph(saver)
        first = await graph.ainvoke({"messages": [("user", "Where is the treasure?")]}, CONFIG)
        assert "__interrupt__" in first
        (summary,) = await list_threads(saver)
        assert (summary.status, summary.task) == ("waiting", "Where is the treasure?")
        await fork_thread(saver, summary.thread_id, "copy")
        assert sorted(await prune_threads(saver)) == ["copy", summary.thread_id]
        assert (await thread_summary(saver, "copy")).done == summary.done
    with psycopg.connect(url) as connection:
        for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
            rows = connection.execute(f"SELECT {table}::text FROM {table}").fetchall()
            assert rows
            text = " ".join(row[0] for row in rows)
            assert "treasure" not in text
            assert b"treasure".hex() not in text
    async with open_saver(url, encryption_key=KEY) as saver:
        assert await prune_threads(saver, policy="delete")
        assert await list_threads(saver) == []


async def test_postgres_does_all_that_a_saver_can(server: Any) -> None:
    from langgraph.checkpoint.conformance import checkpointer_test, validate

    async def fresh() -> AsyncIterator[Any]:
        async with open_saver(server.database(), encryption_key=KEY) as saver:
            yield saver

    report = await validate(checkpointer_test("postgres")(fresh))
    report.print_report()
    assert all(result.passed for result in report.results.values())
