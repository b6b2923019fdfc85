"""Limit of model calls in a turn, counted once for every caller."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START as START_NODE
from langgraph.graph import MessagesState, StateGraph

from capgraph import build_graph
from capgraph.base import CapabilityError, ErrorSeverity
from capgraph.configs.settings import load_settings
from capgraph.testing import ScriptedModel
from tests.support.one_door import Reading, breaker, measurer, registered, said, status

START = {"messages": [("user", "Measure it")]}


def talker(calls: int, how: str = "ainvoke") -> Any:
    async def execute(self: Any) -> Reading:
        model = self.chat_model()
        for _ in range(calls):
            if how == "ainvoke":
                await model.ainvoke("Hello")
            else:
                async for _chunk in model.astream("Hello"):
                    pass
        return Reading(value=calls)

    return measurer([], execute=execute)


def talking(calls: int, limit: int | None, how: str = "ainvoke") -> tuple[Any, ScriptedModel]:
    model = ScriptedModel(responses=lambda call: "Hello.")
    limits = {} if limit is None else {"max_model_calls": limit}
    graph = build_graph(
        registered(Reading, talker(calls, how)),
        model={"capability": model},
        settings=load_settings(limits=limits),
        checkpointer=InMemorySaver(),
    )
    return graph, model


async def test_model_calls_of_a_graph_inside_a_capability_are_counted() -> None:
    inner = ScriptedModel(responses=lambda call: "Hello.")

    async def speak(state: Any) -> Any:
        return {"messages": [await inner.ainvoke("Hello")]}

    builder = StateGraph(MessagesState)
    builder.add_node("speak", speak)
    builder.add_edge(START_NODE, "speak")
    nested = builder.compile()

    async def execute(self: Any) -> Reading:
        for _ in range(50):
            await nested.ainvoke({"messages": []})
        return Reading(value=1)

    graph = build_graph(
        registered(Reading, measurer([], execute=execute)),
        settings=load_settings(limits={"max_model_calls": 3}),
    )
    out = await graph.ainvoke({**START, "planning_execution_plan": PLAN})
    assert len(inner.calls) == 3
    assert status(out) in {"failed", "stopped"}


PLAN = {"steps": [{"context_key": "a", "capability": "measure", "task_objective": "Talk"}]}
THREAD = {"configurable": {"thread_id": "1"}}


@pytest.mark.parametrize("how", ["ainvoke", "astream"])
async def test_model_calls_of_a_turn_are_limited(how: str) -> None:
    graph, model = talking(50, 3, how)
    out = await graph.ainvoke({**START, "planning_execution_plan": PLAN}, THREAD)
    assert len(model.calls) == 3
    assert "max_model_calls" in said(out)
    assert status(out) in {"failed", "stopped"}


async def test_default_limit_is_a_hundred_model_calls() -> None:
    graph, model = talking(1000, None)
    out = await graph.ainvoke({**START, "planning_execution_plan": PLAN}, THREAD)
    assert len(model.calls) == 100
    assert status(out) in {"failed", "stopped"}


async def test_each_call_counts_once_per_turn() -> None:
    graph, model = talking(3, 3)
    for turn in (1, 2, 3):
        out = await graph.ainvoke({**START, "planning_execution_plan": PLAN}, THREAD)
        assert status(out) == "completed"
        assert len(model.calls) == 3 * turn


async def test_model_call_limit_ends_a_planning_loop() -> None:
    def reply(call: Any) -> Any:
        if call.schema == "Choice":
            return {"reason": "fits", "capabilities": ["broken", "measure"]}
        if call.schema == "ExecutionPlan":
            return {"steps": [{"context_key": "a", "capability": "broken", "task_objective": "x"}]}
        return "I could not."

    model = ScriptedModel(responses=reply)
    error = CapabilityError("no power", severity=ErrorSeverity.REPLANNING)
    registry = registered(Reading, measurer([]), breaker("broken", error))
    limits = {"max_planning_attempts": 500, "max_reclassifications": 500, "max_model_calls": 7}
    graph = build_graph(registry, model=model, settings=load_settings(limits=limits))
    out = await graph.ainvoke(START)
    assert said(out)
    assert status(out) in {"failed", "stopped"}
    assert len(model.calls) <= 7


async def test_answer_calls_are_counted() -> None:
    model = ScriptedModel(responses=lambda call: AIMessage("Fine."))
    graph = build_graph(
        registered(Reading, measurer([])),
        model={"answer": model},
        settings=load_settings(limits={"max_model_calls": 1}),
        checkpointer=InMemorySaver(),
    )
    for turn in (1, 2):
        out = await graph.ainvoke({**START, "planning_execution_plan": PLAN}, THREAD)
        assert status(out) == "completed"
        assert len(model.calls) == turn
