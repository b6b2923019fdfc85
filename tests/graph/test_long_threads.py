"""Threads of many turns: what a turn costs, and that everything is there afterwards."""

from __future__ import annotations

import sqlite3
import statistics
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import RemoveMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

import capgraph.stores.history_cache
from capgraph import BaseCapability, CapabilityContext, capability_node
from capgraph.base import PersistenceError
from capgraph.base.errors import ThreadBusyError
from capgraph.langgraph_compat import replay_channel
from capgraph.state import AgentState, StateSchema
from capgraph.state.reducers import append_all
from capgraph.stores import (
    Persistence,
    fork_thread,
    list_threads,
    open_saver,
    prune_threads,
    thread_summary,
)
from capgraph.stores.history import load_deltas_since_snapshot
from capgraph.stores.records import read_record

pytestmark = pytest.mark.may_block
DELTAS = ["messages", "capability_context_data"]


class Reading(CapabilityContext):
    value: float
    note: str = ""


@capability_node(effect="once")
async def measure() -> Reading:
    """Measure."""
    return Reading(value=7, note="steady " * 20)


@capability_node(requires_approval=True)
async def report(reading: Reading) -> Reading:
    """Report."""
    return reading


@pytest.fixture
def made(agent: Any, step: Any, saver: Any) -> Any:
    return agent(Reading, measure, plans=[[step("a", "measure")]], checkpointer=saver)


def stored(path: Path) -> tuple[int, int]:
    """Rows and bytes of a database's checkpoints and writes."""
    connection = sqlite3.connect(path)
    try:
        rows, size = connection.execute(
            "SELECT (SELECT COUNT(*) FROM checkpoints) + (SELECT COUNT(*) FROM writes),"
            " (SELECT SUM(LENGTH(checkpoint) + LENGTH(metadata)) FROM checkpoints)"
            " + (SELECT SUM(LENGTH(value)) FROM writes)"
        ).fetchone()
    finally:
        connection.close()
    return rows, size


async def turns(made: Any, number: int, start: int = 0) -> None:
    for turn in range(start, start + number):
        out = await made.ask(f"Measure for the {turn}th time, and say how it is")
        assert out["execution_outcome"]["status"] == "completed"


async def test_a_turn_of_a_long_thread_writes_what_a_turn_of_a_short_one_writes(
    made: Any, path: Path
) -> None:
    await turns(made, 2)
    begin = stored(path)
    await turns(made, 8, 2)
    short = [(after - before) / 8 for before, after in zip(begin, stored(path), strict=True)]
    await turns(made, 50, 10)
    begin = stored(path)
    # So many that what is saved as a whole now and then is among them.
    await turns(made, 50, 60)
    long = [(after - before) / 50 for before, after in zip(begin, stored(path), strict=True)]
    assert long[0] == short[0], "rows"
    assert long[1] <= 1.3 * short[1], "bytes"
    state = (await made.graph.aget_state(made.config())).values
    assert len(state["messages"]) == 220
    assert (await thread_summary(made.graph.checkpointer, "1")).messages == 220


async def test_no_turn_of_a_long_thread_writes_much_more_than_the_others(
    made: Any, path: Path
) -> None:
    sizes, before = [], 0
    for turn in range(220):
        await turns(made, 1, turn)
        _, total = stored(path)
        sizes.append(total - before)
        before = total
    assert max(sizes[2:]) <= 1.5 * statistics.median(sizes)
    async with open_saver(f"sqlite:///{path}") as other:
        assert (await thread_summary(other, "1")).messages == 440


async def test_copies_and_other_durabilities_keep_the_short_way(
    agent: Any, step: Any, made: Any, saver: Any, path: Path
) -> None:
    await turns(made, 3)
    await made.graph.aupdate_state(made.config(), None, as_node="__copy__")
    await turns(made, 2, 3)
    for turn in (5, 6):
        message = {"messages": [("user", f"Measure for the {turn}th time")]}
        await made.graph.ainvoke(message, made.config(), durability="exit")
    await turns(made, 2, 7)
    await made.graph.aupdate_state(made.config(), {"messages": [("user", "Another way")]})
    expected = (await made.graph.aget_state(made.config())).values
    assert len(expected["messages"]) == 19
    async with open_saver(f"sqlite:///{path}") as other:
        latest = await other.aget_tuple(made.config())
        position = ("1", "", latest.checkpoint["id"])
        assert await load_deltas_since_snapshot(other.persistence, position, DELTAS) is not None
        again = agent(Reading, measure, plans=[[step("a", "measure")]], checkpointer=other)
        state = (await again.graph.aget_state(made.config())).values
        assert {name: state[name] for name in DELTAS} == {n: expected[n] for n in DELTAS}


