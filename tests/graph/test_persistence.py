"""Threads that outlive their process: savers by URL, leases, waits, old state, forks, pruning."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from langgraph.types import Command

from capgraph import BaseCapability, CapabilityContext, Registry, bind, capability_node
from capgraph.adapters import as_mcp_server
from capgraph.agents import ReActAgent
from capgraph.base import (
    CapabilityError,
    ConfigurationError,
    ErrorSeverity,
    MissingExtraError,
    PersistenceError,
)
from capgraph.configs.settings import load_settings
from capgraph.graph import build_graph, open_graph
from capgraph.stores import (
    fork_thread,
    list_threads,
    open_saver,
    open_store,
    prune_threads,
    thread_summary,
)
from capgraph.testing import ScriptedModel

KEY = "0123456789abcdef"
pytestmark = pytest.mark.may_block


class Note(CapabilityContext):
    text: str

    def get_summary(self) -> str:
        return self.text


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def gate() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def tools(log: list[str], gate: asyncio.Event) -> list[Any]:
    @capability_node
    class Write(BaseCapability):
        name = "write"
        description = "Write a note"
        provides = ["NOTE"]
        effect = "once"

        async def execute(self) -> Note:
            log.append(self.step["context_key"])
            return Note(text="A very secret note")

    @capability_node
    class Wait(BaseCapability):
        name = "wait"
        description = "Wait"

        async def execute(self) -> dict[str, Any]:
            log.append("waiting")
            await gate.wait()
            return {}

    @capability_node
    class Ask(BaseCapability):
        name = "ask"
        description = "Ask"
        requires_approval = True

        async def execute(self) -> dict[str, Any]:
            log.append("asked")
            return {}

    return [Note, Write, Wait, Ask]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/threads.db"


@pytest.fixture
async def saver(url: str) -> AsyncIterator[Any]:
    async with open_saver(url) as opened:
        yield opened


# --- opening -------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["threads.db", "mysql://x", "sqlite:x", "", "sqlite:///"])
async def test_a_url_that_names_no_database_is_refused(bad: str) -> None:
    with pytest.raises(ConfigurationError, match="Invalid database URL"):
        async with open_saver(bad):
            pass


@pytest.mark.parametrize("opens", [open_saver, open_store])
async def test_a_database_that_cannot_be_reached_stops_the_start(
    tmp_path: Path, opens: Any
) -> None:
    nothing = tmp_path / "text.db"
    nothing.write_text("This is no database, however long it is. " * 50)
    for where in (
        f"sqlite:///{tmp_path}/missing/threads.db",
        f"sqlite:///{nothing}",
        f"postgresql://me:hidden@/none?host={tmp_path}",
    ):
        with pytest.raises(PersistenceError) as caught:
            async with opens(where):
                pass
        assert "hidden" not in str(caught.value)
        assert "Fix:" in str(caught.value)


async def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setitem(sys.modules, "langgraph.checkpoint.sqlite.aio", None)
    with pytest.raises(MissingExtraError, match=r"capgraph\[sqlite\]"):
        async with open_saver(url):
            pass


async def test_no_url_is_no_saver() -> None:
    async with open_saver(None) as nothing:
        assert nothing is None


@pytest.mark.parametrize("key", ["short", b"x" * 17])
async def test_a_key_of_the_wrong_length_is_refused(url: str, key: Any) -> None:
    with pytest.raises(ConfigurationError, match="bytes"):
        async with open_saver(url, encryption_key=key):
            pass


async def test_what_is_saved_can_be_encrypted(
    agent: Any, tools: list[Any], step: Any, url: str, tmp_path: Path
) -> None:
    async with open_saver(url, encryption_key=KEY) as opened:
        made = agent(*tools, plans=[[step("a", "write")]], checkpointer=opened)
        await made.ask("Where is the hidden treasure?")
        assert (await thread_summary(opened, "1")).task == "Where is the hidden treasure?"
    data = b"".join(path.read_bytes() for path in tmp_path.glob("threads.db*"))
    assert b"treasure" not in data
    assert b"secret note" not in data
    for wrong in ("fedcba9876543210", None):
        async with open_saver(url, encryption_key=wrong) as opened:
            with pytest.raises(PersistenceError, match="cannot be read"):
                await thread_summary(opened, "1")


async def test_open_graph_takes_url_and_key_from_the_settings(url: str) -> None:
    settings = load_settings(persistence={"url": url, "encryption_key": KEY})
    config = {"configurable": {"thread_id": "1"}}
    async with open_graph(Registry(), settings=settings) as graph:
        await graph.ainvoke({"messages": [("user", "Hello")]}, config)
    async with open_graph(Registry(), settings=settings) as graph:
        state = await graph.aget_state(config)
        assert state.values["messages"][0].content == "Hello"
        assert graph.store is not None


# --- one run of a thread -------------------------------------------------------------------


async def test_a_second_run_of_a_thread_is_told(
    agent: Any, tools: list[Any], step: Any, saver: Any, gate: asyncio.Event, log: list[str]
) -> None:
    for place in (saver, InMemorySaver()):
        made = agent(*tools, plans=[[step("a", "wait")]], checkpointer=place)
        log.clear()
        gate.clear()
        first = asyncio.create_task(made.ask())
        while not log:
            await asyncio.sleep(0.005)
        with pytest.raises(PersistenceError, match="is already running"):
            await made.ask("Something else")
        gate.set()
        assert (await first)["execution_outcome"]["status"] == "completed"
        assert len((await made.ask())["messages"]) == 4, "the refused message left no trace"


async def test_a_waiting_run_holds_nothing(
    agent: Any, tools: list[Any], step: Any, saver: Any, url: str
) -> None:
    made = agent(*tools, plans=[[step("a", "ask")]], checkpointer=saver)
    assert "__interrupt__" in await made.ask()
    assert (await thread_summary(saver, "1")).status == "waiting"
    async with open_saver(url) as other:  # another process would do the same
        later = agent(*tools, plans=[[step("a", "ask")]], checkpointer=other)
        out = await later.graph.ainvoke(Command(resume="approve"), later.config())
    assert out["execution_outcome"]["status"] == "completed"


async def test_who_lost_its_lease_begins_no_effect(
    agent: Any, tools: list[Any], step: Any, saver: Any, gate: asyncio.Event, log: list[str]
) -> None:
    plan = [step("a", "wait"), step("b", "write", NOTE="x")]
    plan[1]["inputs"] = []
    made = agent(*tools, plans=[plan], checkpointer=saver, limits={"max_parallel": 1})
    run = asyncio.create_task(made.ask())
    while not log:
        await asyncio.sleep(0.005)
    await saver.conn.execute("UPDATE capgraph_leases SET owner = 'another'")
    await saver.conn.commit()
    gate.set()
    with pytest.raises(PersistenceError, match="Another process has taken over"):
        await run
    assert log == ["waiting"]


# --- ends and beginnings -------------------------------------------------------------------


async def test_cancelling_leaves_a_thread_that_goes_on(
    agent: Any, tools: list[Any], step: Any, saver: Any, gate: asyncio.Event, log: list[str]
) -> None:
    plan = [step("a", "write"), step("b", "wait", NOTE="a")]
    made = agent(*tools, plans=[plan], checkpointer=saver)
    run = asyncio.create_task(made.ask())
    while "waiting" not in log:
        await asyncio.sleep(0.005)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    summary = await thread_summary(saver, "1")
    assert (summary.status, summary.reason) == ("cancelled", "The run was cancelled.")
    gate.set()
    out = await made.graph.ainvoke(None, made.config())
    assert out["execution_outcome"]["status"] == "completed"
    assert log == ["a", "waiting", "waiting"], "what had finished was not run again"
    assert (await thread_summary(saver, "1")).status == "completed"


async def test_a_wait_is_resumed_and_the_count_is_kept(agent: Any, step: Any, saver: Any) -> None:
    tries: list[int] = []
    asleep = asyncio.Event()

    @capability_node
    class Flaky(BaseCapability):
        name = "flaky"
        description = "Fails"

        async def execute(self) -> dict[str, Any]:
            tries.append(self.attempt)
            raise CapabilityError("Not now.", severity=ErrorSeverity.RETRIABLE)

        @staticmethod
        def get_retry_policy() -> dict[str, Any]:
            return {"max_attempts": 3, "delay_seconds": 10.0, "backoff_factor": 1.0}

    class Stuck:
        def __init__(self, clock: Any) -> None:
            self._clock = clock

        def __getattr__(self, name: str) -> Any:
            return getattr(self._clock, name)

        async def sleep(self, seconds: float) -> None:
            asleep.set()
            await asyncio.sleep(3600)

    first = agent(Flaky, plans=[[step("a", "flaky")]], checkpointer=saver)
    clock = first.clock
    first = agent(Flaky, plans=[[step("a", "flaky")]], checkpointer=saver, clock=Stuck(clock))
    run = asyncio.create_task(first.ask())
    await asleep.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    clock.advance(6.0)
    second = agent(Flaky, plans=[[step("a", "flaky")]], checkpointer=saver, clock=clock)
    out = await second.graph.ainvoke(None, second.config())
    assert tries == [1, 2, 3]
    assert out["execution_outcome"]["status"] == "failed"
    assert 3.0 < clock.sleeps[0] < 6.0, "only what was left of the first wait"
    assert clock.sleeps[1] >= 10.0


async def test_waiting_for_a_person_is_not_running(
    agent: Any, tools: list[Any], step: Any, saver: Any
) -> None:
    limits = {"run_timeout_seconds": 60}
    made = agent(*tools, plans=[[step("a", "ask")]], checkpointer=saver, limits=limits)
    await made.ask()
    made.clock.advance(86_400)
    out = await made.graph.ainvoke(Command(resume="approve"), made.config())
    assert out["execution_outcome"]["status"] == "completed"


async def test_the_same_step_in_the_next_turn_is_done_again(
    agent: Any, tools: list[Any], step: Any, saver: Any, log: list[str]
) -> None:
    made = agent(*tools, plans=[[step("a", "write")]], checkpointer=saver)
    await made.ask()
    await made.ask()
    assert log == ["a", "a"]


async def test_an_effect_is_not_repeated_by_time_travel(
    agent: Any, tools: list[Any], step: Any, saver: Any, log: list[str]
) -> None:
    made = agent(*tools, plans=[[step("a", "write")]], checkpointer=saver)
    await made.ask()
    history = [item async for item in made.graph.aget_state_history(made.config())]
    (before,) = [item for item in history if item.next == ("router",)]
    out = await made.graph.ainvoke(None, before.config)
    assert out["execution_outcome"]["status"] == "completed"
    assert log == ["a"]


# --- state of other versions ---------------------------------------------------------------


async def test_state_of_an_older_version_still_loads(
    agent: Any, tools: list[Any], step: Any, saver: Any
) -> None:
    made = agent(*tools, plans=[[step("a", "ask")]], checkpointer=saver)
    await made.ask()
    config = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
    found = await saver.aget_tuple(config)
    values = found.checkpoint["channel_values"]
    values["a_key_that_is_gone"] = {"old": True}
    for name in ("approval_decisions", "control_routing_count", "execution_step_results"):
        values.pop(name, None)
        found.checkpoint["channel_versions"].pop(name, None)
    values["runtime_info"] = {"turn": 1}
    await saver.aput(config, found.checkpoint, found.metadata, {})
    out = await made.graph.ainvoke(Command(resume="approve"), made.config())
    assert out["execution_outcome"]["status"] == "completed"


async def test_context_that_no_longer_fits_is_named(
    agent: Any, tools: list[Any], step: Any, saver: Any
) -> None:
    await agent(*tools, plans=[[step("a", "write")]], checkpointer=saver).ask()

    class Note(CapabilityContext):  # the next version of the type
        text: str
        author: str

    @capability_node
    class Read(BaseCapability):
        name = "read"
        description = "Read a note"
        requires = ["NOTE"]

        async def execute(self) -> dict[str, Any]:
            return {}

    plan = [step("b", "read", NOTE="a")]
    made = agent(Note, Read, plans=[plan], checkpointer=saver, given=["NOTE"])
    out = await made.ask()
    assert out["execution_outcome"]["status"] == "failed"
    assert "NOTE.a is not a valid Note: author: Field required" in out["messages"][-1].content


# --- looking after threads -----------------------------------------------------------------


async def test_threads_are_listed_described_and_pruned(
    agent: Any, tools: list[Any], step: Any, saver: Any
) -> None:
    plan = [step("a", "write"), step("b", "ask", NOTE="a")]
    made = agent(*tools, plans=[plan], checkpointer=saver)
    await made.ask("First", thread="1")
    await made.ask("Second", thread="2")
    await made.graph.ainvoke(Command(resume="approve"), made.config("2"))
    found = {item.thread_id: item for item in await list_threads(saver)}
    assert [item.thread_id for item in await list_threads(saver)] == ["2", "1"]
    assert (found["1"].status, found["1"].done, found["1"].missing) == ("waiting", ("a",), ("b",))
    assert (found["2"].status, found["2"].turns, found["2"].task) == ("completed", 1, "Second")
    assert await prune_threads(saver, ["2", "1"]) == ["2", "1"]
    kept = [item async for item in saver.alist(made.config("1"))]
    assert sum(not item.config["configurable"]["checkpoint_ns"] for item in kept) == 1
    out = await made.graph.ainvoke(Command(resume="approve"), made.config("1"))
    assert out["execution_outcome"]["status"] == "completed", "pruning keeps what it needs"
    no_age = timedelta(0)
    await made.ask("Third", thread="3")
    assert sorted(await prune_threads(saver, policy="older_than", older_than=no_age)) == ["1", "2"]
    assert await prune_threads(saver, ["3"], policy="delete") == ["3"]
    assert await list_threads(saver) == []


@pytest.mark.parametrize(
    ("names", "how"),
    [
        ("123", {"policy": "delete"}),  # no list of the threads 1, 2 and 3
        (["1"], {"policy": "drop"}),
        (["1"], {"policy": "keep", "keep_turns": 0}),
        (["1"], {"policy": "older_than", "older_than": timedelta(days=-1)}),
        (["1"], {"policy": "older_than", "older_than": "30d"}),
    ],
)
async def test_what_is_not_understood_prunes_nothing(agent: Any, names: Any, how: Any) -> None:
    made = agent(checkpointer=InMemorySaver())
    await made.ask("First", thread="1")
    with pytest.raises((ConfigurationError, ValueError)):
        await prune_threads(made.graph.checkpointer, names, **how)
    assert [item.thread_id for item in await list_threads(made.graph.checkpointer)] == ["1"]


async def test_a_fork_goes_on_by_itself_and_repeats_nothing(
    agent: Any, tools: list[Any], step: Any, saver: Any, log: list[str]
) -> None:
    plan = [step("a", "write"), step("b", "ask", NOTE="a")]
    made = agent(*tools, plans=[plan], checkpointer=saver)
    await made.ask()
    await fork_thread(saver, "1", "2")
    await made.graph.ainvoke(None, made.config("2"))  # the fork asks again
    for thread in ("2", "1"):
        out = await made.graph.ainvoke(Command(resume="approve"), made.config(thread))
        assert out["execution_outcome"]["status"] == "completed"
    assert log == ["a", "asked", "asked"]
    with pytest.raises(PersistenceError, match="'2' already exists"):
        await fork_thread(saver, "1", "2")
    with pytest.raises(PersistenceError, match="does not exist"):
        await fork_thread(saver, "zz", "3")


async def test_a_damaged_checkpoint_is_an_error_that_says_so(
    agent: Any, tools: list[Any], step: Any, url: str, tmp_path: Path
) -> None:
    async with open_saver(url) as opened:
        await agent(*tools, plans=[[step("a", "write")]], checkpointer=opened).ask()
    with sqlite3.connect(tmp_path / "threads.db") as connection:
        connection.execute("UPDATE checkpoints SET checkpoint = x'c1ff00'")
    connection.close()
    async with open_saver(url) as opened:
        made = agent(*tools, plans=[[step("a", "write")]], checkpointer=opened)
        with pytest.raises(PersistenceError, match="cannot be read"):
            await made.ask()


def test_a_configured_database_is_refused_where_nothing_opens_it(url: str) -> None:
    settings = load_settings(persistence={"url": url})
    with pytest.raises(ConfigurationError, match="open_graph"):
        build_graph(Registry(), settings=settings)
    build_graph(Registry(), checkpointer=InMemorySaver(), settings=settings)


def test_synchronous_savers_are_refused_when_the_graph_is_built() -> None:
    with sqlite3.connect(":memory:") as connection:
        for saver in (SqliteSaver(connection), PostgresSaver(cast("Any", None))):
            with pytest.raises(ConfigurationError, match="open_graph"):
                build_graph(Registry(), checkpointer=saver)
            with pytest.raises(ConfigurationError, match="open_graph"):
                bind(Registry(), checkpointer=saver)
            with pytest.raises(ConfigurationError, match="open_graph"):
                as_mcp_server(bind(Registry()), checkpointer=saver)
            with pytest.raises(ConfigurationError, match="open_graph"):
                ReActAgent(ScriptedModel(responses=[])).compile(saver)


async def test_synchronous_stores_are_refused_when_the_graph_is_built(tmp_path: Path) -> None:
    with SqliteStore.from_conn_string(":memory:") as store:
        store.setup()
        with pytest.raises(ConfigurationError, match=r"SqliteStore.*AsyncSqliteStore"):
            build_graph(Registry(), store=store)
    async with AsyncSqliteStore.from_conn_string(str(tmp_path / "own.db")) as opened:
        build_graph(Registry(), store=opened)
    build_graph(Registry(), store=InMemoryStore())


async def test_asynchronous_savers_of_langgraph_are_accepted(tmp_path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "own.db")) as saver:
        graph = build_graph(Registry(), checkpointer=saver)
        out = await graph.ainvoke(
            {"messages": [("user", "Hello")]}, {"configurable": {"thread_id": "1"}}
        )
        assert out["messages"][-1].content


async def test_a_graph_of_settings_alone_has_their_capabilities() -> None:
    settings = load_settings(modules=["tests.support.totals"])
    async with open_graph(settings=settings) as graph:
        out = await graph.ainvoke({"messages": [("user", "What is the total?")]})
    assert out["messages"][-1].content == "The total is 3."
