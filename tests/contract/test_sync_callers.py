"""What ``compile()`` gives serves callers without an event loop as those with one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypedDict

import aiosqlite
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from capgraph import bind
from capgraph.agents import (
    ChainOfThoughtAgent,
    DebateOrchestrator,
    PipelineOrchestrator,
    PlanExecuteAgent,
    ReActAgent,
    ReflexionAgent,
)
from capgraph.engine.sync_graph import compile_graph
from capgraph.testing import ScriptedModel
from capgraph.workflows import (
    DAGWorkflow,
    EventDrivenWorkflow,
    StateMachineWorkflow,
    WorkflowEdge,
    WorkflowNode,
)
from tests.support.agents import SUM, add


async def up(task: str) -> str:
    return task.upper()


async def ask(task: str) -> str:
    return f"{task}: {interrupt('Well?')}"


def scripted(*answers: Any) -> ScriptedModel:
    return ScriptedModel(responses=list(answers))


def events() -> EventDrivenWorkflow:
    flow = EventDrivenWorkflow(terminal_event="done")
    flow.on("task", up, gives="done")
    return flow


FORMS: dict[str, tuple[Callable[[], Any], Any]] = {
    "react": (lambda: ReActAgent(scripted(*SUM), tools=[add]), "It is 4."),
    "bound": (lambda: ReActAgent(scripted(*SUM), tools=[add], services=bind([])), "It is 4."),
    "plan": (lambda: PlanExecuteAgent(scripted('["Say 4"]', "4")), "4"),
    "reflexion": (
        lambda: ReflexionAgent(ReActAgent(scripted("It is 4.", "YES"))),
        "It is 4.",
    ),
    "thought": (lambda: ChainOfThoughtAgent(scripted("<thinking>hm</thinking> 4")), "4"),
    "row": (lambda: PipelineOrchestrator([up, up]), "GO"),
    "debate": (
        lambda: DebateOrchestrator(
            [up], synthesis_gateway=scripted("All say GO."), debate_rounds=0
        ),
        "All say GO.",
    ),
    "dag": (
        lambda: DAGWorkflow(
            [WorkflowNode("a", up), WorkflowNode("b", up)], [WorkflowEdge("a", "b")]
        ),
        "GO",
    ),
    "states": (lambda: StateMachineWorkflow({"a": up}, {"a": [(None, "z")]}, "a", {"z"}), "GO"),
    "events": (events, "GO"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_invoked_and_streamed_without_a_loop(form: str) -> None:
    make, said = FORMS[form]
    assert make().compile().invoke({"task": "go"})["output"] == said
    *_, last = make().compile().stream({"task": "go"}, stream_mode="values")
    assert last["output"] == said


@pytest.mark.may_block
async def test_also_where_a_loop_is_running() -> None:
    assert DAGWorkflow([WorkflowNode("a", up)]).compile().invoke({"task": "go"})["output"] == "GO"


@pytest.mark.parametrize("form", ["row", "dag"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_question_is_answered_from_a_synchronous_call(form: str, inside: bool) -> None:
    make = {
        "row": lambda: PipelineOrchestrator([ask]),
        "dag": lambda: DAGWorkflow([WorkflowNode("a", ask)]),
    }[form]
    config: Any = {"configurable": {"thread_id": "1"}}
    if not inside:
        graph = make().compile(InMemorySaver())
    else:  # a node of a plain graph of LangGraph's

        class State(TypedDict):
            task: str
            output: str

        builder = StateGraph(State).add_node("ours", make().compile())
        graph = builder.add_edge(START, "ours").compile(InMemorySaver())
    asked = graph.invoke({"task": "go"}, config)["__interrupt__"]
    assert {one.value for one in asked} == {"Well?"}  # of a nested task LangGraph tells it twice
    assert graph.invoke(Command(resume="yes"), config)["output"] == "go: yes"


class Words(TypedDict):
    words: str


async def test_a_database_outlives_a_reader_who_goes_away_in_the_middle_of_a_query() -> None:
    numbers = "SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000000"
    slow = f"WITH RECURSIVE n(i) AS ({numbers}) SELECT max(i) FROM n"
    asking = threading.Event()

    async def ask_it(state: Words) -> Words:
        query = asyncio.ensure_future(database.execute(slow))
        await asyncio.sleep(0)
        asking.set()
        await query
        return state

    builder = StateGraph(Words)
    builder.add_node("first", lambda state: state)
    builder.add_node("ask_it", ask_it)
    builder.add_edge(START, "first")
    builder.add_edge("first", "ask_it")
    graph = compile_graph(builder)

    def goes_away() -> None:
        parts = graph.stream({"words": "x"})
        next(parts)
        asking.wait()
        parts.close()  # type: ignore[attr-defined]

    async with aiosqlite.connect(":memory:") as database:
        await asyncio.to_thread(goes_away)
        async with asyncio.timeout(60), database.execute("SELECT 1") as found:
            assert await found.fetchone() == (1,)
