"""Behaviours without a stage: hooks around a step, wherever it is declared."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from capgraph import CapabilityContext, ErrorSeverity, build_graph, capability_node
from capgraph.base.errors import CapabilityError, ConfigurationError
from capgraph.behaviors import BaseBehavior, BehaviorContext

PLAN = {"steps": [{"context_key": "k", "capability": "read", "task_objective": "read it"}]}


class Level(CapabilityContext):
    litres: int


class Noted(BaseBehavior):
    """Writes down what it is told."""

    def __init__(self, name: str, notes: list[Any], **gives: Any) -> None:
        self.name, self.notes, self.gives = name, notes, gives

    def before_execute(self, context: BehaviorContext) -> None:
        self.notes.append((f"{self.name} before", context.attempt))
        context.metadata.setdefault("seen", []).append(self.name)
        self._fail("before")

    async def after_execute(self, context: BehaviorContext, result: Any) -> Any:
        self.notes.append((f"{self.name} after", context.attempt))
        self._fail("after")
        return self.gives.get("after")

    async def on_error(self, context: BehaviorContext, error: Exception) -> Any:
        self.notes.append((f"{self.name} error", context.attempt, str(error)))
        self._fail("error")
        return self.gives.get("on_error")

    def _fail(self, where: str) -> None:
        if self.gives.get("fails") == where:
            raise ValueError(f"{self.name} failed in {where}")


def reader(*results: Any, **declared: Any) -> Any:
    """Make a capability that gives or raises one after the other."""
    left = list(results)

    async def read() -> Level:
        """Read how full the tank is."""
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return Level(litres=found)

    return capability_node(**declared)(read)


def busy() -> CapabilityError:
    return CapabilityError("busy", severity=ErrorSeverity.RETRIABLE)


async def run(capability: Any, *behaviors: Any) -> dict[str, Any]:
    graph = build_graph([capability], behaviors=behaviors, checkpointer=InMemorySaver())
    given = {"messages": [("user", "read")], "planning_execution_plan": PLAN}
    found: dict[str, Any] = await graph.ainvoke(given, {"configurable": {"thread_id": "t"}})
    return found


@pytest.mark.row("G8", "T29")
async def test_hooks_run_in_order_and_graph_hooks_wrap_capability_hooks() -> None:
    notes: list[Any] = []
    own = reader(3, behaviors=[Noted("own", notes)])
    out = await run(own, Noted("first", notes), Noted("second", notes))
    assert [note[0] for note in notes] == [
        "first before",
        "second before",
        "own before",
        "own after",
        "second after",
        "first after",
    ]
    assert out["capability_context_data"]["LEVEL"]["k"]["litres"] == 3


async def test_hooks_run_once_per_step() -> None:
    notes: list[Any] = []
    await run(reader(busy(), busy(), 3, delay_seconds=0), Noted("a", notes))
    assert notes == [("a before", 1), ("a after", 3)]


@pytest.mark.row("G8")
async def test_a_hooks_result_is_validated() -> None:
    notes: list[Any] = []
    out = await run(reader(3), Noted("a", notes, after=Level(litres=7)))
    assert out["capability_context_data"]["LEVEL"]["k"]["litres"] == 7
    assert "source" not in out["execution_step_results"]["k"]
    out = await run(reader(3), Noted("a", notes, after={"litres": "seven"}))
    assert not out["execution_step_results"]["k"]["success"]


async def test_the_first_fallback_result_is_used() -> None:
    notes: list[Any] = []
    behaviors = [
        Noted("first", notes),
        Noted("second", notes, on_error=Level(litres=1)),
        Noted("third", notes, on_error=Level(litres=2)),
    ]
    out = await run(reader(CapabilityError("broken")), *behaviors)
    record = out["execution_step_results"]["k"]
    assert (record["success"], record["source"]) == (True, "fallback")
    assert out["capability_context_data"]["LEVEL"]["k"]["litres"] == 1
    assert [note[0] for note in notes[3:]] == ["first error", "second error"]
    assert "broken" in notes[-1][2]


@pytest.mark.row("G8")
@pytest.mark.parametrize("where", ["before", "after"])
async def test_a_failed_hook_fails_the_step_and_calls_on_error(where: str) -> None:
    notes: list[Any] = []
    out = await run(reader(3), Noted("outer", notes), Noted("inner", notes, fails=where))
    record = out["execution_step_results"]["k"]
    assert not record["success"]
    assert f"inner failed in {where}" in record["error"]
    assert [note[0] for note in notes][-2:] == ["outer error", "inner error"]


async def test_an_on_error_failure_is_reported_with_the_error() -> None:
    out = await run(reader(CapabilityError("broken")), Noted("a", [], fails="error"))
    assert "a failed in error" in out["execution_step_results"]["k"]["error"]


async def test_hooks_run_again_when_a_step_is_resumed() -> None:
    notes: list[Any] = []

    @capability_node
    async def read() -> Level:
        """Read how full the tank is."""
        return Level(litres=interrupt("how much?"))

    graph = build_graph([read], behaviors=[Noted("a", notes)], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    given = {"messages": [("user", "read")], "planning_execution_plan": PLAN}
    await graph.ainvoke(given, config)
    assert [note[0] for note in notes] == ["a before"]
    await graph.ainvoke(Command(resume=5), config)
    assert [note[0] for note in notes] == ["a before", "a before", "a after"]


@pytest.mark.row("G9")
async def test_a_hundred_runs_of_one_behavior_are_independent() -> None:
    class Timed(BaseBehavior):
        def before_execute(self, context: BehaviorContext) -> None:
            assert context.metadata == {}
            context.metadata["own"] = context.execution_id

        async def after_execute(self, context: BehaviorContext, result: Any) -> Any:
            await asyncio.sleep(0)
            assert context.metadata == {"own": context.execution_id}

    @capability_node
    async def read() -> Level:
        """Read how full the tank is."""
        await asyncio.sleep(0)
        return Level(litres=1)

    graph = build_graph([read], behaviors=[Timed()], checkpointer=InMemorySaver())
    given = {"messages": [("user", "read")], "planning_execution_plan": PLAN}
    found = await asyncio.gather(
        *(graph.ainvoke(given, {"configurable": {"thread_id": str(n)}}) for n in range(100))
    )
    assert all(out["execution_step_results"]["k"]["success"] for out in found)


def test_a_behavior_class_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not a class"):
        build_graph([reader(1)], behaviors=[Noted])  # type: ignore[list-item]


async def test_the_execution_id_is_unique_per_run() -> None:
    from langgraph.graph import START, StateGraph

    from capgraph import bind
    from capgraph.state import AgentState

    names: list[str] = []

    class Named(BaseBehavior):
        def before_execute(self, context: BehaviorContext) -> None:
            names.append(context.execution_id)

        def after_execute(self, context: BehaviorContext, result: Any) -> None:
            assert names[-1] == context.execution_id

    read = reader(1, 2, 3, 4)
    for _ in range(2):
        await run(read, Named())
    builder = StateGraph(AgentState)
    builder.add_node("read", bind([read], behaviors=[Named()]).node(read))
    builder.add_edge(START, "read")
    graph = builder.compile(checkpointer=InMemorySaver())
    for thread in "12":
        await graph.ainvoke({}, {"configurable": {"thread_id": thread}})
    assert len(set(names)) == len(names) == 4
