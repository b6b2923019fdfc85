"""One meaning of a state store, in memory, SQLite, PostgreSQL and Redis."""

from __future__ import annotations

import asyncio
import datetime
import enum
import inspect
import json
import math
import multiprocessing
import sqlite3
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capgraph.base import PersistenceError
from capgraph.base.errors import ConfigurationError, ValidationError
from capgraph.stores import (
    MISSING,
    BaseStateStore,
    InMemoryStateStore,
    RedisStateStore,
    SqliteStateStore,
    StateStoreFactory,
)
from tests.support.state_backends import *  # noqa: F403
from tests.support.state_backends import Where

pytestmark = [pytest.mark.may_block, pytest.mark.timeout(900)]


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


def exactly(value: Any) -> str:
    """Tell 1 from True and from 1.0."""
    return json.dumps(value)


# --- the contract ---------------------------------------------------------------------------------


@pytest.mark.row("G1")
async def test_the_operations_of_a_store(store: Any) -> None:
    async with store:
        assert await store.get("k") is None
        await store.set("k", {"a": 1}, ttl=60)
        assert await store.get("k") == {"a": 1}
        assert await store.exists("k")
        assert await store.compare_and_set("k", {"a": 1}, {"a": 2})
        assert not await store.compare_and_set("k", {"a": 1}, {"a": 3})
        await store.append("list", "x")
        await store.append("list", "y")
        assert await store.get("list") == ["x", "y"]
        assert await store.increment("n") == 1
        assert await store.increment("n", by=4) == 5
        await store.delete("k")
        await store.delete("k")
        assert not await store.exists("k")
        await store.clear()
        assert await store.get("n") is None


@pytest.mark.row("G1")
async def test_setting_up_and_closing_is_optional(store: Any) -> None:
    await store.set("k", 1)
    await store.setup()
    await store.close()
    await store.increment("k")
    await store.close()


@pytest.mark.row("G4")
def test_the_base_is_abstract_and_the_factory_knows_four() -> None:
    assert inspect.isabstract(BaseStateStore)
    assert isinstance(StateStoreFactory.create(), InMemoryStateStore)
    with pytest.raises(ValueError, match="mongo"):
        StateStoreFactory.create("mongo")
    with pytest.raises(TypeError, match="url"):
        StateStoreFactory.create("memory", url="redis://localhost")


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.row("G3")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=JSON)
async def test_a_value_is_returned_as_it_was_stored(store: Any, value: Any) -> None:
    await store.set("k", value)
    assert exactly(await store.get("k", "nothing")) == exactly(value)
    assert await store.compare_and_set("k", value, "other")


@pytest.mark.row("G3")
@pytest.mark.parametrize("values", [(1, True), (True, 1), (1, 1.0), (0.0, -0.0), (None, False)])
async def test_a_change_of_type_is_a_change(store: Any, values: tuple[Any, Any]) -> None:
    before, after = values
    await store.set("k", before)
    await store.set("k", after)
    assert exactly(await store.get("k")) == exactly(after)
    assert not await store.compare_and_set("k", before, "wrong")


class Colour(enum.StrEnum):
    RED = "red"


ODD: list[tuple[Any, str]] = [
    ((1, 2), "k"),
    ({"a": [{"b": datetime.datetime(2026, 1, 1)}]}, "k.a[0].b"),
    ({"a": {1: "x"}}, "k.a"),
    ([math.nan], "k[0]"),
    ([0, math.inf], "k[1]"),
    ({"s": {1}}, "k.s"),
    (b"bytes", "k"),
    ({"c": Colour.RED}, "k.c"),
    (OrderedDict(a=1), "k"),
    ({"n": 2**70}, "k.n"),
    ("\ud800", "k"),
    (object(), "k"),
]


@pytest.mark.row("G3")
@pytest.mark.parametrize(("value", "place"), ODD)
async def test_a_value_that_json_would_change_is_rejected_with_its_path(
    store: Any, value: Any, place: str
) -> None:
    for change in (store.set, store.append):
        with pytest.raises(ValidationError) as told:
            await change("k", value)
        assert place in str(told.value)
    assert not await store.exists("k")


async def test_a_recursive_value_is_rejected(store: Any) -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValidationError, match="contains itself"):
        await store.set("k", value)


@pytest.mark.row("G2")
async def test_copies_are_given_and_taken(store: Any) -> None:
    value = {"items": [1]}
    await store.set("k", value)
    value["items"].append(2)
    (await store.get("k"))["items"].append(3)
    (await store.entries())["k"]["items"].append(4)
    assert await store.get("k") == {"items": [1]}


