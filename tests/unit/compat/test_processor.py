"""Events in a queue: each ends once, capacity comes back, nothing waits for ever."""

from __future__ import annotations

import asyncio
import csv
import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import pytest

from capgraph.base.errors import CapgraphError, ValidationError
from capgraph.compat.processor import (
    Element,
    Event,
    EventStatus,
    Execution,
    Executor,
    ItemExistsError,
    ItemNotFoundError,
    Pile,
    Processor,
    Progression,
)


class Call(Event):
    """Counts how often it ran."""

    runs: int = 0
    wait: float = 0.0
    wrong: bool = False

    async def _invoke(self) -> str:
        self.runs += 1
        await asyncio.sleep(self.wait)
        if self.wrong:
            raise ValueError("no luck")
        return "done"

    @property
    def request(self) -> dict[str, Any]:
        return {"name": self.metadata.get("name")}


class Stream(Event):
    streaming: bool = True

    async def _stream(self) -> Any:
        for piece in "abc":
            yield piece


class Other(Call):
    pass


class OnlyCalls(Processor):
    event_type: ClassVar[type[Event]] = Call


class Calls(Executor):
    processor_type: ClassVar[type[Processor]] = OnlyCalls


CONFIG = {"queue_capacity": 3, "capacity_refresh_time": 0.01}


# Elements, order and collection


@pytest.mark.row("L1")
def test_an_element_keeps_its_id_and_parses_times() -> None:
    one = Element(id="12345678-1234-5678-1234-567812345678", created_at="2026-01-02T03:04:05")
    assert isinstance(one.id, UUID)
    assert one.created_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    with pytest.raises(ValueError, match="frozen"):
        one.id = UUID(int=1)
    with pytest.raises(ValueError, match="extra"):
        Element(colour="red")
    assert bool(one)
    assert hash(one) == hash(Element(id=one.id))


@pytest.mark.row("L1")
def test_an_element_is_restored_as_its_class_without_imports() -> None:
    found = Element.from_json(Element(metadata={"a": 1}).to_json())
    assert found.metadata == {"a": 1}
    data = {**Element().to_dict(), "metadata": {"class": "os.system"}}
    with pytest.raises(ValidationError, match="Unknown class"):
        Element.from_dict(data)


@pytest.mark.row("L8")
def test_a_progression_reflects_direct_changes() -> None:
    one, other, third = (Element() for _ in range(3))
    steps = Progression([one, other])
    steps.order.append(third.id)
    assert third in steps
    assert not steps.include([one, third])
    assert steps.exclude(one)
    assert not steps.exclude(one)
    for empty in (steps.pop, steps.popleft):
        empty()
    with pytest.raises(ItemNotFoundError, match="has no item"):
        steps.pop()
    with pytest.raises(ItemNotFoundError, match="has no item"):
        steps.remove(one)
    steps = Progression([one, other, third])
    steps.move(0, 2)
    steps.swap(0, 1)
    assert list(steps) == [third.id, other.id, one.id]
    assert list((steps - other) + other) == [third.id, one.id, other.id]
    assert isinstance(steps[:1], Progression)


@pytest.mark.row("L9")
def test_a_pile_looks_up_by_id_position_type_and_predicate() -> None:
    items = [Call(), Other(), Call()]
    pile: Pile[Call] = Pile(items, Call)
    assert pile[0] is items[0]
    assert pile[str(items[1].id)] is items[1]
    assert list(pile[Other]) == [items[1]]
    assert list(pile[1:]) == items[1:]
    assert list(pile[lambda item: item is items[2]]) == [items[2]]
    assert pile.get(Element(), None) is None
    with pytest.raises(ItemNotFoundError, match="has no item"):
        pile[Element()]
    with pytest.raises(ItemExistsError, match="already"):
        pile.insert(0, items[0])
    with pytest.raises(ItemExistsError):
        pile[items[0].id] = items[0]
    assert issubclass(ItemNotFoundError, CapgraphError)


@pytest.mark.row("L9")
def test_a_wrong_type_leaves_a_pile_unchanged() -> None:
    pile: Pile[Any] = Pile([Call()], Call, strict_type=True)
    for wrong in (Other(), Element(), [Call(), Element()]):
        with pytest.raises(ValidationError, match="expected Call"):
            pile.include(wrong)
    assert len(pile) == 1
    assert len(Pile([Other()], Call)) == 1