async def test_the_short_way_to_a_threads_past_is_the_long_one(
    agent: Any, step: Any, saver: Any
) -> None:
    plan = [step("a", "measure"), step("b", "report", READING="a")]
    made = agent(Reading, measure, report, plans=[plan], checkpointer=saver)
    for turn in range(16):
        await made.ask(f"Turn {turn}")
        await made.graph.ainvoke(Command(resume="approve"), made.config())
        if turn in (3, 12):
            state = await made.graph.aget_state(made.config())
            gone = [RemoveMessage(id=state.values["messages"][0].id)]
            await made.graph.aupdate_state(made.config(), {"messages": gone})
    history = [item async for item in made.graph.aget_state_history(made.config())]
    old = next(item for item in history if item.metadata["step"] == 40)
    await made.graph.aupdate_state(old.config, {"messages": [("user", "Another way")]})
    await made.ask("Go on from there")
    place: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
    reducers = {name: StateSchema.from_class(AgentState).keys[name].reducer for name in DELTAS}

    async def is_same(item: Any) -> bool:
        names = [name for name in DELTAS if name not in item.checkpoint["channel_values"]]
        quick = await load_deltas_since_snapshot(
            saver.persistence, ("1", "", item.checkpoint["id"]), names
        )
        slow = await AsyncSqliteSaver.aget_delta_channel_history(
            saver, config=item.config, channels=names
        )
        for name in quick or ():
            assert replay_channel(reducers[name], quick[name]) == replay_channel(
                reducers[name], slow[name]
            )
        return quick is not None

    # Reading while a list is open waits for nothing.
    items = [(item, await is_same(item)) async for item in saver.alist(place)]
    assert sum(quick for _, quick in items) > 100
    saver.persistence.history_cache.clear()
    held = set()
    for item, _ in reversed(items):
        await is_same(item)
        held |= {one.checkpoint_id for one in saver.persistence.history_cache.values()}
    assert len(held) > 2


async def test_a_turn_reads_what_came_since_a_late_one_and_what_is_held_has_bounds(
    made: Any, saver: Any, monkeypatch: Any
) -> None:
    await turns(made, 35)
    newest = await saver.aget_tuple(made.config())
    found = await load_deltas_since_snapshot(
        saver.persistence, ("1", "", newest.checkpoint["id"]), ["messages"]
    )
    assert found is not None
    assert len(found["messages"]["writes"]) <= 24  # of 70
    (kept,) = saver.persistence.history_cache.values()
    monkeypatch.setattr(capgraph.stores.history_cache, "MAX_BYTES", 2 * kept.size)
    for name in "abc":
        saver.persistence.history_cache[name] = kept
    assert [*saver.persistence.history_cache] == ["b", "c"]
    await saver.adelete_thread("c")
    assert [*saver.persistence.history_cache] == ["b"]


async def test_everything_of_a_long_thread_can_be_gone_back_to(made: Any, saver: Any) -> None:
    await turns(made, 52)
    history = [item async for item in made.graph.aget_state_history(made.config())]
    ended = [item for item in history if not item.next]
    assert [len(item.values["messages"]) for item in ended] == list(range(104, 0, -2))
    early = next(item for item in ended if len(item.values["messages"]) == 20)
    place = early.config["configurable"]["checkpoint_id"]
    await fork_thread(saver, "1", "copy", checkpoint_id=place)
    out = await made.ask("Go on", thread="copy")
    assert [m.content for m in out["messages"][:20]] == [
        m.content for m in early.values["messages"]
    ]
    assert len(out["messages"]) == 22
    ids = [m.id for m in out["messages"]]
    assert len(set(ids)) == 22
    assert [
        m.id for m in (await made.graph.aget_state(made.config("copy"))).values["messages"]
    ] == ids


async def test_what_a_setting_keeps_is_kept_and_no_more(made: Any, saver: Any, path: Path) -> None:
    await turns(made, 12)
    before = await made.graph.aget_state(made.config())
    assert await prune_threads(saver, policy="keep", keep_turns=3) == ["1"]
    after = await made.graph.aget_state(made.config())
    assert after.values == before.values
    kept = [item async for item in made.graph.aget_state_history(made.config())]
    assert [len(item.values["messages"]) for item in kept if not item.next] == [24, 22, 20]
    assert await records(path) == 3
    out = await made.ask("One more")
    assert len(out["messages"]) == 26
    assert await prune_threads(saver, ["1"], policy="keep", keep_checkpoints=2) == ["1"]
    assert len([item async for item in made.graph.aget_state_history(made.config())]) == 2
    assert await records(path) == 1
    assert len((await made.ask("And one more"))["messages"]) == 28
    assert await prune_threads(saver, ["1"]) == ["1"]
    assert len((await made.graph.aget_state(made.config())).values["messages"]) == 28
    with pytest.raises(ValueError, match="keep_turns"):
        await prune_threads(saver, policy="keep")