@pytest.mark.row("G1")
async def test_none_differs_from_a_missing_key(store: Any) -> None:
    assert not await store.exists("k")
    assert await store.get("k", "nothing") == "nothing"
    await store.set("k", None)
    assert await store.exists("k")
    assert await store.get("k", "nothing") is None
    assert not await store.compare_and_set("k", MISSING, 1)
    assert await store.compare_and_set("k", None, 1)
    assert await store.compare_and_set("other", None, 1)
    assert await store.compare_and_set("third", MISSING, 1)
    assert not await store.compare_and_set("fourth", 1, 2)
    assert not await store.exists("fourth")


async def test_append_creates_a_list_and_increment_rejects_other_types(
    store: Any,
) -> None:
    await store.set("k", "a")
    with pytest.raises(ValidationError, match=r"'k'.*str"):
        await store.increment("k")
    assert await store.append("k", "b") == 2
    assert await store.get("k") == ["a", "b"]
    await store.set("flag", True)
    with pytest.raises(ValidationError, match=r"'flag'.*bool"):
        await store.increment("flag")
    await store.set("most", 2**64 - 1)
    with pytest.raises(ValidationError):
        await store.increment("most")
    assert await store.increment("half", by=0.5) == 0.5
    with pytest.raises(ValidationError):
        await store.increment("half", by="1")


@pytest.mark.parametrize("key", ["a\0b", 7, None, "k" * 3000, "\ud800"])
async def test_a_key_that_not_all_could_keep_is_refused(store: Any, key: Any) -> None:
    with pytest.raises(ValidationError):
        await store.set(key, 1)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))
async def test_any_other_text_is_a_key(store: Any, key: str) -> None:
    await store.clear()
    await store.set(key, 1)
    assert await store.entries() == await store.entries(key) == {key: 1}
    await store.clear(key)
    assert not await store.exists(key)


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.row("G2")
@pytest.mark.parametrize("ttl", [0, -1, -0.5])
async def test_a_ttl_of_zero_expires_immediately(store: Any, ttl: float) -> None:
    await store.set("k", "before")
    await store.set("k", 1, ttl=ttl)
    assert not await store.exists("k")
    assert await store.entries() == {}


@pytest.mark.parametrize("ttl", [math.nan, math.inf, "60", True])
async def test_an_invalid_ttl_is_rejected(store: Any, ttl: Any) -> None:
    with pytest.raises(ValidationError, match="ttl"):
        await store.set("k", 1, ttl=ttl)


@pytest.mark.row("G1")
async def test_a_value_ends_with_its_time(open_store: Any) -> None:
    hand = Hand()
    store = open_store(clock=hand)
    await store.set("short", 1, ttl=10)
    await store.set("long", 1)
    await store.append("list", "a")
    await store.set("n", 1, ttl=10)
    hand.seconds += 9.5
    assert await store.exists("short")
    await store.increment("n")  # a change keeps the time
    await store.compare_and_set("short", 1, 2)
    hand.seconds += 1
    assert await store.get("short", "gone") == "gone"
    assert await store.increment("n") == 1
    assert sorted(await store.entries()) == ["list", "long", "n"]
    assert not await store.compare_and_set("short", 2, 3)
    await store.set("long", 1, ttl=5)
    await store.set("long", 2)  # without a time it stays
    hand.seconds += 100
    assert await store.get("long") == 2
    assert await store.compare_and_set("long", 2, 3, ttl=5)
    hand.seconds += 5
    assert not await store.exists("long")


async def test_the_clock_of_the_place_counts_too(store: Any) -> None:
    await store.set("k", 1, ttl=1e12)
    await store.set("short", 1, ttl=0.001)
    while await store.exists("short"):
        await asyncio.sleep(0.01)
    assert await store.exists("k")


@pytest.mark.row("G2")
async def test_unread_values_expire_in_memory() -> None:
    hand = Hand()
    store = InMemoryStateStore(clock=hand)
    for number in range(3000):
        await store.set(f"old{number}", "x", ttl=1)
    hand.seconds += 2
    for number in range(3000):
        await store.set(f"new{number}", "x")
        await store.set(f"new{number}", "x", ttl=1)
    cells: Any = vars(store)["_values"]
    assert not any(name.startswith("state:old") for name in vars(cells)["_values"])