@pytest.mark.row("L9")
def test_set_operations_of_piles() -> None:
    one, other, third = Element(), Element(), Element()
    left, right = Pile([one, other]), Pile([other, third])
    assert list(left | right) == [one, other, third]
    assert list(left & right) == [other]
    assert list(left - right) == [one]
    assert list(left ^ right) == [one, third]


@pytest.mark.row("L10")
def test_iteration_skips_removed_items() -> None:
    pile = Pile(items := [Element() for _ in range(3)])
    seen = []
    for item in pile:
        seen.append(item)
        pile.exclude(items[1])
    assert seen == [items[0], items[2]]


@pytest.mark.row("L9")
def test_a_pile_is_written_as_json_and_csv(tmp_path: Path) -> None:
    pile: Pile[Call] = Pile([Call(wait=0.5, metadata={"a": "x,y"})])
    pile.dump(tmp_path / "calls.json", "json")
    assert json.loads((tmp_path / "calls.json").read_text())[0]["wait"] == 0.5
    pile.dump(tmp_path / "calls.csv", "csv")
    with (tmp_path / "calls.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert json.loads(row["metadata"])["a"] == "x,y"
    with pytest.raises(ValidationError, match="Unknown format 'xml'"):
        pile.dump(tmp_path / "calls.xml", "xml")


@pytest.mark.row("L10")
async def test_async_methods_wait_for_the_lock_of_the_pile() -> None:
    pile: Pile[Element] = Pile()
    async with pile:
        adding = asyncio.create_task(pile.ainclude(Element()))
        await asyncio.sleep(0)
        assert not pile
    assert await adding
    assert len(pile) == 1


# Events


async def test_subclass_fields_shadow_nothing() -> None:
    class Mine(Event):
        fail: bool = False
        cancel: bool = False

        async def _run(self) -> str:
            return "mine"

        async def _invoke(self) -> str:
            return await self._run()

    event = Mine(fail=True)
    await event.invoke()
    assert (event.status, event.response) == (EventStatus.COMPLETED, "mine")


@pytest.mark.row("L5", "L7")
async def test_an_event_runs_once_and_stores_its_failure() -> None:
    event = Call(wrong=True)
    await event.invoke()
    await event.invoke()
    assert event.runs == 1
    assert event.status is EventStatus.FAILED
    assert event.execution.duration is not None
    with pytest.raises(RuntimeError, match="no luck") as caught:
        event.assert_completed()
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.row("L5")
async def test_a_cancelled_event_raises_the_cancellation() -> None:
    event = Call(wait=60)
    ended = event.completion_event
    task = asyncio.create_task(event.invoke())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert event.status is EventStatus.CANCELLED
    assert ended.is_set()


@pytest.mark.row("L6")
async def test_a_stream_yields_pieces_and_is_cancelled_on_close() -> None:
    event = Stream()
    assert [piece async for piece in event.stream()] == ["a", "b", "c"]
    assert event.status is EventStatus.COMPLETED
    assert [piece async for piece in event.stream()] == []
    left = Stream()
    pieces = left.stream()
    assert await anext(pieces) == "a"
    await pieces.aclose()
    assert left.status is EventStatus.CANCELLED


@pytest.mark.row("L4", "L7")
def test_a_fresh_event_is_pending() -> None:
    event = Call(wait=0.5, metadata={"name": "a"})
    event.status = "failed"
    fresh = event.as_fresh_event()
    assert fresh.status is EventStatus.PENDING
    assert fresh.id != event.id
    assert fresh.metadata["original"] == {"id": str(event.id), "created_at": event.created_at}
    with pytest.raises(ValueError, match="'gone' is unknown"):
        event.status = "gone"
    with pytest.raises(NotImplementedError):
        Call.from_dict({})


@pytest.mark.row("L3")
def test_unserializable_responses_are_marked() -> None:
    written = Execution(
        response=object(), error=ExceptionGroup("two", [ValueError("a")])
    ).model_dump()
    assert written["response"] == "<unserializable>"
    assert written["error"]["exceptions"] == [{"error": "ValueError", "message": "a"}]


# The processor


@pytest.mark.row("L11")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((0, 1.0), "greater than 0"),
        ((1, 0), "greater than 0"),
        ((1, 1.0, None, -1), "must not be negative"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Processor(*arguments)


class Picky(Processor):
    """Denies by name; ``later`` is put off twice."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.later = 2

    async def request_permission(self, name: Any = None, **_: Any) -> bool:
        if name == "broken":
            raise RuntimeError("permission cannot be read")
        if name == "later" and self.later:
            self.later -= 1
            return False
        return name != "never"

    def handle_denied(self, event: Event) -> Any:
        return False if event.metadata.get("name") == "later" else super().handle_denied(event)


def named(name: str) -> Call:
    return Call(metadata={"name": name})


@pytest.mark.row("L15")
async def test_a_denied_event_ends_and_takes_no_capacity() -> None:
    processor = Picky(1, 0.01)
    denied = [named("never") for _ in range(5)]
    for event in (*denied, last := named("fine")):
        await processor.enqueue(event)
    await processor.process()
    assert {event.status for event in denied} == {EventStatus.SKIPPED}
    assert last.status is EventStatus.COMPLETED
    assert processor.available_capacity == 1


@pytest.mark.row("L16")
async def test_a_deferred_event_is_queued_again() -> None:
    processor = Picky(5, 0.01)
    late, other = named("later"), named("fine")
    await processor.enqueue(late)
    await processor.enqueue(other)
    await processor.process()
    assert (late.status, other.status) == (EventStatus.PENDING, EventStatus.COMPLETED)
    await processor.join()
    assert late.status is EventStatus.COMPLETED


@pytest.mark.row("L16")
async def test_a_failed_permission_fails_only_its_event() -> None:
    processor = Picky(5, 0.01)
    await processor.enqueue(broken := named("broken"))
    await processor.enqueue(fine := named("fine"))
    await processor.process()
    assert broken.status is EventStatus.FAILED
    assert "cannot be read" in str(broken.execution.error)
    assert fine.status is EventStatus.COMPLETED


@pytest.mark.row("L15")
async def test_a_duplicate_event_runs_once() -> None:
    processor = Processor(5, 0.01)
    event = Call()
    await processor.enqueue(event)
    await processor.enqueue(event)
    await processor.join()
    assert event.runs == 1
    assert not processor.queue


@pytest.mark.row("L13", "L17")
async def test_started_events_stay_within_the_capacity() -> None:
    processor = Processor(2, 0.05)
    events = [Call(wait=60) for _ in range(6)]  # what runs long keeps nobody else from beginning
    for event in events:
        await processor.enqueue(event)
    running = asyncio.create_task(processor.execute())
    began: list[int] = []
    while sum(event.runs for event in events) < 6:
        await asyncio.sleep(0.001)
        began.append(sum(event.runs for event in events))
    steps = {after - before for before, after in zip([0, *began], began, strict=False)}
    assert max(steps) == 2
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert {event.status for event in events} == {EventStatus.CANCELLED}
    assert processor.available_capacity == 2
    assert not processor.execution_mode


@pytest.mark.row("L11")
async def test_concurrent_events_stay_within_the_limit() -> None:
    class Counting(Call):
        async def _invoke(self) -> str:
            nonlocal most, now
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1
            return "done"

    most = now = 0
    processor = Processor(100, 0.01, concurrency_limit=3)
    for _ in range(20):
        await processor.enqueue(Counting())
    await processor.join()
    assert most == 3


@pytest.mark.row("L12")
async def test_enqueue_waits_for_a_full_queue() -> None:
    processor = Processor(1, 0.01, max_queue_size=1)
    assert processor.try_enqueue(Call())
    assert processor.queue_full
    assert not processor.try_enqueue(Call())
    adding = asyncio.create_task(processor.enqueue(second := Call()))
    await asyncio.sleep(0)
    assert not adding.done()
    await processor.process()
    await adding
    await processor.join()
    assert second.status is EventStatus.COMPLETED


@pytest.mark.row("L14", "L17")
async def test_stop_applies_before_execute_and_at_once() -> None:
    processor = Processor(1, 3600.0)
    await processor.stop()
    await processor.enqueue(event := Call())
    await processor.execute()
    assert event.status is EventStatus.PENDING
    await processor.start()
    running = asyncio.create_task(processor.execute())
    await processor.enqueue(Call())  # no capacity for it within the hour
    while event.status is not EventStatus.COMPLETED:
        await asyncio.sleep(0)
    await processor.stop()
    await asyncio.wait_for(running, 30)
    assert len(processor.queue) == 1


@pytest.mark.row("L18")
async def test_join_waits_for_an_executing_processor() -> None:
    processor = Processor(2, 0.001)
    running = asyncio.create_task(processor.execute())
    events = [Call() for _ in range(7)]
    for event in events:
        await processor.enqueue(event)
    await processor.join()
    assert {event.status for event in events} == {EventStatus.COMPLETED}
    await processor.stop()
    await running


@pytest.mark.row("L2", "L15")
async def test_ten_thousand_events_run_once_each() -> None:
    chance = random.Random(5)

    class Rough(Processor):
        async def request_permission(self, **_: Any) -> bool:
            if chance.random() < 0.02:
                raise RuntimeError("no")
            return chance.random() < 0.8

        async def handle_denied(self, event: Event) -> Any:
            return False if chance.random() < 0.5 else None

    ended: dict[UUID, int] = {}

    class Noted(Call):
        async def _invoke(self) -> str:
            ended[self.id] = ended.get(self.id, 0) + 1
            if (luck := chance.random()) < 0.1:
                raise ValueError("no luck")
            if luck < 0.15:
                raise asyncio.CancelledError
            await asyncio.sleep(0)
            return "done"

    processor = Rough(500, 0.0001, concurrency_limit=50, max_queue_size=2000)
    running = asyncio.create_task(processor.execute())
    events = [Noted() for _ in range(10_000)]
    for event in events:
        await processor.enqueue(event)
    await processor.join()
    await processor.stop()
    await running
    assert all(event.status.is_terminal for event in events)
    assert set(ended.values()) == {1}
    assert processor.available_capacity == 500
    kinds = {event.status for event in events}
    assert kinds == {*EventStatus} - {
        EventStatus.PENDING,
        EventStatus.PROCESSING,
        EventStatus.ABORTED,
    }


# The executor


@pytest.mark.row("L19", "L21", "L24")
async def test_an_executor_creates_its_processor_and_runs_several_batches() -> None:
    executor = Calls(CONFIG)
    events = [Call() for _ in range(7)]
    for event in events:
        await executor.append(event)
        await executor.append(event)
    assert executor.inspect_state()["pending"] == 7
    await executor.forward()
    assert {event.runs for event in events} == {1}
    assert executor.status_counts == {"completed": 7}
    assert events[0] in executor
    assert str(events[0].id) in executor
    assert executor.cleanup_completed() == 7
    assert len(executor.pile) == 0


@pytest.mark.row("L20")
async def test_a_wrong_type_changes_nothing() -> None:
    executor = Calls(CONFIG, strict_event_type=True)
    for wrong in (Stream(), Other()):
        with pytest.raises(ValidationError):
            await executor.append(wrong)
    assert len(executor.pile) == len(executor.pending) == 0


@pytest.mark.row("L21")
async def test_a_removed_event_is_skipped() -> None:
    executor = Calls(CONFIG)
    gone, stays = Call(), Call()
    await executor.append(gone)
    await executor.append(stays)
    executor.pile.exclude(gone)
    await executor.forward()
    assert (gone.runs, stays.runs) == (0, 1)


@pytest.mark.row("L22", "L23")
async def test_a_stopped_executor_keeps_pending_events() -> None:
    executor = Calls({**CONFIG, "max_queue_size": 1})
    await executor.stop()
    await executor.start()
    await executor.stop()
    for _ in range(3):
        await executor.append(Call())
    await executor.forward()
    assert len(executor.pending_events) == 3
    await executor.start()
    await executor.forward()
    assert len(executor.completed_events) == 3
    assert not executor.failed_events
    assert not executor.cancelled_events
    assert not executor.skipped_events


@pytest.mark.row("L6")
async def test_a_streaming_event_runs_in_the_processor() -> None:
    executor = Executor(CONFIG)
    await executor.append(event := Stream())
    await executor.forward()
    assert event.response == ["a", "b", "c"]
