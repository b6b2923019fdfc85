"""The document of lionagi's processor: its classes with their imports changed, and what its rows promise."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator
from threading import Thread
from typing import Any, ClassVar

import pytest
from langgraph.graph import StateGraph

from capgraph.base import ValidationError
from capgraph.compat.processor import (
    Element,
    Event,
    EventStatus,
    Execution,
    Executor,
    Pile,
    Processor,
)

CONFIG: dict[str, Any] = {"queue_capacity": 10, "capacity_refresh_time": 0.01}


# The document


class Call(Event):
    text: str = ""

    @property
    def request(self) -> dict[str, Any]:
        return {"text": self.text}

    async def _invoke(self) -> str:
        return self.text.upper()


class CallProcessor(Processor):
    event_type: ClassVar[type[Event]] = Call

    async def request_permission(self, **request: Any) -> bool:
        return bool(request["text"] != "no")


class CallExecutor(Executor):
    processor_type: ClassVar[type[Processor]] = CallProcessor


@pytest.mark.row("L11", "L12", "L13", "L14", "L15", "L17", "L18")
async def test_processor_has_the_members_of_the_document() -> None:
    coroutines = "enqueue dequeue join stop start create process request_permission execute"
    for name in coroutines.split():
        assert inspect.iscoroutinefunction(getattr(Processor, name)), name
    processor = await CallProcessor.create(**CONFIG)
    assert processor.available_capacity == processor.queue_capacity == 10
    assert not processor.execution_mode
    await processor.enqueue(call := Call(text="yes"))
    assert await processor.dequeue() is call
    await processor.enqueue(call)
    await processor.process()
    assert (call.status, call.response) == (EventStatus.COMPLETED, "YES")
    assert processor.available_capacity == 10
    await processor.stop()
    assert processor.is_stopped()
    await processor.start()
    assert not processor.is_stopped()
    await asyncio.wait_for(processor.join(), 1)


@pytest.mark.row("L11")
@pytest.mark.parametrize("config", [(0, 1.0), (1, 0.0)])
def test_processor_refuses_the_numbers_of_the_document(config: tuple[int, float]) -> None:
    with pytest.raises(ValueError):
        Processor(*config)


@pytest.mark.row("L19", "L20", "L21", "L22", "L23")
async def test_executor_has_the_members_of_the_document() -> None:
    executor = CallExecutor(processor_config=dict(CONFIG), strict_event_type=True)
    assert executor.event_type is Call
    assert executor.strict_event_type
    assert not executor.processor
    await executor.start()
    assert isinstance(executor.processor, CallProcessor)
    call = Call(text="yes")
    await executor.append(call)
    assert call in executor
    assert call.id in executor
    assert list(executor.pending) == [call.id]
    assert list(executor.pending_events) == [call]
    await executor.forward()
    assert list(executor.completed_events) == [call]
    assert not executor.failed_events
    await executor.stop()
    assert executor.processor.is_stopped()


# L1: elements


def define_element(module: str) -> type[Element]:
    return type("Twin", (Element,), {"__module__": module})


@pytest.mark.row("L1")
def test_an_element_is_restored_by_module_and_name() -> None:
    first, second = define_element("one.module"), define_element("another.module")
    for twin in (first, second):
        restored = Element.from_dict(twin().to_dict())
        assert type(restored) is twin
    assert type(first.from_dict(first().to_dict())) is first
    with pytest.raises(ValidationError):
        first.from_dict(second().to_dict())


# L3: errors


@pytest.mark.row("L3")
def test_repeated_errors_are_grouped() -> None:
    execution = Execution()
    execution.add_error(first := ValueError("no"))
    assert execution.error is first
    execution.add_error(second := OSError("gone"))
    assert isinstance(execution.error, ExceptionGroup)
    assert execution.error.exceptions == (first, second)
    for _ in range(200):
        execution.add_error(ValueError("again"))
    assert len(execution.error.exceptions) == 100
    plain = execution.model_dump(mode="json")["error"]
    assert plain["exceptions"][0] == {"error": "ValueError", "message": "no"}


# L5 to L7: events with methods of their own


class OwnInvoke(Event):
    """An event that overrides ``invoke``, as events of the first version do."""

    fault: str = ""
    statuses: list[EventStatus] = []

    async def invoke(self) -> None:
        self.statuses.append(self.status)
        if self.fault:
            raise OSError(self.fault)
        self.execution.response = "done"


class OwnStatus(Event):
    """An event that sets the status of its execution itself."""

    outcome: str = "completed"

    async def invoke(self) -> None:
        self.execution.status = EventStatus.PROCESSING
        await asyncio.sleep(0)
        self.execution.status = EventStatus(self.outcome)


class OwnStream(Event):
    streaming: bool = True
    fault: str = ""

    async def stream(self) -> AsyncIterator[int]:
        for number in (1, 2):
            yield number
        if self.fault:
            raise OSError(self.fault)


class Extended(Call):
    """An event that extends the work of its base class."""

    async def invoke(self) -> None:
        await super().invoke()
        self.execution.response = f"{self.execution.response}!"


async def process(event: Event) -> None:
    processor = Processor(**CONFIG)
    await processor.enqueue(event)
    await processor.process()


@pytest.mark.row("L5", "L7")
@pytest.mark.parametrize("is_queued", [True, False])
async def test_an_event_may_override_invoke(is_queued: bool) -> None:
    event = OwnInvoke()
    completion = event.completion_event
    await (process(event) if is_queued else event.invoke())
    assert event.statuses == [EventStatus.PROCESSING]
    assert (event.status, event.response) == (EventStatus.COMPLETED, "done")
    assert completion.is_set()
    assert event.execution.duration is not None
    await event.invoke()
    assert len(event.statuses) == 1, "an event runs once"


@pytest.mark.row("L5", "L7")
@pytest.mark.parametrize("is_queued", [True, False])
async def test_a_failure_of_an_overridden_invoke_is_stored(is_queued: bool) -> None:
    event = OwnInvoke(fault="gone")
    completion = event.completion_event
    await (process(event) if is_queued else event.invoke())
    assert event.status is EventStatus.FAILED
    assert str(event.execution.error) == "gone"
    assert completion.is_set()


@pytest.mark.row("L5")
async def test_a_cancelled_override_is_cancelled() -> None:
    class Endless(Event):
        async def invoke(self) -> None:
            await asyncio.sleep(60)

    task = asyncio.create_task((event := Endless()).invoke())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert event.status is EventStatus.CANCELLED


@pytest.mark.row("L5", "L7")
@pytest.mark.parametrize("outcome", ["completed", "failed", "aborted"])
async def test_an_event_may_set_its_own_status(outcome: str) -> None:
    event = OwnStatus(outcome=outcome)
    completion = event.completion_event
    await process(event)
    assert event.status == outcome
    assert completion.is_set()


@pytest.mark.row("L4", "L7")
def test_a_status_of_the_execution_is_validated_and_fires_the_completion_event() -> None:
    event = Call()
    completion = event.completion_event
    with pytest.raises(ValueError, match="status"):
        event.execution.status = "asleep"  # type: ignore[assignment]
    event.execution.status = "completed"  # type: ignore[assignment]
    assert event.status is EventStatus.COMPLETED
    assert completion.is_set()
    event = Call()
    completion = event.completion_event
    event.execution = Execution(status=EventStatus.FAILED)
    assert completion.is_set()


@pytest.mark.row("L5")
async def test_an_override_may_extend_the_work_of_its_base() -> None:
    event = Extended(text="yes")
    await process(event)
    assert (event.status, event.response) == (EventStatus.COMPLETED, "YES!")


@pytest.mark.row("L5")
async def test_an_event_runs_once_for_concurrent_callers() -> None:
    event = Extended(text="yes")
    await asyncio.gather(*(event.invoke() for _ in range(3)))
    assert event.response == "YES!"


@pytest.mark.row("L6", "L7")
@pytest.mark.parametrize("fault", ["", "gone"])
async def test_an_event_may_override_stream(fault: str) -> None:
    event = OwnStream(fault=fault)
    completion = event.completion_event
    assert [number async for number in event.stream()] == [1, 2]
    assert event.status is (EventStatus.FAILED if fault else EventStatus.COMPLETED)
    assert str(event.execution.error or "") == fault
    assert completion.is_set()
    await process(queued := OwnStream(fault=fault))
    assert queued.status is event.status
    assert [number async for number in queued.stream()] == [], "an event runs once"


@pytest.mark.row("L6")
async def test_an_overridden_stream_that_is_closed_is_cancelled() -> None:
    event = OwnStream()
    pieces: Any = event.stream()
    assert await anext(pieces) == 1
    assert event.status.value == "processing"
    await pieces.aclose()
    assert event.status is EventStatus.CANCELLED


@pytest.mark.row("L5", "L6")
async def test_an_own_invoke_may_read_its_own_stream() -> None:
    class Joined(OwnStream):
        streaming: bool = False

        async def invoke(self) -> None:
            self.execution.response = [number async for number in self.stream()]

    await process(event := Joined())
    assert (event.status, event.response) == (EventStatus.COMPLETED, [1, 2])


# L10: locks


@pytest.mark.row("L10")
def test_a_pile_is_shared_by_event_loops() -> None:
    pile: Pile[Element] = Pile()
    inside: list[int] = []
    most: list[int] = []

    async def change() -> None:
        for _ in range(50):
            async with pile:
                inside.append(1)
                most.append(len(inside))
                await asyncio.sleep(0)
                inside.pop()
            await pile.ainclude(Element())

    async def work() -> None:
        await asyncio.gather(change(), change())

    threads = [Thread(target=lambda: asyncio.run(work()), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert len(pile) == 200
    assert max(most) == 1


@pytest.mark.row("L10")
async def test_a_cancelled_waiter_passes_the_lock_on() -> None:
    pile: Pile[Element] = Pile()
    async with pile:
        first = asyncio.ensure_future(pile.ainclude(Element()))
        second = asyncio.ensure_future(pile.ainclude(Element()))
        await asyncio.sleep(0)
    first.cancel()  # it was granted the lock, but has not run
    await asyncio.wait_for(second, 1)
    assert first.cancelled()
    async with asyncio.timeout(1), pile:
        assert len(pile) == 1


# L12: the queue


@pytest.mark.row("L12")
async def test_queue_has_the_methods_of_an_asyncio_queue() -> None:
    processor = Processor(**CONFIG, max_queue_size=2)
    queue = processor.queue
    assert queue.empty()
    await queue.put(first := Call(text="a"))
    queue.put_nowait(Call(text="b"))
    assert (queue.qsize(), queue.empty(), queue.full()) == (2, False, True)
    with pytest.raises(asyncio.QueueFull):
        queue.put_nowait(Call())
    assert await queue.get() is first
    await processor.process()
    with pytest.raises(asyncio.QueueEmpty):
        queue.get_nowait()
    running = asyncio.create_task(processor.execute())
    await queue.put(late := Call(text="c"))
    await asyncio.wait_for(late.completion_event.wait(), 1)
    await processor.stop()
    await running


@pytest.mark.row("L12")
async def test_an_override_of_enqueue_may_use_the_queue() -> None:
    class Counting(Processor):
        count = 0

        async def enqueue(self, event: Event) -> None:
            self.count += 1
            await self.queue.put(event)

    processor = Counting(**CONFIG)
    await processor.enqueue(Call(text="a"))
    assert (processor.count, processor.queue.qsize()) == (1, 1)


# L16: denials


@pytest.mark.row("L16")
async def test_a_skipped_event_is_an_event_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def work(state: dict[str, Any]) -> dict[str, Any]:
        executor = CallExecutor(CONFIG)
        await executor.append(Call(text="no"))
        await executor.forward()
        return {"counts": executor.status_counts}

    graph: Any = StateGraph(dict[str, Any])
    graph = graph.add_node("work", work).set_entry_point("work").compile()
    with caplog.at_level(logging.WARNING):
        events = [event async for event in graph.astream({}, stream_mode="custom")]
    (skipped,) = [event for event in events if event["event_type"] == "step_skipped"]
    assert skipped["capability"] == "Call"
    assert [record for record in caplog.records if record.levelno == logging.WARNING]


# L22


@pytest.mark.row("L22")
async def test_executor_calls_create_processor() -> None:
    class Own(CallExecutor):
        async def _create_processor(self) -> None:
            self.processor = CallProcessor(queue_capacity=1, capacity_refresh_time=0.01)

    executor = Own()
    await executor.start()
    assert executor.processor is not None
    assert executor.processor.queue_capacity == 1
    executor = Own()
    await executor.append(Call(text="yes"))
    await executor.forward()
    assert executor.status_counts == {"completed": 1}
