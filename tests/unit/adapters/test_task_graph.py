"""Conversion of agents, capabilities, and functions to task graphs."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from capgraph import CapabilityContext, bind, build_graph, capability_node
from capgraph.adapters.task_graph import task_graph
from capgraph.base.errors import ConfigurationError
from capgraph.testing import ScriptedModel

CONFIG: Any = {"configurable": {"thread_id": "1"}}


class Place(CapabilityContext):
    name: str


@capability_node(parameters_from=lambda task: {"days": 2} if "two" in task else {})
async def forecast(place: Place | None, days: int = 1) -> dict[str, Any]:
    """Forecast the weather."""
    return {"where": place.name if place else "here", "days": days}


@capability_node(effect="once")
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@capability_node
async def broken() -> str:
    """Fail."""
    raise ValueError("no luck")


async def done(thing: Any, task: Any = "two days", **options: Any) -> dict[str, Any]:
    return await task_graph(thing, **options).ainvoke({"task": task})


async def test_a_capability_reads_its_parameters_from_the_task() -> None:
    assert await done(forecast) == {
        "output": {"where": "here", "days": 2},
        "success": True,
        "error": None,
    }


async def test_task_may_be_a_mapping_of_arguments() -> None:
    found = await done(forecast, {"PLACE": {"name": "Rome"}, "days": 5})
    assert found["output"] == {"where": "Rome", "days": 5}


async def test_failed_capability_is_unsuccessful() -> None:
    found = await done(broken)
    assert found["success"] is False
    assert "no luck" in found["error"]


async def test_what_nobody_would_keep_needs_services() -> None:
    with pytest.raises(ConfigurationError, match=r'effect="once"'):
        task_graph(pay)
    assert (await done(pay, {"amount": 3}, services=bind([pay])))["output"] == "paid 3"


async def test_invalid_parameters_are_rejected() -> None:
    found = await done(forecast, {"day": 5})
    assert found["success"] is False
    assert "day" in found["error"]


async def test_single_text_parameter_gets_the_task() -> None:
    @tool
    def search(query: str, limit: int = 3) -> str:
        """Search."""
        return query * limit

    assert (await done(search, "a"))["output"] == "aaa"
    assert (await done(search, {"query": "a", "limit": 1}))["output"] == "a"


async def test_services_accept_an_additional_tool() -> None:
    @tool
    def search(query: str) -> str:
        """Search."""
        return query

    assert (await done(search, "a", services=bind([pay])))["output"] == "a"


async def test_synchronous_functions_do_not_block_the_loop() -> None:
    class Own:
        def __call__(self, task: str) -> str:
            return threading.current_thread().name

    async def later(task: str) -> str:
        return task

    assert (await done(Own()))["output"].startswith("capgraph-sync")
    assert (await done(partial(later), "a"))["output"] == "a"
    assert (await done(lambda task: later(task), "a"))["output"] == "a"


async def test_functions_and_agents() -> None:
    class Own:
        async def execute(self, task: str, context: Any = None) -> Any:
            return SimpleNamespace(output=task * 2, success=context is None, error=None)

    assert (await done(str.upper, "a"))["output"] == "A"
    assert (await done(lambda task: {"output": task, "success": False, "error": "no"}, "a")) == {
        "output": "a",
        "success": False,
        "error": "no",
    }
    assert (await done(Own(), "a"))["output"] == "aa"
    found = await task_graph(Own()).ainvoke({"task": "a"}, context={"user": "x"})
    assert found["success"] is False


class Task(TypedDict, total=False):
    task: str
    output: str


async def test_task_graph_is_returned_unchanged() -> None:
    builder = StateGraph(Task)
    builder.add_node("work", lambda state: {"output": state["task"]})
    builder.add_edge(START, "work")
    graph = builder.compile()
    assert task_graph(graph) is graph
    assert (await done(builder))["output"] == "two days"
    assert (await done(SimpleNamespace(compile=lambda: graph)))["output"] == "two days"


async def test_graphs_of_messages() -> None:
    agent = create_agent(ScriptedModel(responses=["It rains."]), [], name="reporter")
    assert task_graph(agent).name == "reporter"
    assert (await done(agent))["output"] == "It rains."
    assert (await done(build_graph([forecast]), "Forecast the weather"))["success"] is True
    failed = await done(build_graph([broken]), "Fail")
    assert failed["success"] is False
    assert "no luck" in failed["error"]


async def test_interrupt_is_raised_and_completed_nodes_do_not_repeat() -> None:
    log: list[str] = []

    def first(state: Any) -> Any:
        log.append("first")

    def second(state: Any) -> Any:
        return {"messages": [("ai", interrupt("colour?"))]}

    builder = StateGraph(MessagesState)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    outer = StateGraph(Task)
    outer.add_node("work", task_graph(builder))
    outer.add_edge(START, "work")
    graph = outer.compile(InMemorySaver())
    asked = await graph.ainvoke({"task": "paint"}, CONFIG)
    assert [item.value for item in asked["__interrupt__"]] == ["colour?"]
    assert (await graph.ainvoke(Command(resume="red"), CONFIG))["output"] == "red"
    assert log == ["first"]


async def test_run_context_reaches_inner_graphs() -> None:
    class Own(TypedDict):
        messages: list[Any]

    def node(state: Own, runtime: Runtime[Any]) -> Any:
        return {"messages": [("ai", runtime.context["user"])]}

    inner = StateGraph(MessagesState, context_schema=dict)
    inner.add_node("node", node)
    inner.add_edge(START, "node")
    inner.add_edge("node", END)
    found = await task_graph(inner).ainvoke({"task": "who"}, context={"user": "Ada"})
    assert found["output"] == "Ada"


@pytest.mark.parametrize("thing", [3, "text", int, object()])
def test_unsupported_objects_are_rejected(thing: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot perform a task"):
        task_graph(thing)


def test_graph_with_other_keys_is_rejected() -> None:
    builder = StateGraph(Place)
    builder.add_node("work", lambda state: {})
    builder.add_edge(START, "work")
    with pytest.raises(ConfigurationError, match="name"):
        task_graph(builder)


async def test_synchronous_agent_runs_in_a_thread() -> None:
    class Plain:
        def execute(self, task: str, context: Any = None) -> dict[str, Any]:
            return {"output": threading.current_thread() is threading.main_thread()}

    assert (await task_graph(Plain()).ainvoke({"task": "x"}))["output"] is False
