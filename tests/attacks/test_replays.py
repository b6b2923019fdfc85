"""Replays of a thread from an earlier checkpoint are turns of the people who start them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from capgraph import CapabilityContext, bind, build_graph, capability_node
from capgraph.governance import ApprovalPolicy
from capgraph.pipeline.run_config import current_caller
from capgraph.state import AgentState
from tests.support.doors import question, shown
from tests.support.one_door import Receipt, payer


class Visit(CapabilityContext):
    """Name of the user for whom a step ran."""

    user: str


@capability_node(requires_approval=True)
async def visit() -> Visit:
    """Return the user for whom the step runs."""
    return Visit(user=str(current_caller().user_id))


PLAN = {"steps": [{"context_key": "a", "capability": "visit"}]}


def config(user: str, checkpoint_id: str | None = None) -> Any:
    at = {"checkpoint_id": checkpoint_id} if checkpoint_id else {}
    return {"configurable": {"thread_id": "1", "user_id": user, **at}}


async def checkpoints(graph: Any) -> list[str]:
    """Return the IDs of the thread's checkpoints, newest first."""
    history = graph.aget_state_history({"configurable": {"thread_id": "1"}})
    return [one.config["configurable"]["checkpoint_id"] async for one in history]


def visitor(out: Mapping[str, Any]) -> str:
    (entry,) = out["capability_context_data"]["VISIT"].values()
    return str(entry["user"])


async def test_a_replay_is_a_turn_of_its_maker_and_asks_again() -> None:
    graph = build_graph([visit], checkpointer=InMemorySaver())
    await graph.ainvoke({"planning_execution_plan": PLAN}, config("ann"))
    await graph.ainvoke(Command(resume="approve"), config("bob"))
    asked = 0
    for checkpoint_id in (await checkpoints(graph))[1:]:
        out = await graph.ainvoke(None, config("carol", checkpoint_id))
        if "__interrupt__" in out:
            asked += 1
            assert visitor(await graph.ainvoke(Command(resume="approve"), config("bob"))) == "carol"
    assert asked >= 2


async def test_an_answer_to_an_earlier_question_replays_the_turn() -> None:
    graph = build_graph([visit], checkpointer=InMemorySaver())
    await graph.ainvoke({"planning_execution_plan": PLAN}, config("ann"))
    (at,) = (await checkpoints(graph))[:1]
    await graph.ainvoke(Command(resume="approve"), config("bob"))
    out = await graph.ainvoke(Command(resume="approve"), config("carol", at))
    assert visitor(out) == "carol"


async def test_a_run_from_the_latest_checkpoint_is_no_replay() -> None:
    graph = build_graph([visit], checkpointer=InMemorySaver())
    await graph.ainvoke({"planning_execution_plan": PLAN}, config("ann"))
    (at,) = (await checkpoints(graph))[:1]
    assert visitor(await graph.ainvoke(Command(resume="approve"), config("bob", at))) == "ann"


@pytest.mark.parametrize("replayer", ["ann", "bob"])
async def test_votes_do_not_count_in_a_replay(agent: Any, step: Any, replayer: str) -> None:
    paid: list[int] = []
    pay = payer(paid, requires_approval=ApprovalPolicy(approvers=2, not_requester=True))
    it = agent(Receipt, pay, plans=[[step("a", "pay")]], checkpointer=InMemorySaver())
    asks = {"messages": [HumanMessage("Pay", id="m")]}
    await it.graph.ainvoke(asks, config("ann"))
    (at,) = (await checkpoints(it.graph))[:1]
    await it.graph.ainvoke(Command(resume="approve"), config("dave"))
    out = await it.graph.ainvoke(None, config(replayer, at))
    assert question(out)["steps"][0]["approvals"]["agreed"] == []
    out = await it.graph.ainvoke(Command(resume="approve"), config(replayer))
    assert "cannot approve" in shown(out)
    await it.graph.ainvoke(Command(resume="approve"), config("carol"))
    assert paid == []
    await it.graph.ainvoke(Command(resume="approve"), config("dave"))
    assert paid == [5]


async def test_a_message_sent_again_from_an_earlier_checkpoint_asks_again(
    agent: Any, step: Any
) -> None:
    """A variant: the same message ID names the same turn, so that its approvals could apply."""
    paid: list[int] = []
    pay = payer(paid, requires_approval=True, effect="none")
    plans = [[step("a", "pay")]]
    it = agent(Receipt, pay, plans=plans, checkpointer=InMemorySaver())
    await it.graph.ainvoke({"messages": [HumanMessage("Hello", id="h")]}, config("ann"))
    (at,) = (await checkpoints(it.graph))[:1]
    asks = {"messages": [HumanMessage("Pay", id="m")]}
    await it.graph.ainvoke(asks, config("ann"))
    await it.graph.ainvoke(Command(resume="approve"), config("bob"))
    paid.clear()
    out = await it.graph.ainvoke(asks, config("carol", at))
    assert "__interrupt__" in out
    assert paid == []


async def test_a_node_of_a_custom_graph_asks_again_in_a_replay() -> None:
    """A variant: a graph without turns, whose replay has the same plan."""
    builder = StateGraph(AgentState)
    builder.add_node("visit", bind([visit, Visit]).node(visit))
    builder.add_edge(START, "visit")
    graph = builder.compile(checkpointer=InMemorySaver())
    await graph.ainvoke({"planning_execution_plan": PLAN}, config("ann"))
    await graph.ainvoke(Command(resume="approve"), config("bob"))
    for checkpoint_id in (await checkpoints(graph))[1:]:
        assert "__interrupt__" in await graph.ainvoke(None, config("carol", checkpoint_id))
