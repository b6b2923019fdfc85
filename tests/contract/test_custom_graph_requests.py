"""In a graph of one's own: which requests are the same one, and which are not."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, Send

from capgraph.base import ValidationError
from capgraph.state import AgentState
from capgraph.stores import open_saver
from tests.support.one_door import Reading, Receipt, bound, in_a_row, measurer, payer

SAY: Any = {"messages": [("user", "Do it")]}
THREAD: Any = {"configurable": {"thread_id": "1"}}


def _plan(*amounts: int) -> dict[str, Any]:
    steps = [
        {"context_key": f"p{place}", "capability": "pay", "parameters": {"amount": amount}}
        for place, amount in enumerate(amounts)
    ]
    return {"planning_execution_plan": {"steps": steps}}


async def test_two_nodes_of_one_capability_side_by_side_keep_both_results() -> None:
    runs: list[Any] = []
    measure = measurer(runs)
    services = bound(Reading, measure)
    builder = StateGraph(AgentState)
    for name in ("left", "right"):
        builder.add_node(name, services.node(measure))
        builder.add_edge(START, name)
    out = await builder.compile().ainvoke(SAY)
    assert len(runs) == 2
    assert len(out["capability_context_data"]["READING"]) == 2
    assert [r["success"] for r in out["execution_step_results"].values()] == [True, True]


async def test_one_node_sent_twice_keeps_both_results() -> None:
    measure = measurer([])
    builder = StateGraph(AgentState)
    builder.add_node("measure", bound(Reading, measure).node(measure))

    def twice(state: Any) -> list[Send]:
        return [Send("measure", state), Send("measure", state)]

    builder.add_conditional_edges(START, twice)
    out = await builder.compile().ainvoke(SAY)
    assert len(out["capability_context_data"]["READING"]) == 2
    assert len(out["execution_step_results"]) == 2


async def test_a_node_that_bears_its_capabilitys_name_keeps_the_documented_key() -> None:
    measure = measurer([])
    own = in_a_row(measure=bound(Reading, measure).node(measure))
    assert list((await own.ainvoke(SAY))["execution_step_results"]) == ["0_measure"]


@pytest.mark.parametrize("message", [{}, SAY], ids=["plan alone", "with a message"])
@pytest.mark.parametrize("where", ["memory", "sqlite"])
@pytest.mark.may_block
async def test_a_plan_that_is_brought_again_runs_again(
    message: Any, where: str, tmp_path: Any
) -> None:
    paid: list[int] = []
    pay = payer(paid)

    async def check(saver: Any) -> None:
        node = bound(Receipt, pay).node(pay)
        own = in_a_row(saver=saver, one=node, two=node)
        await own.ainvoke({**message, **_plan(9, 9)}, THREAD)
        assert paid == [9, 9]
        await own.ainvoke(_plan(9, 7), THREAD)
        assert paid == [9, 9, 9, 7]
        await own.ainvoke({**_plan(9, 7), "planning_current_step_index": 1}, THREAD)
        assert paid == [9, 9, 9, 7, 7, 5], "past its plan, a node runs beside it"

    if where == "memory":
        await check(InMemorySaver())
    else:
        async with open_saver(f"sqlite:///{tmp_path}/own.db") as saver:
            await check(saver)


async def test_going_on_with_a_plan_repeats_nothing() -> None:
    paid: list[int] = []
    pay = payer(paid)
    asking = payer(paid, name="ask", requires_approval=True)
    services = bound(Receipt, pay, asking)
    own = in_a_row(saver=InMemorySaver(), pay=services.node(pay), ask=services.node(asking))
    steps = [
        {"context_key": "a", "capability": "pay", "parameters": {"amount": 3}},
        {"context_key": "b", "capability": "ask", "parameters": {"amount": 4}},
    ]
    for expected in ([3, 4], [3, 4, 3, 4]):
        out = await own.ainvoke({"planning_execution_plan": {"steps": steps}}, THREAD)
        assert out["__interrupt__"], "an agreement of an earlier run is none to this one"
        await own.ainvoke(Command(resume="approve"), THREAD)
        assert paid == expected


async def test_the_same_message_sent_again_does_not_act_again() -> None:
    paid: list[int] = []
    pay = payer(paid)
    runs: list[Any] = []
    look = measurer(runs)
    services = bound(Receipt, Reading, pay, look)
    own = in_a_row(saver=InMemorySaver(), look=services.node(look), pay=services.node(pay))
    say = {"messages": [HumanMessage("Pay", id="m1")]}
    await own.ainvoke(say, THREAD)
    with pytest.raises(ValidationError, match="no new message"):
        await own.ainvoke(say, THREAD)
    assert paid == [5]
    await own.ainvoke({"messages": [HumanMessage("Pay more", id="m1")]}, THREAD)
    await own.ainvoke({"messages": [HumanMessage("Pay", id="m2")]}, THREAD)
    assert paid == [5, 5, 5]
    assert len(runs) == 4, "what changes nothing may be asked for again"


async def test_a_message_whose_run_waits_is_gone_on_with() -> None:
    paid: list[int] = []
    pay = payer(paid, requires_approval=True)
    own = in_a_row(saver=InMemorySaver(), pay=bound(Receipt, pay).node(pay))
    await own.ainvoke({"messages": [HumanMessage("Pay", id="m1")]}, THREAD)
    await own.ainvoke(Command(resume="approve"), THREAD)
    assert paid == [5]


async def test_a_node_that_asks_twice_acts_twice_and_repeats_nothing_when_it_runs_again() -> None:
    paid: list[Any] = []
    pay = payer(paid, requires_approval=True)
    node, tries = bound(Receipt, pay).node(pay), []

    async def both(state: Any) -> Any:
        results = [await node(state), await node(state)]
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("the first try of the node is lost")
        keys = [key for one in results for key in one["capability_context_data"]["RECEIPT"]]
        return {"messages": [("ai", " ".join(keys))]}

    builder = StateGraph(AgentState)
    builder.add_node("both", both, retry_policy=RetryPolicy(initial_interval=0.01))
    graph = builder.add_edge(START, "both").compile(checkpointer=InMemorySaver())
    out = await graph.ainvoke(SAY, THREAD)
    for _ in range(2):
        [asked] = out["__interrupt__"]
        answer = {step["context_key"]: "approve" for step in asked.value["steps"]}
        out = await graph.ainvoke(Command(resume=answer), THREAD)
    assert (len(paid), len(tries)) == (2, 2)
    assert out["messages"][-1].content == "0_pay_both 0_pay_both_2"
