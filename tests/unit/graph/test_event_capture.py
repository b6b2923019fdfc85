"""Capturing the events of a turn and of runs nested in it."""

from __future__ import annotations

import asyncio
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer

from capgraph import CapabilityContext, build_graph, capability_node
from capgraph.configs.streaming import emit
from capgraph.graph.turn_runner import TurnRunner


class Note(CapabilityContext):
    text: str


def told(what: str) -> dict[str, Any]:
    return {"event_type": "status", "message": what}


@capability_node
async def speak() -> Note:
    """Speak here, in a thread, by LangGraph's own writer, and run another agent."""
    emit(told("here"))
    await asyncio.to_thread(emit, told("thread"))
    get_stream_writer()(told("raw"))
    inner = build_graph([silent])
    heard = [
        part["data"]["message"]
        async for part in inner.astream(given("silent"), stream_mode=["custom"], version="v2")
        if part["data"].get("message") == "inside"
    ]
    await inner.ainvoke(given("silent"))
    return Note(text=",".join(heard))


@capability_node
async def silent() -> Note:
    """Speak inside."""
    emit(told("inside"))
    return Note(text="")


def given(capability: str) -> dict[str, Any]:
    steps = [{"context_key": "a", "capability": capability, "inputs": []}]
    return {"messages": [("user", "Go")], "planning_execution_plan": {"steps": steps}}


async def run(take: Any) -> Any:
    graph = build_graph([speak, silent], checkpointer=InMemorySaver())
    turn = TurnRunner(graph, {"configurable": {"thread_id": "t"}})
    return await turn.run(given("speak"), take), await graph.aget_state(
        {"configurable": {"thread_id": "t"}}
    )


async def test_events_are_captured_from_every_thread_and_nested_run() -> None:
    events: list[dict[str, Any]] = []
    end, state = await run(events.append)
    assert end.status == "completed"
    said = [event.get("message") for event in events]
    assert said.count("here") == said.count("thread") == said.count("raw") == 1
    # The stream of a run inside is that of whoever runs it there.
    assert "inside" not in said
    assert state.values["capability_context_data"]["NOTE"]["a"]["text"] == "inside"
    kinds = [event["event_type"] for event in events]
    assert kinds[-1] == "turn_finished"
    assert kinds.count("turn_finished") == 1


async def test_a_failing_event_handler_ends_the_run_without_failing_a_step() -> None:
    def take(event: dict[str, Any]) -> None:
        if event["event_type"] == "step_started":
            raise OSError("The screen is gone.")

    end, state = await run(take)
    assert "The screen is gone." in str(end.error)
    assert not state.values.get("execution_step_results")