async def test_a_copy_of_an_older_turn_repeats_none_of_its_effects(
    agent: Any, step: Any, saver: Any, path: Path
) -> None:
    plan = [step("a", "measure"), step("b", "report", READING="a")]
    made = agent(Reading, measure, report, plans=[plan], checkpointer=saver)
    for _ in range(3):
        await made.ask()
        await made.graph.ainvoke(Command(resume="approve"), made.config())
    history = [item async for item in made.graph.aget_state_history(made.config())]
    routed = [item for item in history if item.next == ("router",)]
    second = next(item for item in routed if len(item.values["messages"]) == 3)
    place = second.config["configurable"]["checkpoint_id"]
    await fork_thread(saver, "1", "copy", checkpoint_id=place)
    assert await records(path, "1") == 6, "what was agreed to, and what was done"
    assert await records(path, "copy") == 4, "those of the turns that it has"
    copied = await names(path, "copy")
    old = [await read_record(saver, "1", name) for name in copied]
    assert old == [await read_record(saver, "copy", name) for name in copied]
    assert [record["status"] for record in old if "status" in record] == ["finished"] * 2
    past = [item async for item in made.graph.aget_state_history(made.config("copy"))]
    assert len(past[-1].values.get("messages", [])) == 0, "it can be gone back to in the copy too"


async def names(path: Path, thread: str) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        statement = (
            "SELECT checkpoint_ns FROM checkpoints WHERE thread_id = ?"
            " AND checkpoint_ns LIKE 'capgraph-journal:%'"
        )
        found = connection.execute(statement, (thread,)).fetchall()
        return [name.removeprefix("capgraph-journal:") for (name,) in found]
    finally:
        connection.close()


async def records(path: Path, thread: str = "1") -> int:
    return len(await names(path, thread))


async def test_a_thread_in_use_is_not_pruned(made: Any, saver: Any) -> None:
    await turns(made, 1)
    lease = await Persistence.of(saver).leases.acquire("1")
    assert await prune_threads(saver) == []
    with pytest.raises(ThreadBusyError):
        await prune_threads(saver, ["1"])
    await Persistence.of(saver).leases.release(lease)
    assert await prune_threads(saver) == ["1"]


async def test_threads_are_listed_page_by_page(made: Any, saver: Any) -> None:
    for thread in "abcde":
        await made.ask(thread=thread)
    await made.ask(thread="b")
    found, after = [], None
    while page := await list_threads(saver, limit=2, after=after):
        found += [item.thread_id for item in page]
        after = page[-1].thread_id
    assert found == ["b", "e", "d", "c", "a"]
    with pytest.raises(PersistenceError, match="does not exist"):
        await list_threads(saver, after="zz")


async def test_what_runs_have_saved_can_be_dropped(made: Any, saver: Any) -> None:
    for run in ("x", "y"):
        config = {**made.config(), "metadata": {"run_id": run}}
        await made.graph.ainvoke({"messages": [("user", run)]}, config)
    await saver.adelete_for_runs(["x"])
    state = await made.graph.aget_state(made.config())
    assert len(state.values["messages"]) == 4, "what followed keeps what it holds"
    await saver.acopy_thread("1", "2")
    assert (await made.graph.aget_state(made.config("2"))).values == state.values


class Noted(AgentState, total=False):
    notes: Annotated[list[str], DeltaChannel(append_all)]


async def test_keys_of_ones_own_that_grow_are_kept_by_cutting_and_copying(
    agent: Any, step: Any, saver: Any, path: Path
) -> None:
    @capability_node
    class Note(BaseCapability):
        name = "note"
        description = "Take a note"

        async def execute(self) -> dict[str, Any]:
            return {"notes": ["one more"]}

    plan = [[step("a", "note")]]
    made = agent(Note, plans=plan, checkpointer=saver, state_schema=Noted)
    await turns(made, 6)
    await fork_thread(saver, "1", "copy")
    assert await prune_threads(saver, policy="keep", keep_turns=2) == ["copy", "1"]
    for thread in ("1", "copy"):
        values = (await made.graph.aget_state(made.config(thread))).values
        assert (values["notes"], len(values["messages"])) == (["one more"] * 6, 12)
    async with open_saver(f"sqlite:///{path}") as stranger:
        with pytest.raises(PersistenceError, match="notes of thread"):
            await prune_threads(stranger, policy="keep", keep_turns=1)
    assert len((await made.ask("Go on"))["messages"]) == 14, "nothing was dropped"


