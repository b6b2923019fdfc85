"""Snapshots of agents in a state store, a LangGraph store and a saver."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import interrupt

from capgraph.base import PersistenceError
from capgraph.base.errors import ConfigurationError, ValidationError
from capgraph.stores import (
    BaseStateStore,
    Checkpoint,
    CheckpointManager,
    InMemoryStateStore,
    SqliteStateStore,
    list_threads,
    open_saver,
    open_store,
    prune_threads,
)

pytestmark = [pytest.mark.may_block, pytest.mark.timeout(900)]


_SERVED = [
    pytest.param(kind, marks=pytest.mark.service) for kind in ("store server", "saver server")
]


@pytest.fixture(
    params=[
        *("state", "state file", "store", "store file", "saver", "saver file", "encrypted"),
        *_SERVED,
    ]
)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    url = f"sqlite:///{tmp_path}/kept.db"
    if request.param.endswith(" server"):
        url = request.getfixturevalue("server").database()
    if request.param.startswith("store "):
        async with open_store(url) as opened:
            yield opened
    elif request.param.startswith("saver ") or request.param == "encrypted":
        key = "0123456789abcdef" if request.param == "encrypted" else None
        async with open_saver(url, encryption_key=key) as saver:
            yield saver
    else:
        made: Any = {"state": InMemoryStateStore, "store": InMemoryStore, "saver": InMemorySaver}
        made["state file"] = lambda: SqliteStateStore(tmp_path / "kept.db")
        yield made[request.param]()


@pytest.fixture
def manager(store: Any) -> CheckpointManager:
    return CheckpointManager(store)


@pytest.mark.row("G6")
async def test_the_methods_of_a_manager(manager: CheckpointManager) -> None:
    first = await manager.save("pilot", {"n": 1}, execution_id="run 1")
    second = await manager.save("pilot", {"n": 2}, execution_id="run 1", metadata={"by": "hand"})
    other = await manager.save("other", {"n": 3}, execution_id="run/1.x")
    alone = await manager.save("pilot", {"n": 4})
    found = await manager.load(first)
    assert isinstance(found, Checkpoint)
    assert (found.checkpoint_id, found.agent_id, found.state) == (first, "pilot", {"n": 1})
    assert [c.checkpoint_id for c in await manager.list("pilot")] == [first, second, alone]
    assert [c.state["n"] for c in await manager.list_by_execution("run 1")] == [1, 2]
    assert [c.checkpoint_id for c in await manager.list_by_execution("run/1.x")] == [other]
    latest = await manager.load_latest_for_execution("run 1")
    assert latest is not None
    assert (latest.checkpoint_id, latest.metadata) == (second, {"by": "hand"})
    assert Checkpoint.from_dict(latest.to_dict()) == latest
    await manager.delete(second, "pilot")
    await manager.delete(second, "pilot")
    assert await manager.load(second) is None
    assert [c.checkpoint_id for c in await manager.list("pilot")] == [first, alone]
    assert [c.checkpoint_id for c in await manager.list_by_execution("run 1")] == [first]
    latest = await manager.load_latest_for_execution("run 1")
    assert latest is not None
    assert latest.checkpoint_id == first


async def test_loading_a_missing_snapshot_returns_none(manager: CheckpointManager) -> None:
    assert await manager.load("unknown") is None
    assert await manager.load("unknown@thread") is None
    assert await manager.list("nobody") == []
    assert await manager.load_latest_for_execution("never") is None
    await manager.delete("unknown", "nobody")


@pytest.mark.row("G6")
async def test_saves_at_once_lose_nothing(manager: CheckpointManager) -> None:
    names = await asyncio.gather(*(manager.save("pilot", {"n": n}, "run") for n in range(40)))
    assert {c.checkpoint_id for c in await manager.list("pilot")} == set(names)
    assert len(await manager.list_by_execution("run")) == 40
    await asyncio.gather(*(manager.delete(name, "pilot") for name in names[:39]))
    left = [names[39]]
    assert [c.checkpoint_id for c in await manager.list("pilot")] == left
    assert [c.checkpoint_id for c in await manager.list_by_execution("run")] == left


async def test_names_with_a_common_prefix_are_distinct(manager: CheckpointManager) -> None:
    for agent in ("a", "a/b", "ab", "A", "a%", "ä.b"):
        await manager.save(agent, {"agent": agent}, agent)
    for agent in ("a", "a/b", "ab", "A", "a%", "ä.b"):
        assert [c.state["agent"] for c in await manager.list(agent)] == [agent]
        assert [c.state["agent"] for c in await manager.list_by_execution(agent)] == [agent]


async def test_state_that_is_not_plain_data_is_rejected_with_its_path(
    manager: CheckpointManager,
) -> None:
    with pytest.raises(ValidationError, match=r"state\.at\[0\]"):
        await manager.save("pilot", {"at": [datetime.datetime(2026, 1, 1)]})
    with pytest.raises(ValidationError, match=r"metadata\.pair"):
        await manager.save("pilot", {}, metadata={"pair": (1, 2)})
    assert await manager.list("pilot") == []


async def test_a_snapshot_is_a_copy(manager: CheckpointManager) -> None:
    state = {"steps": [1]}
    name = await manager.save("pilot", state)
    state["steps"].append(2)
    found = await manager.load(name)
    assert found is not None
    found.state["steps"].append(3)
    again = await manager.load(name)
    assert again is not None
    assert again.state == {"steps": [1]}


async def test_another_agents_is_not_taken_away(manager: CheckpointManager) -> None:
    name = await manager.save("pilot", {})
    with pytest.raises(ValidationError, match="'pilot'"):
        await manager.delete(name, "other")
    assert await manager.load(name) is not None


def _place(store: Any, folder: Path) -> dict[str, Any]:
    return {"path": folder / "timed.db"} if isinstance(store, SqliteStateStore) else {}


@pytest.mark.row("G6")
async def test_all_of_a_snapshot_ends_with_its_time(store: Any, tmp_path: Path) -> None:
    seconds = [1000.0]
    if isinstance(store, BaseCheckpointSaver):
        with pytest.raises(ConfigurationError, match="saver"):
            await CheckpointManager(store, default_ttl=10).save("pilot", {})
        return
    if isinstance(store, BaseStateStore):
        kind: Any = type(store)
        store = kind(**_place(store, tmp_path), clock=lambda: seconds[0])
    manager = CheckpointManager(store, default_ttl=10, clock=lambda: seconds[0])
    short = await manager.save("pilot", {"n": 1}, "run")
    long = await manager.save("pilot", {"n": 2}, "run", ttl=100)
    seconds[0] += 11
    assert await manager.load(short) is None
    assert [c.checkpoint_id for c in await manager.list("pilot")] == [long]
    seconds[0] += 100
    assert await manager.list("pilot") == await manager.list_by_execution("run") == []
    assert await manager.load_latest_for_execution("run") is None
    if isinstance(store, BaseStateStore):
        assert await store.entries() == {}


@pytest.mark.row("G6")
async def test_the_newest_is_found_without_loading_the_others() -> None:
    loaded = []

    class Watched(InMemoryStateStore):
        async def get(self, key: str, default: Any = None) -> Any:
            loaded.append(key)
            return await super().get(key, default)

    manager = CheckpointManager(Watched())
    for n in range(20):
        await manager.save("pilot", {"n": n}, "run")
    latest = await manager.load_latest_for_execution("run")
    assert latest is not None
    assert (latest.state, len(loaded)) == ({"n": 19}, 1)


def test_an_unsupported_store_is_rejected() -> None:
    wrong: Any = {}
    with pytest.raises(ConfigurationError):
        CheckpointManager(wrong)


# --- with a saver ---------------------------------------------------------------------------------


class Work(TypedDict, total=False):
    task: str
    output: str


RUNS: list[str] = []


def _graph(saver: Any) -> Any:
    def first(state: Work) -> Work:
        RUNS.append("first")
        return {"output": "half"}

    def second(state: Work) -> Work:
        return {"output": f"{state['output']} and {interrupt('Go on?')}"}

    graph = StateGraph(Work)
    graph.add_sequence([first, second]).set_entry_point("first")
    return graph.compile(checkpointer=saver)


@pytest.mark.row("G6")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_with_a_saver_snapshots_are_the_graphs_checkpoints(kind: str, tmp_path: Path) -> None:
    from langgraph.types import Command

    RUNS.clear()
    async with open_saver(f"sqlite:///{tmp_path}/kept.db") as file:
        saver = file if kind == "sqlite" else InMemorySaver()
        manager = CheckpointManager(saver)
        assert manager.saver is saver
        config: Any = {"configurable": {"thread_id": "run"}, "metadata": {"agent_id": "pilot"}}
        await _graph(saver).ainvoke({"task": "Fly"}, config)
        await manager.save("pilot", {"note": "by hand"}, "run")
        latest = await manager.load_latest_for_execution("run")
        assert latest is not None
        assert latest.state == {"task": "Fly", "output": "half"}
        assert (latest.agent_id, latest.execution_id) == ("pilot", "run")
        out = await _graph(manager.saver).ainvoke(Command(resume="whole"), config)
        assert (out["output"], RUNS) == ("half and whole", ["first"])
        kept = await manager.list_by_execution("run")
        assert [c.state.get("output") for c in kept if "task" in c.state][-2:] == [
            "half",
            "half and whole",
        ]
        assert [c.checkpoint_id for c in await manager.list("pilot")] == [
            c.checkpoint_id for c in kept
        ]
        same = await manager.load(kept[-1].checkpoint_id)
        assert same is not None
        assert same.state == kept[-1].state
        with pytest.raises(PersistenceError, match="history"):
            await manager.delete(latest.checkpoint_id, "pilot")


async def test_a_manual_snapshot_is_deleted_with_its_thread(
    tmp_path: Path,
) -> None:
    async with open_saver(f"sqlite:///{tmp_path}/kept.db") as saver:
        manager = CheckpointManager(saver)
        await manager.save("pilot", {"n": 1}, "run")
        await manager.save("pilot", {"n": 2})
        assert await list_threads(saver) == []
        config: Any = {"configurable": {"thread_id": "run"}}
        await _graph(saver).ainvoke({"task": "Fly"}, config)
        assert len(await manager.list_by_execution("run")) > 2
        await prune_threads(saver, ["run"], policy="delete")
        assert [c.state for c in await manager.list("pilot")] == [{"n": 2}]
