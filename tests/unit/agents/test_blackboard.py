"""A board on which no write is lost."""

from __future__ import annotations

import asyncio
import multiprocessing
from typing import Any

import pytest

from capgraph.agents.blackboard import Blackboard, BlackboardEntry
from capgraph.base.errors import ValidationError
from capgraph.stores import InMemoryStateStore, StateStoreFactory
from tests.support.state_backends import *  # noqa: F403
from tests.support.state_backends import Where

pytestmark = [pytest.mark.may_block, pytest.mark.timeout(900)]


async def test_write_read_list_and_delete(store: Any) -> None:
    board = Blackboard(store)
    await board.write("facts/one", {"level": 2.5}, "gauge", unit="m")
    await board.write("two", None, author="clerk")
    assert await board.read("facts/one") == {"level": 2.5}
    entry = await board.read_entry("facts/one")
    assert isinstance(entry, BlackboardEntry)
    assert (entry.key, entry.author, entry.metadata) == ("facts/one", "gauge", {"unit": "m"})
    assert BlackboardEntry.from_dict(entry.to_dict()) == entry
    assert await board.keys() == ["facts/one", "two"]
    assert list(await board.list_entries()) == ["facts/one", "two"]
    assert await board.read("two") is None is await board.read("three")
    assert await board.read_entry("two") is not None
    assert await board.read_entry("three") is None
    await board.delete("two")
    await board.delete("two")
    assert await board.keys() == ["facts/one"]
    await board.clear()
    assert await board.list_entries() == {}


async def test_namespaces_are_separate(store: Any) -> None:
    boards = [Blackboard(store, name) for name in ("a", "a/b", "A", "b_")]
    for number, board in enumerate(boards):
        await board.write("k", number, "me")
    await store.set("k", "of somebody else")
    await boards[0].clear()
    assert [await board.read("k") for board in boards] == [None, 1, 2, 3]
    assert await store.get("k") == "of somebody else"


@pytest.mark.row("G7")
async def test_an_entry_expires_and_must_be_plain_data() -> None:
    seconds = [0.0]
    store = InMemoryStateStore(clock=lambda: seconds[0])
    board = Blackboard(store, ttl=10)
    with pytest.raises(ValidationError, match=r"value\.pair"):
        await board.write("k", {"pair": (1, 2)}, "me")
    await board.write("k", 1, "me")
    seconds[0] = 11
    assert await board.keys() == []


def _write(where: Where, number: int) -> None:
    async def run() -> None:
        board = Blackboard(StateStoreFactory.create(where[0], **where[1]), "run")
        writes = (board.write(f"{number}/{turn}", turn, str(number)) for turn in range(200))
        await asyncio.gather(*writes)

    asyncio.run(run())


@pytest.mark.row("G7")
@pytest.mark.sampled(0.34)
def test_concurrent_writes_of_four_processes_are_kept(shared: Where) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write, args=(shared, number)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    board = Blackboard(StateStoreFactory.create(shared[0], **shared[1]), "run")
    entries = asyncio.run(board.list_entries())
    assert sorted(entries) == sorted(f"{n}/{turn}" for n in range(4) for turn in range(200))
    assert all(entry.author == key.partition("/")[0] for key, entry in entries.items())