async def test_unread_values_expire_in_a_table(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capgraph.stores.atomic_values._SWEEP_SHARE", 1)
    store = SqliteStateStore(tmp_path / "state.db")
    for number in range(20):
        await store.set(f"old{number}", "x", ttl=0.001)
    await asyncio.sleep(0.01)
    await store.set("new", "x")
    await store.set("gone", "x")
    await store.delete("gone")
    with closing(sqlite3.connect(tmp_path / "state.db")) as conn:
        assert conn.execute("SELECT name FROM capgraph_cells").fetchall() == [("state:new",)]


@pytest.mark.row("G3")
async def test_redis_expires_keys(redis_url: str) -> None:
    import redis

    store = RedisStateStore(redis_url, key_prefix="app:")
    await store.set("k", 1, ttl=60)
    await store.set("ever", 1)
    with redis.Redis.from_url(redis_url) as client:
        assert 0 < client.ttl("app:k") <= 60
        assert client.ttl("app:ever") == -1
    await store.clear()


# --- who owns what --------------------------------------------------------------------------------


@pytest.mark.row("G3")
@pytest.mark.parametrize("prefix", ["app:", "a*:", "[ab]?\\", "a_", "A%"])
async def test_clear_deletes_only_the_stores_own_keys(open_store: Any, prefix: str) -> None:
    ours = open_store(key_prefix=prefix)
    others = [open_store(key_prefix=other) for other in ("b:", "axx:", "aPP:", "APP:", "a1", "AB")]
    for number, store in enumerate([ours, *others]):
        await store.set("k", number)
    await ours.clear()
    assert not await ours.exists("k")
    assert [await store.get("k") for store in others] == [1, 2, 3, 4, 5, 6]


def test_a_store_without_a_prefix_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        InMemoryStateStore(key_prefix="")


async def test_limits_in_the_same_file_stay(tmp_path: Any) -> None:
    from capgraph.behaviors import RateLimiter

    limiter = RateLimiter(rpm=0.001, burst=1, store=f"sqlite:///{tmp_path}/state.db")
    assert await limiter.try_acquire("k")
    store = SqliteStateStore(tmp_path / "state.db")
    await store.set("k", 1)
    await store.clear()
    assert not await limiter.try_acquire("k")


async def test_a_place_that_is_not_there_is_an_error(tmp_path: Any) -> None:
    with pytest.raises(PersistenceError):
        await SqliteStateStore(tmp_path / "no" / "state.db").setup()
    with pytest.raises(PersistenceError):
        await RedisStateStore(f"unix://{tmp_path}/no.sock").setup()
    with pytest.raises(ConfigurationError):
        StateStoreFactory.create("postgres", url="mysql://somewhere")


@pytest.mark.row("G3")
@pytest.mark.service
async def test_a_server_that_was_started_again_is_found_again(server: Any) -> None:
    store = StateStoreFactory.create("postgres", url=server.database())
    await store.set("k", 1)
    server.stop()
    try:
        with pytest.raises(PersistenceError):
            await store.get("k")
    finally:
        server.start()
    assert await store.increment("k") == 2
    await store.close()


# --- at once --------------------------------------------------------------------------------------


@pytest.mark.row("G1")
async def test_changes_at_once_lose_nothing(store: Any) -> None:
    async def swap() -> bool:
        return bool(await store.compare_and_set("first", MISSING, 1))

    await asyncio.gather(
        *(store.append("list", n) for n in range(30)), *(store.increment("n") for _ in range(30))
    )
    assert sorted(await store.get("list")) == list(range(30))
    assert await store.get("n") == 30
    assert sum(await asyncio.gather(*(swap() for _ in range(10)))) == 1


def test_threads_with_their_own_loops_lose_no_updates(store: Any) -> None:
    async def work() -> None:
        for number in range(25):
            await store.increment("n")
            await store.append("list", number)

    with ThreadPoolExecutor(4) as pool:
        for ended in [pool.submit(asyncio.run, work()) for _ in range(4)]:
            ended.result()
    assert asyncio.run(store.get("n")) == len(asyncio.run(store.get("list"))) == 100


async def test_a_file_in_memory_is_one_of_this_store() -> None:
    store = SqliteStateStore(":memory:")
    await asyncio.gather(*(store.increment("n") for _ in range(5)))
    assert await store.get("n") == 5
    assert not await SqliteStateStore(":memory:").exists("n")


def _work(where: Where, number: int, results: Any) -> None:
    kind, named = where

    async def one(store: Any, turn: int) -> int:
        await store.append("list", f"{number}/{turn}")
        await store.increment("n")
        return int(await store.compare_and_set(f"first{turn}", MISSING, number))

    async def run() -> int:
        store = StateStoreFactory.create(kind, **named)
        return sum(await asyncio.gather(*(one(store, turn) for turn in range(25))))

    results.put(asyncio.run(run()))


@pytest.mark.row("G1")
@pytest.mark.sampled(0.34)
def test_four_processes_lose_nothing(shared: Where) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [context.Process(target=_work, args=(shared, n, results)) for n in range(4)]
    for worker in workers:
        worker.start()
    won = sum(results.get(timeout=300) for _ in workers)
    for worker in workers:
        worker.join()

    async def found() -> tuple[Any, Any]:
        store = StateStoreFactory.create(shared[0], **shared[1])
        return await store.get("list"), await store.get("n")

    items, count = asyncio.run(found())
    assert won == 25  # each of the firsts went to one process
    assert (len(set(items)), len(items), count) == (100, 100, 100)


async def test_cancellation_leaves_the_store_consistent(store: Any) -> None:
    async def add() -> None:
        await store.append("list", 1)

    tasks = [asyncio.create_task(add()) for _ in range(10)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await store.append("list", 2)
    assert (await store.get("list"))[-1] == 2
