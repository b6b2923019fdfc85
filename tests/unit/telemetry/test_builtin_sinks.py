"""The sinks that come with the project (T24)."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from capgraph.telemetry import (
    AgentEvent,
    EventDispatcher,
    FanoutSink,
    JsonLinesSink,
    NoopSink,
    RingBufferSink,
    SqliteEventSink,
)
from tests.unit.telemetry.test_event_dispatcher import Collect, stream


async def done(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found


def event(number: int) -> dict[str, Any]:
    return {"event_type": "status", "run_id": "r", "seq": number}


def test_noop_takes_everything() -> None:
    sink = NoopSink()
    sink.emit(event(1))
    sink.flush()
    sink.close()


@pytest.mark.row("T24")
def test_a_ring_buffer_drops_the_oldest_event() -> None:
    sink = RingBufferSink()
    for number in range(1200):
        sink.emit(event(number))
    assert [e["seq"] for e in sink.events] == list(range(200, 1200))
    sink.clear()
    assert sink.events == []
    with pytest.raises(ValueError):
        RingBufferSink(0)


async def test_a_ring_buffer_receives_events_synchronously() -> None:
    sink = RingBufferSink()
    await stream(EventDispatcher([sink]), "a", "b", run_id="r", thread_id="t", plan_id="p")
    first, second = sink.events  # no flush: it is told on the run's own path
    assert (first.run_id, first.thread_id, first.plan_id, first.step) == ("r", "t", "p", "0")
    assert (first.seq, second.seq) == (1, 2)
    assert first.turn is None
    assert first.attempt is None
    assert first.data["reason"] == "a"
    assert type(first.data) is dict


@pytest.mark.parametrize("on_a_loop", [True, False])
def test_lines_of_json(tmp_path: Path, on_a_loop: bool) -> None:
    sink = JsonLinesSink(tmp_path / "events.jsonl")

    async def main() -> None:
        await done(sink.emit(AgentEvent.started("writer", "draft")))
        for number in range(5):
            sink.emit(event(number))
        await done(sink.flush())
        await done(sink.close())

    if on_a_loop:
        asyncio.run(main())
    else:
        sink.emit(AgentEvent.started("writer", "draft"))
        for number in range(5):
            sink.emit(event(number))
        sink.flush()
        sink.close()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert lines[0]["event"] == "agent.started"
    assert [line["seq"] for line in lines[1:]] == [0, 1, 2, 3, 4]


@pytest.mark.row("T24")
async def test_files_are_never_written_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    for cls in (JsonLinesSink, SqliteEventSink):
        write = cls._write

        def noted(self: Any, events: Any, write: Any = write) -> None:
            threads.add(threading.get_ident())
            write(self, events)

        monkeypatch.setattr(cls, "_write", noted)
    lines, rows = JsonLinesSink(tmp_path / "a.jsonl"), SqliteEventSink(tmp_path / "a.db")
    dispatcher = EventDispatcher([FanoutSink([lines, rows])])
    await stream(dispatcher, "a", "b")
    for sink in (lines, rows):
        sink.emit(event(1))  # also straight from a coroutine
        await done(sink.flush())
        await done(sink.close())
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.row("T24")
@pytest.mark.may_block
async def test_events_are_replayed_in_their_order(tmp_path: Path) -> None:
    sink = SqliteEventSink(tmp_path / "events.db")
    dispatcher = EventDispatcher([sink])
    await stream(dispatcher, *map(str, range(50)), run_id="r1", thread_id="t")
    await stream(dispatcher, "other", run_id="r2", thread_id="t")
    await done(sink.flush())
    found = await asyncio.to_thread(sink.replay)
    assert [e["reason"] for e in found] == [*map(str, range(50)), "other"]
    assert [e.seq for e in found if e.run_id == "r1"] == list(range(1, 51))
    assert [e["reason"] for e in sink.replay(run_id="r2")] == ["other"]
    assert len(sink.replay(thread_id="t")) == 51
    await done(sink.close())
    assert len(SqliteEventSink(tmp_path / "events.db").replay()) == 51
    assert [e["reason"] for e in sink.replay(limit=2)] == ["0", "1"]
    assert sink.replay(limit=0) == []
    assert SqliteEventSink(tmp_path / "none.db").replay() == []


def test_queued_events_are_delivered_as_a_batch(tmp_path: Path) -> None:
    gate, batches = threading.Event(), []

    class Slow(SqliteEventSink):
        def _write(self, events: list[dict[str, Any]]) -> None:
            gate.wait()
            batches.append(len(events))

    dispatcher = EventDispatcher([Slow(tmp_path / "x.db")])
    for number in range(100):
        dispatcher._dispatch(event(number))
    gate.set()
    asyncio.run(dispatcher.flush())
    assert sum(batches) == 100
    assert len(batches) <= 3


@pytest.mark.row("T24")
async def test_fanout_tries_all_sinks_and_raises_the_first_error() -> None:
    class Broken:
        def __init__(self, text: str) -> None:
            self.text = text

        def emit(self, event: Any) -> None:
            raise OSError(self.text)

    class Later(Collect):
        async def emit(self, event: dict[str, Any]) -> None:  # type: ignore[override]
            self.events.append(event)

    first, last, later = Collect(), Collect(), Later()
    with pytest.raises(OSError, match="one"):
        FanoutSink([first, Broken("one"), Broken("two"), last]).emit(event(1))
    assert first.events == last.events == [event(1)]
    with pytest.raises(OSError, match="one"):
        await FanoutSink([Broken("one"), later, Broken("two")]).emit(event(2))
    assert later.events == [event(2)]
    fan = FanoutSink([first, later, NoopSink()])
    await fan.emit(event(3))
    assert first.events[-1] == later.events[-1] == event(3)
    fan.flush()
    fan.close()


async def test_a_subscription_receives_only_its_event_types() -> None:
    from capgraph.telemetry import Reclassify

    named, typed, other = RingBufferSink(), RingBufferSink(), RingBufferSink()
    dispatcher = EventDispatcher()
    dispatcher.subscribe(named, event_types=["reclassify"])
    stop = dispatcher.subscribe(typed, event_types=[Reclassify])
    dispatcher.subscribe(other, event_types=["retry"])
    await stream(dispatcher, "a")
    stop()
    await stream(dispatcher, "b")
    assert [e["reason"] for e in named.events] == ["a", "b"]
    assert [e["reason"] for e in typed.events] == ["a"]
    assert other.events == []


def test_events_that_cannot_be_written_are_counted(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "no" / "folder" / "e.jsonl")
    with pytest.raises(OSError):
        sink.emit(event(1))
    assert sink.lost == 1
    sink.flush()
