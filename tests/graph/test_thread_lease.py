"""One run of a thread at a time, whatever graphs, savers and outer graphs there are."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from capgraph import BaseCapability, capability_node
from capgraph.base import PersistenceError
from capgraph.base.errors import ThreadBusyError
from capgraph.stores import Persistence, open_saver
from capgraph.stores.leases import LeaseOwner
from tests.support.doors import Gauge, soon, status

pytestmark = pytest.mark.may_block


@pytest.fixture
async def other(path: Path) -> AsyncIterator[Any]:
    async with open_saver(f"sqlite:///{path}") as opened:
        yield opened


def doing(name: str, work: Callable[[], Awaitable[Any]]) -> Any:
    """A capability that does what a test says."""

    class Does(BaseCapability):
        description = f"Does {name}"

        async def execute(self) -> dict[str, Any]:
            await work()
            return {}

    Does.name = name
    return capability_node(Does)


def holders(path: Path) -> list[tuple[str, float]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT thread_id, beat FROM capgraph_leases").fetchall()
    finally:
        connection.close()


class Gate:
    """Stops a run in the middle."""

    def __init__(self) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self.open.wait()


@pytest.mark.parametrize("kind", ["one saver", "two savers", "memory"])
async def test_a_graph_for_each_request_is_told(
    agent: Any, step: Any, saver: Any, path: Path, kind: str
) -> None:
    gate, plan = Gate(), [[step("a", "wait")]]
    async with open_saver(f"sqlite:///{path}") as other:
        places = {
            "one saver": (saver, saver),
            "two savers": (saver, other),
            "memory": (InMemorySaver(),) * 2,
        }[kind]
        first, second = (agent(doing("wait", gate), plans=plan, checkpointer=p) for p in places)
        run = asyncio.create_task(first.ask())
        await gate.reached.wait()
        with pytest.raises(ThreadBusyError, match="is already running in process"):
            await second.ask("Something else")
        with pytest.raises(ThreadBusyError):
            await second.graph.aupdate_state(second.config(), {"task_current_task": "x"})
        if kind != "two savers":
            with pytest.raises(ThreadBusyError):
                second.graph.update_state(second.config(), {"task_current_task": "x"})
        gate.open.set()
        assert (await run)["execution_outcome"]["status"] == "completed"
        assert len((await second.ask())["messages"]) == 4, "the refused message left no trace"
        await second.graph.aupdate_state(second.config(), {"task_current_task": "x"})


async def test_two_savers_in_memory_are_two_worlds(agent: Any, step: Any) -> None:
    gate, plan = Gate(), [[step("a", "wait")]]
    made = [agent(doing("wait", gate), plans=plan, checkpointer=InMemorySaver()) for _ in "ab"]
    runs = [asyncio.create_task(one.ask()) for one in made]
    await gate.reached.wait()
    gate.open.set()
    assert [out["execution_outcome"]["status"] for out in await asyncio.gather(*runs)] == [
        "completed",
        "completed",
    ]


async def test_nothing_keeps_a_saver(agent: Any, step: Any) -> None:
    place = InMemorySaver()
    made = agent(
        doing("work", lambda: asyncio.sleep(0)), plans=[[step("a", "work")]], checkpointer=place
    )
    await made.ask()
    gone = weakref.ref(place)
    del made, place
    gc.collect()
    assert gone() is None


async def test_the_heart_beats_while_a_capability_blocks_the_loop(
    agent: Any, step: Any, saver: Any, path: Path
) -> None:
    beats: list[float] = []

    async def block() -> None:
        (first,) = holders(path)
        wait = threading.Event()
        for _ in range(3000):
            wait.wait(0.01)  # the loop does nothing else meanwhile
            (now,) = holders(path)
            if now[1] > first[1]:
                beats.append(now[1])
                return

    made = agent(doing("block", block), plans=[[step("a", "block")]], checkpointer=saver)
    Persistence.of(saver).leases.heartbeat_seconds = 0.01
    assert (await made.ask())["execution_outcome"]["status"] == "completed"
    assert beats
    assert holders(path) == []


async def test_a_heart_that_finds_another_owner_stops_the_effects(saver: Any) -> None:
    leases = Persistence.of(saver).leases
    leases.heartbeat_seconds = 0.01
    lease = await leases.acquire("1")
    await saver.conn.execute("UPDATE capgraph_leases SET owner = 'another'")
    await saver.conn.commit()
    while not lease.is_lost:
        await asyncio.sleep(0.01)
    with pytest.raises(PersistenceError, match="has taken over"):
        await leases.confirm("1")
    await leases.release(lease)


@pytest.mark.row("T13")
async def test_a_run_of_another_machine_is_over_when_it_stays_late_or_lost_its_thread(
    saver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases, now = Persistence.of(saver).leases, [0.0]
    monkeypatch.setattr(leases, "_now", lambda: now[0])
    run = LeaseOwner("o", "elsewhere", "1|2")
    assert await leases.has_ended(run), "it gave its thread back"
    insert = "INSERT INTO capgraph_leases VALUES ('1', 'o', 'elsewhere', '1|2', {now})"
    rows: Any = Persistence.of(saver).tables
    await rows.run(insert)
    for beats, wait, over in ((0, 0, False), (100, 0, False), (0, 14, False), (0, 2, True)):
        now[0] += wait
        await rows.run(f"UPDATE capgraph_leases SET beat = beat - {beats}")
        assert await leases.has_ended(run) is over, (beats, wait)
    await rows.run("UPDATE capgraph_leases SET beat = {now}")
    assert not await leases.has_ended(run), "it beats again"
    assert not await leases.has_ended(LeaseOwner("", "elsewhere", "1|2")), "nobody can say"


async def test_a_lease_is_taken_while_the_default_pool_is_full(
    saver: Any, other: Any, path: Path
) -> None:
    done, pool = threading.Event(), ThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(pool)
    stuck = loop.run_in_executor(None, done.wait)
    leases = Persistence.of(saver).leases
    try:
        lease = await leases.acquire("1")
        with pytest.raises(ThreadBusyError):
            await Persistence.of(other).leases.acquire("1")
        await leases.release(lease)
    finally:
        done.set()
        await stuck
        pool.shutdown()
    assert holders(path) == []


# --- agents inside other graphs ------------------------------------------------------------


class Outer(TypedDict, total=False):
    messages: list[Any]


async def test_agents_in_one_step_of_an_outer_graph_share_its_lease(
    agent: Any, step: Any, saver: Any, path: Path
) -> None:
    gates, ended = (Gate(), Gate()), (asyncio.Event(), asyncio.Event())
    inner = [agent(doing("wait", gate), plans=[[step("a", "wait")]]) for gate in gates]
    builder = StateGraph(Outer)
    for name, made, end in zip("ab", inner, ended, strict=True):

        async def call(state: Outer, graph: Any = made.graph, end: Any = end) -> dict[str, Any]:
            await graph.ainvoke({"messages": state["messages"]})
            end.set()
            return {}

        builder.add_node(name, call)
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    graph = builder.compile(checkpointer=saver)
    run = asyncio.create_task(graph.ainvoke({"messages": [("user", "Do it")]}, inner[0].config()))
    for gate in gates:
        await gate.reached.wait()
    assert [thread for thread, _ in holders(path)] == ["1"]
    async with open_saver(f"sqlite:///{path}") as other:
        later = agent(doing("wait", Gate()), plans=[[step("a", "wait")]], checkpointer=other)
        with pytest.raises(ThreadBusyError):
            await later.ask()
    gates[0].open.set()
    await ended[0].wait()
    assert [thread for thread, _ in holders(path)] == ["1"], "the other one still runs"
    gates[1].open.set()
    await run
    assert holders(path) == []


async def test_an_agent_inside_a_capability_shares_the_lease_or_has_its_own(
    agent: Any, step: Any, saver: Any, path: Path
) -> None:
    seen: dict[str, Any] = {}
    inner = agent(
        doing("look", lambda: _look(seen, path)), plans=[[step("a", "look")]], checkpointer=saver
    )
    question = {"messages": [("user", "Inside")]}

    async def nested() -> None:
        await inner.graph.ainvoke(question)
        seen["shared"] = seen.pop("now")
        await inner.graph.ainvoke(question, inner.config("2"))
        seen["own"] = seen.pop("now")
        with pytest.raises(ThreadBusyError):
            await inner.graph.ainvoke(question, inner.config("1"))

    outer = agent(doing("nest", nested), plans=[[step("a", "nest")]], checkpointer=saver)
    out = await outer.ask()
    assert out["execution_outcome"]["status"] == "completed", out["messages"][-1].content
    assert seen == {"shared": ["1"], "own": ["1", "2"]}
    assert holders(path) == []


async def _look(seen: dict[str, Any], path: Path) -> None:
    seen["now"] = sorted(thread for thread, _ in holders(path))


# --- two graphs over one thread --------------------------------------------------------------------


async def _second_is_refused(agent: Any, step: Any, first_saver: Any, second_saver: Any) -> None:
    inside, free, ran = asyncio.Event(), asyncio.Event(), []

    @capability_node
    async def work() -> Gauge:
        """Work."""
        ran.append(1)
        inside.set()
        await free.wait()
        return Gauge(value=1)

    def graph(saver: Any) -> Any:
        return agent(Gauge, work, plans=[[step("a", "work")]], checkpointer=saver)

    first, second = graph(first_saver), graph(second_saver)
    running = asyncio.ensure_future(first.ask(thread="t"))
    await soon(inside.wait())
    for _ in range(2):
        with pytest.raises(PersistenceError, match="'t'"):
            await soon(second.ask("Me too", thread="t"))
        with pytest.raises(PersistenceError):
            await soon(graph(second_saver).ask("And I", thread="t"))
    assert len(ran) == 1
    free.set()
    assert status(await soon(running)) == "completed", "the first one notices nothing"
    assert status(await soon(second.ask("Now me", thread="t"))) == "completed"
    out = await soon(second.ask("Elsewhere", thread="other"))
    assert status(out) == "completed"


async def test_two_graphs_over_one_saver_in_memory(agent: Any, step: Any) -> None:
    saver = InMemorySaver()
    await _second_is_refused(agent, step, saver, saver)


@pytest.mark.may_block
async def test_two_graphs_over_one_sqlite_saver(agent: Any, step: Any, tmp_path: Any) -> None:
    async with open_saver(f"sqlite:///{tmp_path}/threads.db") as saver:
        await _second_is_refused(agent, step, saver, saver)


@pytest.mark.may_block
async def test_two_graphs_over_two_savers_of_one_file(agent: Any, step: Any, tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    async with open_saver(url) as one, open_saver(url) as other:
        await _second_is_refused(agent, step, one, other)


async def test_two_savers_in_memory_are_two_places(agent: Any, step: Any) -> None:
    """The same thread id in another saver is another thread."""
    inside, free = asyncio.Event(), asyncio.Event()

    @capability_node
    async def work() -> Gauge:
        """Work."""
        inside.set()
        await free.wait()
        return Gauge(value=1)

    def graph() -> Any:
        return agent(Gauge, work, plans=[[step("a", "work")]], checkpointer=InMemorySaver())

    running = asyncio.ensure_future(graph().ask(thread="t"))
    await soon(inside.wait())
    free.set()
    assert status(await soon(graph().ask(thread="t"))) == "completed"
    assert status(await soon(running)) == "completed"
