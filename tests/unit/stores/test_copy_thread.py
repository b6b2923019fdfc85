"""Copies of threads: a copy never changes a thread that exists, on any database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from capgraph.base import ConfigurationError, PersistenceError, ThreadBusyError
from capgraph.stores import Persistence, fork_thread, open_saver

pytestmark = pytest.mark.may_block


class Level(TypedDict):
    metres: int


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def graph_with(saver: Any) -> Any:
    graph = StateGraph(Level)
    graph.add_node("pump", lambda state: {"metres": state["metres"] + 1})
    graph.add_edge(START, "pump")
    return graph.compile(checkpointer=saver)


async def history(saver: Any, thread: str) -> list[Any]:
    return [
        (item.config, item.values)
        async for item in graph_with(saver).aget_state_history(config(thread))
    ]


@pytest.fixture(params=["sqlite", "memory", "postgres"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """A saver whose threads 1 and 2 have different histories."""
    url = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/threads.db",
        "memory": lambda: "sqlite://:memory:",
        "postgres": lambda: request.getfixturevalue("server").database(),
    }[request.param]()
    async with open_saver(url) as opened:
        assert opened is not None
        for thread, metres in (("1", 10), ("2", 20), ("2", 30)):
            await graph_with(opened).ainvoke({"metres": metres}, config(thread))
        yield opened


@pytest.mark.parametrize("target", ["1", "2"])
async def test_a_copy_onto_an_existing_thread_is_refused_by_name(saver: Any, target: str) -> None:
    before = [await history(saver, thread) for thread in "12"]
    with pytest.raises(PersistenceError, match=f"'{target}' already exists") as refused:
        await saver.acopy_thread("1", target)
    assert refused.value.fix
    assert [await history(saver, thread) for thread in "12"] == before


async def test_a_second_copy_onto_the_same_thread_is_refused(saver: Any) -> None:
    await saver.acopy_thread("1", "3")
    copied = await history(saver, "3")
    assert [values for _, values in copied] == [values for _, values in await history(saver, "1")]
    for source in "12":
        with pytest.raises(PersistenceError, match="'3' already exists"):
            await saver.acopy_thread(source, "3")
    assert await history(saver, "3") == copied


async def test_of_two_copies_at_once_one_is_refused(saver: Any) -> None:
    copies = await asyncio.gather(
        *(saver.acopy_thread(source, "3") for source in "12"), return_exceptions=True
    )
    [refused] = [error for error in copies if error is not None]
    assert isinstance(refused, PersistenceError)
    source = str(copies.index(None) + 1)
    expected = [values for _, values in await history(saver, source)]
    assert [values for _, values in await history(saver, "3")] == expected


async def test_a_copy_onto_a_thread_that_another_run_has_is_refused(saver: Any) -> None:
    leases = Persistence.of(saver).leases
    lease = await leases.acquire("3")
    with pytest.raises(ThreadBusyError, match="'3'"):
        await saver.acopy_thread("1", "3")
    await leases.release(lease)
    await saver.acopy_thread("1", "3")


async def test_a_copy_of_a_thread_that_does_not_exist_is_refused(saver: Any) -> None:
    with pytest.raises(PersistenceError, match="'9'"):
        await saver.acopy_thread("9", "3")


async def test_a_saver_that_cannot_copy_is_refused_by_name() -> None:
    saver = InMemorySaver()
    for thread in "12":
        await graph_with(saver).ainvoke({"metres": 10}, config(thread))
    before = await history(saver, "2")
    for target in "23":
        with pytest.raises(PersistenceError, match="InMemorySaver"):
            await fork_thread(saver, "1", target)
    assert await history(saver, "2") == before


@pytest.mark.parametrize("target", ["", "  ", "a\0b", "a\nb", None, 3])
async def test_a_copy_without_a_usable_name_is_refused(saver: Any, target: Any) -> None:
    with pytest.raises(PersistenceError, match="copy"):
        await saver.acopy_thread("1", target)
    with pytest.raises((PersistenceError, ConfigurationError)):
        await fork_thread(saver, "1", target)
    _, threads = await saver._rows.run("SELECT DISTINCT thread_id FROM checkpoints")
    assert sorted(threads) == [("1",), ("2",)]
