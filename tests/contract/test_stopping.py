"""The kill switch: what is stopped begins no effect, whichever path and process it runs in."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from capgraph import BaseCapability, CapabilityContext, bind, capability_node
from capgraph.agents import ReActAgent
from capgraph.base import ConfigurationError, StoppedError
from capgraph.governance import clear_stop, list_stops, stop
from capgraph.state import AgentState
from capgraph.stores import open_saver
from capgraph.telemetry import AuditLog
from capgraph.testing import ScriptedModel
from tests.support.doors import STAGES, Instead, last_words, status
from tests.support.one_door import Reading, Receipt, measurer, payer

pytestmark = pytest.mark.row("A6")

EFFECTS = ["none", "idempotent", "once"]


@pytest.fixture(params=["memory", "sqlite"])
async def saver(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    if request.param == "memory":
        yield InMemorySaver()
        return
    async with open_saver(f"sqlite:///{tmp_path}/threads.db") as opened:
        yield opened


async def test_a_stopped_thread_begins_nothing_until_it_is_let_go(
    agent: Any, step: Any, saver: Any, tmp_path: Any
) -> None:
    paid: list[int] = []
    log = AuditLog(tmp_path / "audit.jsonl")
    it = agent(Receipt, payer(paid), plans=[[step("a", "pay")]], checkpointer=saver, audit=log)
    await stop(saver, thread="1", reason="wrong price")
    out = await it.ask()
    told = [record for record in await log.records() if record["kind"] == "refused"]
    assert [record["data"]["code"] for record in told] == ["CG-STOPPED"]
    assert (status(out), paid) == ("stopped", [])
    assert out["control_is_killed"] is True
    assert "wrong price" in out["control_kill_reason"]
    assert "wrong price" in last_words(out)
    assert "capgraph stop --clear 1" in last_words(out)
    assert [found.name for found in await list_stops(saver)] == ["1"]
    assert status(await it.ask(thread="2")) == "completed"
    assert await clear_stop(saver, thread="1")
    assert not await clear_stop(saver, thread="1")
    out = await it.ask("Now")
    assert (status(out), paid) == ("completed", [5, 5])
    assert not out["control_is_killed"]


@pytest.mark.parametrize("effect", EFFECTS)
async def test_a_turn_under_way_ends_at_its_next_step(
    agent: Any, step: Any, saver: Any, effect: str
) -> None:
    paid: list[int] = []
    pay = payer(paid, effect=effect, requires=["READING"])

    async def execute(self: Any) -> Reading:
        await stop(saver, thread="1")
        return Reading(value=1)

    first = measurer([], execute=execute)
    plan = [step("m", "measure"), step("a", "pay", READING="m")]
    out = await agent(Reading, Receipt, first, pay, plans=[plan], checkpointer=saver).ask()
    assert (status(out), paid) == ("stopped", [])
    assert out["execution_step_results"]["m"]["success"]


@pytest.mark.parametrize("stage", STAGES[: STAGES.index("idempotency") + 1])
@pytest.mark.parametrize("effect", ["idempotent", "once"])
async def test_whatever_the_instant_no_effect_begins_after_it(
    agent: Any, step: Any, saver: Any, stage: str, effect: str
) -> None:
    """Stopped from outside of the run while an attempt stands in one of its stages."""
    paid: list[int] = []

    async def now(attempt: Any, call_next: Any) -> Any:
        if attempt.kind == "step":
            await stop(saver, user="ann")
        return await call_next()

    pay = payer(paid, effect=effect)
    behaviors = [Instead(stage, now)] if stage != "idempotency" else []
    it = agent(Receipt, pay, plans=[[step("a", "pay")]], checkpointer=saver, behaviors=behaviors)
    if stage == "idempotency":  # between the record that it begins and the call
        await stop(saver, user="ann")
    say = {"messages": [("user", "Pay")]}
    out = await it.graph.ainvoke(say, it.config(user_id="ann"))
    assert (status(out), paid) == ("stopped", [])
    assert await clear_stop(saver, user="ann")
    out = await it.graph.ainvoke({"messages": [("user", "Pay!")]}, it.config("2", user_id="bob"))
    assert "ann" not in last_words(out)


async def test_the_runs_of_one_user_and_of_all(agent: Any, step: Any, saver: Any) -> None:
    paid: list[int] = []
    it = agent(Receipt, payer(paid), plans=[[step("a", "pay")]], checkpointer=saver)

    async def ask(user: str, thread: str) -> str:
        say = {"messages": [("user", "Pay")]}
        return status(await it.graph.ainvoke(say, it.config(thread, user_id=user)))

    await stop(saver, user="ann")
    assert [await ask("ann", "1"), await ask("bob", "2")] == ["stopped", "completed"]
    await stop(saver, all=True)
    assert await ask("bob", "3") == "stopped"
    await clear_stop(saver, all=True)
    await clear_stop(saver, user="ann")
    assert await ask("ann", "4") == "completed"
    assert paid == [5, 5]
    await stop(saver, all=True)
    agent = ReActAgent(ScriptedModel(responses=["Done."]), services=bind([]))
    with pytest.raises(StoppedError):
        await agent.compile(saver).ainvoke({"task": "Pay"}, it.config("5"))


async def test_an_answer_to_a_stopped_thread_begins_nothing(
    agent: Any, step: Any, saver: Any
) -> None:
    paid: list[int] = []
    pay = payer(paid, requires_approval=True)
    it = agent(Receipt, pay, plans=[[step("a", "pay")]], checkpointer=saver)
    assert (await it.ask())["__interrupt__"]
    await stop(saver, thread="1")
    out = await it.graph.ainvoke(Command(resume="approve"), it.config())
    assert (status(out), paid) == ("stopped", [])


async def test_a_users_turn_that_another_one_answered_is_that_users_too(
    agent: Any, step: Any, saver: Any
) -> None:
    paid: list[int] = []
    pay = payer(paid, requires_approval=True)
    for stopped in ("ann", "bob"):
        it = agent(Receipt, pay, plans=[[step("a", "pay")]], checkpointer=saver)
        ann, bob = (it.config(stopped, user_id=user) for user in ("ann", "bob"))
        assert (await it.graph.ainvoke({"messages": [("user", "Pay")]}, ann))["__interrupt__"]
        await stop(saver, user=stopped)
        out = await it.graph.ainvoke(Command(resume="approve"), bob)
        assert (status(out), paid) == ("stopped", [])
        await clear_stop(saver, user=stopped)
        builder = StateGraph(AgentState)
        builder.add_node("pay", bind([Receipt, pay]).node(pay))
        builder.add_edge(START, "pay")
        own = builder.compile(checkpointer=saver)
        ann, bob = (it.config(f"own {stopped}", user_id=user) for user in ("ann", "bob"))
        assert (await own.ainvoke({"messages": [("user", "Pay")]}, ann))["__interrupt__"]
        await stop(saver, user=stopped)
        out = await own.ainvoke(Command(resume="approve"), bob)
        assert ("were stopped" in str(out["control_error_info"]), paid) == (True, [])
        await clear_stop(saver, user=stopped)


async def test_between_two_tries_of_a_step(agent: Any, step: Any, saver: Any) -> None:
    tries: list[int] = []

    @capability_node
    class Knock(BaseCapability):
        name = "knock"
        description = "Knock"

        async def execute(self) -> dict[str, Any]:
            tries.append(1)
            await stop(saver, thread="1")
            raise ConnectionError("nobody there")

    out = await agent(Knock, plans=[[step("a", "knock")]], checkpointer=saver).ask()
    assert (status(out), len(tries)) == ("stopped", 1)


async def test_between_the_parts_of_a_step(agent: Any, step: Any, saver: Any) -> None:
    done: list[str] = []

    @capability_node
    class Both(BaseCapability):
        name = "both"
        description = "Do both"

        async def execute(self) -> dict[str, Any]:
            await self.once("one", lambda: done.append("one"))
            await stop(saver, thread="1")
            await self.once("two", lambda: done.append("two"))
            return {}

    out = await agent(Both, plans=[[step("a", "both")]], checkpointer=saver).ask()
    assert (status(out), done) == ("stopped", ["one"])


async def test_nodes_of_ones_own_graph_side_by_side(saver: Any) -> None:
    paid: list[int] = []
    pay = payer(paid)
    node = bind([Receipt, pay]).node(pay)
    builder = StateGraph(AgentState)
    for name in ("one", "two"):
        builder.add_node(name, node)
        builder.add_edge(START, name)
    own = builder.compile(checkpointer=saver)
    await stop(saver, thread="1", reason="by hand")
    config: Any = {"configurable": {"thread_id": "1"}}
    out = await own.ainvoke({"messages": [("user", "Pay")]}, config)
    assert paid == []
    assert out["control_is_killed"] is True
    assert "by hand" in out["control_error_info"]["user_message"]


async def test_another_connection_to_the_same_database_stops_it(
    agent: Any, step: Any, tmp_path: Any
) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    paid: list[int] = []

    async def execute(self: Any) -> Reading:
        await stop(url, thread="1")
        return Reading(value=1)

    plan = [step("m", "measure"), step("a", "pay", READING="m")]
    pay = payer(paid, requires=["READING"])
    async with open_saver(url) as saver:
        first = measurer([], execute=execute)
        out = await agent(Reading, Receipt, first, pay, plans=[plan], checkpointer=saver).ask()
        assert (status(out), paid) == ("stopped", [])
    assert [found.name for found in await list_stops(url)] == ["1"]


async def test_with_the_switch_out_of_reach_no_effect_begins(
    agent: Any, step: Any, saver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from capgraph.base import PersistenceError

    async def away(*_: Any) -> None:
        raise PersistenceError("The database is away.")

    paid: list[int] = []
    made = agent(Receipt, payer(paid), plans=[[step("a", "pay")]], checkpointer=saver)
    monkeypatch.setattr(made.graph.persistence.stops, "_refresh", away)
    with pytest.raises(PersistenceError, match="away"):
        await made.ask()
    assert paid == []


@pytest.mark.parametrize("given", [{}, {"thread": "1", "all": True}, {"thread": ""}], ids=str)
async def test_what_to_stop_is_named_once(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Exactly one of thread, user, and all"):
        await stop(InMemorySaver(), **given)


def test_a_stop_is_an_error_of_the_one_tree() -> None:
    assert StoppedError("x").code == "CG-STOPPED"


@pytest.mark.row("B46")
@pytest.mark.parametrize("kind", ["step", "list"])
async def test_no_dependent_step_starts_after_a_capability_stops_the_turn(
    agent: Any, step: Any, kind: str
) -> None:
    paid: list[int] = []
    runs: list[Any] = []

    async def execute(self: Any) -> dict[str, Any]:
        runs.append(self.step["context_key"])
        keys = {"control_is_killed": True, "control_kill_reason": "The tank is empty."}
        return {"READING": Reading(value=1), **keys}

    class Tanks(CapabilityContext):
        levels: list[int]

    @capability_node
    async def list_tanks() -> Tanks:
        """List the tanks."""
        return Tanks(levels=[1, 2, 3])

    plan = [step("t", "list_tanks"), step("a", "measure", TANKS="t"), step("b", "pay")]
    plan[2]["inputs"] = [{"READING": "a"}]
    if kind == "list":
        plan[1] |= {"for_each": {"of": "t.levels"}}
    limits = {"max_parallel": 1}
    kill = measurer([], execute=execute)
    bench = agent(
        Tanks, Reading, Receipt, list_tanks, kill, payer(paid), plans=[plan], limits=limits
    )
    out = await bench.ask()
    assert (status(out), paid) == ("stopped", [])
    assert len(runs) < 3
    assert out["execution_outcome"]["reason"] == out["control_kill_reason"]
    assert "b" not in out["execution_step_results"]
