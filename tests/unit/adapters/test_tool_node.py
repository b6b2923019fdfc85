"""Capabilities as tools in a ToolNode: concurrent calls, and synchronous callers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from capgraph import bind, capability_node
from capgraph.adapters import as_tool
from capgraph.base.errors import ConfigurationError
from tests.support.agents import call, calls

DONE: Counter[str] = Counter()
THREAD: Any = {"configurable": {"thread_id": "1"}}


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


@capability_node(effect="once", requires_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    await asyncio.sleep(0.1)
    DONE["pay"] += 1
    return f"paid {amount}"


@capability_node(effect="once", requires_approval=True)
async def ship(what: str) -> str:
    """Ship."""
    await asyncio.sleep(0.1)
    DONE["ship"] += 1
    return f"shipped {what}"


@capability_node
async def double(number: int) -> int:
    """Double a number."""
    return number * 2


@capability_node
async def note(amount: int) -> str:
    """Note an amount."""
    DONE["note"] += 1
    return f"noted {amount}"


BOTH = calls(call("pay", "a", amount=5), call("ship", "b", what="oil"))


def graph_of(*tools: Any, saver: Any = None) -> Any:
    builder = StateGraph(MessagesState).add_node("tools", ToolNode(list(tools)))
    return builder.add_edge(START, "tools").compile(checkpointer=saver)


def two(saver: Any) -> Any:
    services = bind([pay, ship])
    return graph_of(as_tool(pay, services), as_tool(ship, services), saver=saver)


def decision(question: Any) -> dict[str, str]:
    return {step["context_key"]: "approve" for step in question.value["steps"]}


async def test_concurrent_approvals_are_requested_together_and_run_once() -> None:
    graph = two(InMemorySaver())
    out = await graph.ainvoke({"messages": [BOTH]}, THREAD)
    asked = out["__interrupt__"]
    assert [one.value["steps"][0]["capability"] for one in asked] == ["pay", "ship"]
    answers: Any = {one.id: decision(one) for one in asked}
    out = await graph.ainvoke(Command(resume=answers), THREAD)
    assert [m.text for m in out["messages"][-2:]] == ["paid 5", "shipped oil"]
    assert DONE == {"pay": 1, "ship": 1}


@pytest.mark.parametrize("first", ["pay", "ship"])
async def test_concurrent_approvals_can_be_answered_one_by_one(first: str) -> None:
    graph = two(InMemorySaver())
    out = await graph.ainvoke({"messages": [BOTH]}, THREAD)
    known = {one.value["steps"][0]["capability"]: one for one in out["__interrupt__"]}
    answer: Any = {known[first].id: decision(known[first])}
    out = await graph.ainvoke(Command(resume=answer), THREAD)
    assert {first: 1} == DONE, "the approved one ran to its end"
    [left] = out["__interrupt__"]
    assert left.value["steps"][0]["capability"] == ({"pay", "ship"} - {first}).pop()
    assert "unknown" not in str(left.value)
    out = await graph.ainvoke(Command(resume={left.id: decision(left)}), THREAD)
    assert [m.text for m in out["messages"][-2:]] == ["paid 5", "shipped oil"]
    assert DONE == {"pay": 1, "ship": 1}


def test_a_tool_runs_without_an_event_loop() -> None:
    tool = as_tool(double)
    assert tool.invoke({"number": 4}) == 8
    out = graph_of(tool).invoke({"messages": [calls(call("double", "a", number=2))]})
    assert out["messages"][-1].text == "4"
    refused = tool.invoke({"number": "many"})
    assert "number" in refused


async def test_tool_runs_in_synchronous_code_inside_a_loop() -> None:
    assert await asyncio.to_thread(as_tool(double).invoke, {"number": 4}) == 8


@pytest.mark.parametrize("loop", [False, True])
def test_approval_in_synchronous_code_is_an_error(loop: bool) -> None:
    tool = as_tool(pay, bind([pay]))

    def work(state: MessagesState) -> Any:
        return {"messages": [("ai", tool.invoke({"amount": 5}))]}

    builder = StateGraph(MessagesState).add_node("work", work).add_edge(START, "work")
    graph: Any = builder.compile(checkpointer=InMemorySaver())
    with pytest.raises(ConfigurationError, match="ainvoke"):
        if loop:
            asyncio.run(graph.ainvoke({"messages": []}, THREAD))
        else:
            graph.invoke({"messages": []}, THREAD)
    assert not DONE


async def test_concurrent_approvals_match_answers_in_any_order() -> None:
    services = bind([pay, ship])
    graph = graph_of(as_tool(pay, services), as_tool(ship, services), saver=InMemorySaver())
    third = call("ship", "c", what="coal")
    asked = calls(call("pay", "a", amount=5), call("ship", "b", what="oil"), third)
    out = await graph.ainvoke({"messages": [asked]}, THREAD)
    shown = {one.value["steps"][0]["parameters"].get("what"): one for one in out["__interrupt__"]}
    for what, done in ((None, 0), ("coal", 1), ("oil", 2)):
        one = shown[what]
        assert DONE["ship"] == max(0, done - 1)
        out = await graph.ainvoke(Command(resume={one.id: decision(one)}), THREAD)
    assert [m.text for m in out["messages"][-3:]] == ["paid 5", "shipped oil", "shipped coal"]
    assert DONE == {"pay": 1, "ship": 2}


async def test_interrupt_caught_by_a_fallback_is_raised() -> None:
    tools = bind([pay, note])
    either = as_tool(pay, tools).with_fallbacks([as_tool(note, tools)])

    async def work(state: MessagesState) -> Any:
        return {"messages": [("ai", str(await either.ainvoke({"amount": 5})))]}

    builder = StateGraph(MessagesState).add_node("work", work).add_edge(START, "work")
    graph: Any = builder.compile(checkpointer=InMemorySaver())
    out = await graph.ainvoke({"messages": []}, THREAD)
    [asked] = out["__interrupt__"]
    assert asked.value["steps"][0]["capability"] == "pay"
    assert not DONE
