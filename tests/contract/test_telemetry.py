"""Events, sinks and spans of whole graphs, as the public contract writes them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from capgraph import BaseCapability, CapabilityContext, bind, build_graph, capability_node
from capgraph.adapters import as_tool
from capgraph.behaviors import RetryBehavior
from capgraph.governance import QualityGate
from capgraph.telemetry import AuditLog, JsonLinesSink, RingBufferSink, SqliteEventSink
from capgraph.telemetry.audit import record_later
from capgraph.testing import FakeClock, ScriptedModel


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


@pytest.mark.row("T24")
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


@pytest.mark.row("T24")
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


class BreaksOff(ScriptedModel):
    """Says two words of its first answer, then the connection is gone."""

    async def _astream(self, *args: Any, **kwargs: Any) -> Any:
        broken = not self.calls
        said = 0
        async for chunk in super()._astream(*args, **kwargs):
            if broken and said == 2:
                raise ConnectionError("gone")
            said += 1
            yield chunk


def shown_to_a_client(events: list[Any]) -> str:
    """Put the answer together as a client does."""
    text = ""
    for event in events:
        if event["event_type"] == "answer_token":
            text = event["text"] if event.get("resets") else text + event["text"]
    return text


@pytest.mark.parametrize("around", [[], [RetryBehavior(base_delay=0)]])
async def test_an_answer_that_broke_off_is_shown_once(around: list[Any]) -> None:
    model = BreaksOff(responses=lambda _: "The tank is full.")
    sink = RingBufferSink()
    graph = build_graph(
        [Level, Sum, Read, Add],
        model={"answer": {"model": model, "behaviors": around}},
        sinks=[sink],
        clock=FakeClock(),
    )
    out = await graph.ainvoke(GIVEN)
    assert out["messages"][-1].content == "The tank is full."
    assert len(model.calls) == 2
    events = sink.events
    assert shown_to_a_client(events) == "The tank is full."
    texts = [event["text"] for event in events if event["event_type"] == "answer_token"]
    assert "".join(texts) == "The tank The tank is full.", "it broke off after two words"


async def test_an_answer_that_the_gate_refused_is_no_part_of_the_next() -> None:
    said = iter(["Full.", "The tank is full."])
    sink = RingBufferSink()
    graph = build_graph(
        [Level, Sum, Read, Add],
        model={"answer": ScriptedModel(responses=lambda _: next(said))},
        answer_gate=QualityGate(2, check=lambda text: 2 if "tank" in text else 1, below="retry"),
        sinks=[sink],
        clock=FakeClock(),
    )
    await graph.ainvoke(GIVEN)
    assert shown_to_a_client(sink.events) == "The tank is full."


async def test_what_runs_outside_of_any_graph_is_told_to_sinks_and_audit(tmp_path: Path) -> None:
    @capability_node
    async def look() -> dict[str, Any]:
        """Look."""
        record_later("looked")
        return {}

    sink = RingBufferSink()
    services = bind([look], sinks=[sink], audit=AuditLog(tmp_path / "audit.jsonl"))
    await as_tool(look, services).ainvoke({})
    sink.flush()
    kinds = [event["event_type"] for event in sink.events]
    assert kinds == ["status", "step_started", "step_finished"]
    assert len({event.run_id for event in sink.events}) == 1
    [line] = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert json.loads(line)["kind"] == "looked"
