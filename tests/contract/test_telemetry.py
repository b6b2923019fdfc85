"""Events, sinks and spans of whole graphs, as the public contract writes them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from framework import BaseCapability, CapabilityContext, build_graph, capability_node
from framework.telemetry import JsonLinesSink, RingBufferSink, SqliteEventSink


class Level(CapabilityContext):
    litres: float


class Sum(CapabilityContext):
    litres: float


@capability_node
class Read(BaseCapability):
    name = "read"
    description = "Read a level"
    provides = [Level]

    async def execute(self) -> Level:
        await asyncio.sleep(0)
        return Level(litres=1.0)


@capability_node
class Add(BaseCapability):
    name = "add"
    description = "Add levels"
    requires = [Level]
    provides = [Sum]

    async def execute(self) -> Sum:
        return Sum(litres=2.0)


PLAN = {
    "steps": [
        {
            "context_key": "a",
            "capability": "read",
            "task_objective": "read",
            "expected_output": "LEVEL",
        },
        {
            "context_key": "b",
            "capability": "add",
            "task_objective": "add",
            "expected_output": "SUM",
            "inputs": [{"LEVEL": "a"}],
        },
        {"context_key": "z", "capability": "respond", "task_objective": "answer"},
    ]
}
GIVEN = {"messages": [("user", "How much?")], "planning_execution_plan": PLAN}


async def test_an_event_says_what_it_is_about() -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    sink = RingBufferSink()
    graph = build_graph([Level, Sum, Read, Add], checkpointer=InMemorySaver(), sinks=[sink])
    config: Any = {"configurable": {"thread_id": "1"}}
    await graph.ainvoke(GIVEN, config)
    events = sink.events
    assert len({e.run_id for e in events}) == 1
    assert {e.thread_id for e in events} == {"1"}
    seqs = [e.seq for e in events]
    assert seqs == sorted(set(seqs))
    started = [e for e in events if e["event_type"] == "step_started"]
    assert [(e.step, e.attempt) for e in started] == [("a", 1), ("b", 1)]
    assert len({e.plan_id for e in started}) == 1
    assert len({e.turn for e in started}) == 1
    assert None not in {e.plan_id for e in started} | {e.turn for e in started}


async def test_a_sink_comes_and_goes() -> None:
    graph, sink = build_graph([Level, Sum, Read, Add]), RingBufferSink()
    unsubscribe = graph.subscribe(sink, events=["step_finished"])
    await graph.ainvoke(GIVEN)
    assert [e.step for e in sink.events] == ["a", "b"]
    unsubscribe()
    await graph.ainvoke(GIVEN)
    assert len(sink.events) == 2


def test_events_in_files(tmp_path: Path) -> None:
    lines, rows = JsonLinesSink(tmp_path / "e.jsonl"), SqliteEventSink(tmp_path / "e.db")
    graph = build_graph([Level, Sum, Read, Add], sinks=[lines, rows])
    graph.invoke(GIVEN)
    lines.flush()
    replayed = rows.replay()
    assert [e["event_type"] for e in replayed][-1] == "turn_finished"
    assert len((tmp_path / "e.jsonl").read_text().splitlines()) == len(replayed)
    lines.close()
    rows.close()