async def test_the_settings_cut_histories_as_turns_end(
    agent: Any, step: Any, saver: Any, path: Path
) -> None:
    kept = {"persistence": {"keep_turns": 3}}
    made = agent(
        Reading, measure, plans=[[step("a", "measure")]], checkpointer=saver, settings=kept
    )
    sizes = []
    for turn in range(9):
        await turns(made, 1, turn)
        sizes.append(stored(path)[0])
    history = [item async for item in made.graph.aget_state_history(made.config())]
    assert [len(item.values["messages"]) for item in history if not item.next] == [18, 16, 14]
    assert await records(path) == 3
    assert len(set(sizes[3:])) == 1, "no more rows with every turn"
    await prune_threads(saver, ["1"])
    assert len((await made.ask("Go on"))["messages"]) == 20


async def test_a_longer_history_goes_a_tenth_at_a_time(made: Any, agent: Any, step: Any) -> None:
    kept = {"persistence": {"keep_checkpoints": 20}}
    saver = made.graph.checkpointer
    made = agent(
        Reading, measure, plans=[[step("a", "measure")]], checkpointer=saver, settings=kept
    )
    for turn in range(6):
        await turns(made, 1, turn)
        length = len([item async for item in made.graph.aget_state_history(made.config())])
        assert length <= 22


async def test_threads_that_nobody_uses_go_when_their_days_are_over(
    agent: Any, step: Any, saver: Any
) -> None:
    plan = [step("a", "measure"), step("b", "report", READING="a")]
    idle = agent(Reading, measure, report, plans=[plan], checkpointer=saver)
    await idle.ask(thread="waits")
    await idle.ask(thread="old")
    await idle.graph.ainvoke(Command(resume="approve"), idle.config("old"))
    kept = {"persistence": {"keep_days": 1e-9}}
    made = agent(
        Reading, measure, plans=[[step("a", "measure")]], checkpointer=saver, settings=kept
    )
    await made.ask(thread="new")
    assert [item.thread_id for item in await list_threads(saver)] == ["new", "waits"]


async def test_a_history_that_cannot_be_cut_is_told_of(
    agent: Any, step: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kept = {"persistence": {"keep_turns": 1}}
    plan = [[step("a", "measure")]]
    made = agent(Reading, measure, plans=plan, checkpointer=InMemorySaver(), settings=kept)
    await turns(made, 2)
    assert "InMemorySaver cannot copy or prune the history of a thread" in caplog.text


async def test_a_copy_of_a_thread_that_waits_inside_a_step_goes_on_there(
    agent: Any, step: Any, saver: Any
) -> None:
    counted: list[str] = []

    class Inner(TypedDict, total=False):
        said: str

    def before(state: Inner) -> Inner:
        counted.append("before")
        return {"said": "begun"}

    def ask(state: Inner) -> Inner:
        return {"said": f"{state['said']}, {interrupt('How?')}"}

    builder = StateGraph(Inner)
    builder.add_node("before", before)
    builder.add_node("ask", ask)
    builder.add_edge(START, "before")
    builder.add_edge("before", "ask")
    builder.add_edge("ask", END)
    inner = builder.compile()

    @capability_node
    class Nest(BaseCapability):
        name = "nest"
        description = "Run a graph that asks"
        provides = ["SAID"]

        async def execute(self) -> dict[str, Any]:
            out = await inner.ainvoke({})
            return {"SAID": {"text": out["said"]}}

    plan = [[step("a", "nest")]]
    made = agent(Nest, plans=plan, checkpointer=saver)
    await made.ask()
    await fork_thread(saver, "1", "copy")
    await made.graph.ainvoke(None, made.config("copy"))  # the copy asks again
    for thread, answer in (("copy", "well"), ("1", "badly")):
        out = await made.graph.ainvoke(Command(resume=answer), made.config(thread))
        assert out["capability_context_data"]["SAID"]["a"] == {"text": f"begun, {answer}"}
    assert counted == ["before"], "the nested graph goes on where it stood, in the copy too"
