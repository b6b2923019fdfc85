"""Sinks get the events of a run in order, and can neither slow nor break it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from capgraph.configs.errors import ConfigurationError
from capgraph.telemetry import EventDispatcher, Reclassify, emit, event_context, parse_event


class Collect:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def emit(self, event: dict[str, Any]) -> None:
        self.events.append(event)


class CollectLater(Collect):
    async def emit(self, event: dict[str, Any]) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.events.append(event)


class State(TypedDict, total=False):
    done: bool


async def stream(dispatcher: EventDispatcher, *reasons: str, **ids: str) -> list[dict[str, Any]]:
    """What a graph streams whose node says the reasons."""

    async def node(_: State) -> State:
        with dispatcher.dispatch_run(**ids):
            for number, reason in enumerate(reasons):
                with event_context(step_id=str(number)):
                    emit(Reclassify(reason=reason))
        return {"done": True}

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return [event async for event in builder.compile().astream({}, stream_mode="custom")]


@pytest.mark.parametrize("kind", [Collect, CollectLater])
async def test_a_sink_receives_the_events_of_the_stream(kind: type[Collect]) -> None:
    first, second = kind(), Collect()
    dispatcher = EventDispatcher([first, second])
    events = await stream(dispatcher, "a", "b", "c", run_id="r", thread_id="t")
    await dispatcher.flush()
    assert first.events == second.events == events
    assert [event["reason"] for event in events] == ["a", "b", "c"]
    assert [event["step_id"] for event in events] == ["0", "1", "2"]
    assert {(event["run_id"], event["thread_id"]) for event in events} == {("r", "t")}


async def test_each_run_counts_its_events_from_one() -> None:
    dispatcher = EventDispatcher()
    events = await stream(dispatcher, "a", "b") + await stream(dispatcher, "c")
    assert [parse_event(event).seq for event in events] == [1, 2, 1]


async def test_a_run_inside_another_goes_on_counting() -> None:
    inner_sink, outer_sink = Collect(), Collect()
    inner, outer = EventDispatcher([inner_sink]), EventDispatcher([outer_sink])

    async def node(_: State) -> State:
        with outer.dispatch_run(run_id="r"):
            emit(Reclassify(reason="a"))
            for reason in ("b", "c"):
                with inner.dispatch_run():
                    emit(Reclassify(reason=reason))
            emit(Reclassify(reason="d"))
        return {"done": True}

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    events = [e async for e in builder.compile().astream({}, stream_mode="custom")]
    for dispatcher in (inner, outer):
        await dispatcher.flush()
    assert [e["seq"] for e in events] == [e["seq"] for e in outer_sink.events] == [1, 2, 3, 4]
    assert [e["seq"] for e in inner_sink.events] == [2, 3]


async def test_a_sink_of_nested_runs_receives_each_event_once() -> None:
    class Ends(Collect):
        def run_ended(self, event: dict[str, Any]) -> None:
            self.events.append(event)

    sink = Ends()
    inner, outer = EventDispatcher([sink]), EventDispatcher([sink])

    async def node(_: State) -> State:
        with outer.dispatch_run(run_id="r"):
            with inner.dispatch_run():
                emit(Reclassify(reason="a"))
                inner.end_run()
            emit(Reclassify(reason="b"))
            outer.end_run(ValueError("x"))
        return {"done": True}

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    await builder.compile().ainvoke({})
    for dispatcher in (inner, outer):
        await dispatcher.flush()
    assert [e.get("reason") or e["event_type"] for e in sink.events] == ["a", "b", "run_ended"]
    assert sink.events[-1]["error"] == "ValueError"


@pytest.mark.row("T24")
async def test_a_slow_sink_misses_events_and_is_notified(caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()
    began = threading.Event()

    class Slow(Collect):
        def emit(self, event: dict[str, Any]) -> None:
            began.set()
            gate.wait()
            super().emit(event)

    sink, other = Slow(), Collect()
    dispatcher = EventDispatcher([sink, other], capacity=2)
    with caplog.at_level("WARNING", logger="capgraph"):
        await stream(dispatcher, "a")
        await asyncio.to_thread(began.wait)
        assert len(await stream(dispatcher, "b", "c", "d", "e")) == 4  # the run is not held up
    gate.set()
    await dispatcher.flush()
    await stream(dispatcher, "f")
    await dispatcher.flush()
    said = [event.get("reason", event.get("count")) for event in sink.events]
    assert said == ["a", "b", "c", 2, "f"]
    assert len([r for r in caplog.records if "Slow is too slow" in r.getMessage()]) == 1


@pytest.mark.row("T24")
async def test_a_broken_sink_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def emit(self, event: dict[str, Any]) -> None:
            raise OSError("postgresql://me:pw12@host is away")

    sink = Collect()
    dispatcher = EventDispatcher([Broken(), sink])
    with caplog.at_level("WARNING", logger="capgraph"):
        assert len(await stream(dispatcher, "a", "b")) == 2
        await dispatcher.flush()
    assert len(sink.events) == 2
    [record] = caplog.records
    assert "OSError" in record.getMessage()
    assert "pw12" not in record.getMessage()


async def test_events_leave_without_secrets() -> None:
    sink = Collect()
    dispatcher = EventDispatcher([sink])
    [event] = await stream(dispatcher, "postgresql://me:pw12@host is away")
    await dispatcher.flush()
    assert event["reason"] == sink.events[0]["reason"] == "postgresql://me:***@host is away"


def test_an_object_without_emit_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="emit"):
        EventDispatcher([object()])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="colour"), event_context(colour="red"):
        pass
