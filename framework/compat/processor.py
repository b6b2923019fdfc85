"""lionagi's processing of events at a limited rate: ``Processor`` and ``Executor``.

This is a queue of its own in one process, beside plans: its events have no permissions, approvals,
budgets or checkpoints. It exists for code that was written against lionagi. New code uses plans.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from capgraph.base.errors import ConfigurationError
from capgraph.compat.element import (
    Element,
    ItemExistsError,
    ItemNotFoundError,
    Pile,
    Progression,
)
from capgraph.compat.event import Event, EventStatus, Execution
from capgraph.configs.logger import get_logger
from capgraph.helpers.async_calls import maybe_await
from capgraph.helpers.clock import Clock, SystemClock
from capgraph.telemetry import StepSkipped, emit

__all__ = [
    "Element",
    "Event",
    "EventStatus",
    "Execution",
    "Executor",
    "ItemExistsError",
    "ItemNotFoundError",
    "Pile",
    "Processor",
    "Progression",
]

ProcessorT = TypeVar("ProcessorT", bound="Processor")


class EventQueue(deque[Event]):
    """Event queue of a processor, with the methods of ``asyncio.Queue``.

    Args:
        processor: Processor that is notified of changes to the queue.

    Attributes:
        put: Coroutine function that adds an event, after waiting for space.
        get: Coroutine function that removes and returns the next event, after waiting for one.
    """

    def __init__(self, processor: Processor) -> None:
        super().__init__()
        self._processor = processor
        # Not the processor's own methods: an override of them may call these.
        self.put: Callable[[Event], Awaitable[None]] = partial(Processor.enqueue, processor)
        self.get: Callable[[], Awaitable[Event]] = partial(Processor.dequeue, processor)

    def qsize(self) -> int:
        """Return the number of queued events."""
        return len(self)

    def empty(self) -> bool:
        """Return True if no event is queued."""
        return not self

    def full(self) -> bool:
        """Return True if the queue contains ``max_queue_size`` events."""
        return self._processor.queue_full

    def put_nowait(self, event: Event) -> None:
        """Add an event to the queue without waiting.

        Raises:
            asyncio.QueueFull: The queue is full.
        """
        if not Processor.try_enqueue(self._processor, event):
            raise asyncio.QueueFull

    def get_nowait(self) -> Event:
        """Remove and return the next event of the queue without waiting.

        Raises:
            asyncio.QueueEmpty: The queue is empty.
        """
        if not self:
            raise asyncio.QueueEmpty
        event = self.popleft()
        self._processor._notify()
        return event


class Processor:
    """Rate-limited processor that starts queued events in order.

    Each event runs once. An event that is denied permission is passed to :meth:`handle_denied`;
    it uses no capacity and does not block later events.

    Args:
        queue_capacity: Maximum number of events started per ``capacity_refresh_time``.
        capacity_refresh_time: Seconds until the capacity is refilled.
        concurrency_limit: Maximum number of concurrent events; ``None`` or 0 for no limit.
        max_queue_size: Maximum number of queued events, after which :meth:`enqueue` waits; 0
            for no limit.
        clock: Clock used for timing.

    Raises:
        ValueError: A number is out of range.
    """

    event_type: ClassVar[type[Event]] = Event

    def __init__(
        self,
        queue_capacity: int,
        capacity_refresh_time: float,
        concurrency_limit: int | None = None,
        max_queue_size: int = 0,
        *,
        clock: Clock | None = None,
    ) -> None:
        if queue_capacity < 1:
            raise ConfigurationError("The queue capacity is too small: it must be greater than 0.")
        if not capacity_refresh_time > 0:
            raise ConfigurationError(
                "The capacity refresh time is too short: it must be greater than 0."
            )
        if max_queue_size < 0 or (concurrency_limit or 0) < 0:
            raise ConfigurationError(
                "The queue size and the concurrency limit must not be negative."
            )
        self.queue_capacity = queue_capacity
        self.capacity_refresh_time = capacity_refresh_time
        self.concurrency_limit: int | None = concurrency_limit or None
        self.max_queue_size = max_queue_size
        self.available_capacity: int = queue_capacity
        self.execution_mode: bool = False
        self.queue: EventQueue = EventQueue(self)
        self._clock = clock or SystemClock()
        self._running: dict[UUID, asyncio.Task[None]] = {}
        self._stopped = False
        self._changed = asyncio.Event()
        self._refill_task: asyncio.Task[None] | None = None

    @classmethod
    async def create(cls: type[ProcessorT], **kwargs: Any) -> ProcessorT:
        """Create a processor."""
        return cls(**kwargs)

    @property
    def queue_full(self) -> bool:
        """True if the queue has reached ``max_queue_size``."""
        return 0 < self.max_queue_size <= len(self.queue)

    def try_enqueue(self, event: Event) -> bool:
        """Add an event unless the queue is full. Return True if the event was added."""
        if self.queue_full:
            return False
        self.queue.append(event)
        self._notify()
        return True

    async def enqueue(self, event: Event) -> None:
        """Add an event to the queue, waiting until the queue has space."""
        while not self.try_enqueue(event):
            await self._changed.wait()

    async def dequeue(self) -> Event:
        """Remove and return the next event of the queue, waiting until an event is available."""
        while not self.queue:
            await self._changed.wait()
        return self.queue.get_nowait()

    def _notify(self) -> None:
        # Waiters keep the old event, so they cannot miss a change.
        self._changed.set()
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Allow events to start again after :meth:`stop`."""
        self._stopped = False

    async def stop(self) -> None:
        """Stop the processor from starting further events. Running events finish normally."""
        self._stopped = True
        self._notify()

    def is_stopped(self) -> bool:
        """Return True if the processor was stopped and starts no further events."""
        return self._stopped

    async def request_permission(self, **request: Any) -> bool:
        """Return True if an event may start. Subclasses override this method to deny events.

        The keyword arguments are the fields of the event's ``request``.
        """
        return True

    def handle_denied(self, event: Event) -> Any:
        """Handle an event that was denied permission. A subclass may define a coroutine function.

        Returns:
            ``False`` to move the event to the end of the queue. Any other value ends the event, by
            default with the status ``skipped``, which is logged and emitted as ``step_skipped``.
        """
        event.status = EventStatus.SKIPPED

    async def process(self) -> None:
        """Start as many queued events as the capacity allows, and wait until they finish.

        Unless :meth:`execute` is running, the capacity is refilled afterward. Deferred events stay
        in the queue.
        """
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._start_events(tasks)
            await _wait_for(tasks)
        finally:
            await _cancel_all(tasks)
            if self.execution_mode:
                self._schedule_refill()  # execute() was called in the meantime
            else:
                self.available_capacity = self.queue_capacity

    async def join(self) -> None:
        """Process queued events until the queue is empty or the processor is stopped."""
        while self._running or (self.queue and not self._stopped):
            changed = self._changed
            if self.execution_mode or not self.queue:
                await changed.wait()
                continue
            refill_time = self._clock.monotonic() + self.capacity_refresh_time
            await self.process()
            if self.queue and not self._stopped:
                await self._clock.sleep(max(0.0, refill_time - self._clock.monotonic()))

    async def execute(self) -> None:
        """Process queued events continuously until :meth:`stop` is called.

        If the processor was stopped before, call :meth:`start` first.
        """
        self.execution_mode = True
        tasks: list[asyncio.Task[None]] = []
        try:
            while not self._stopped:
                changed = self._changed
                tasks = [task for task in tasks if not task.done()]
                await self._start_events(tasks)
                await changed.wait()
            await _wait_for(tasks)
        finally:
            self.execution_mode = False
            await _cancel_all([*tasks, *([self._refill_task] if self._refill_task else [])])
            self._refill_task = None
            self.available_capacity = self.queue_capacity
            self._notify()

    async def _start_events(self, tasks: list[asyncio.Task[None]]) -> None:
        """Start queued events while capacity remains, and append their tasks to ``tasks``."""
        for _ in range(len(self.queue)):  # one pass: a deferred event is tried again in the next
            if self._stopped or not self.queue or self.available_capacity < 1:
                return
            if self.concurrency_limit and len(self._running) >= self.concurrency_limit:
                if self.execution_mode:
                    return
                await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
            event = self.queue.get_nowait()
            if event.status is not EventStatus.PENDING or event.id in self._running:
                continue  # a duplicate, or an event that already has a final status
            if await self._check_permission(event):
                self.available_capacity -= 1
                if self.execution_mode:
                    self._schedule_refill()
                task = self._running[event.id] = asyncio.create_task(event.invoke())
                task.add_done_callback(partial(self._on_task_done, event))
                tasks.append(task)

    async def _check_permission(self, event: Event) -> bool:
        try:
            if await self.request_permission(**event.request):
                return True
            decision = await maybe_await(self.handle_denied(event))
            if decision is False:
                self.queue.append(event)
            elif not event.status.is_terminal:
                event.status = EventStatus.SKIPPED
            if event.status is EventStatus.SKIPPED:
                self._report_skip(event)
        except Exception as exc:
            event.execution.error, event.status = exc, EventStatus.FAILED
        except BaseException:
            self.queue.appendleft(event)  # cancelled before a decision: keep the event
            raise
        return False

    @staticmethod
    def _report_skip(event: Event) -> None:
        kind, reason = type(event).__name__, "request_permission refused the event"
        emit(StepSkipped(context_key=str(event.id), capability=kind, reason=reason))
        get_logger("framework", "processor").warning("%s %s is skipped: %s", kind, event.id, reason)

    def _on_task_done(self, event: Event, _: asyncio.Task[None]) -> None:
        del self._running[event.id]
        if not event.status.is_terminal:
            event.status = EventStatus.CANCELLED  # cancelled before it started
        self._notify()

    def _schedule_refill(self) -> None:
        if self._refill_task is None:
            self._refill_task = asyncio.create_task(self._refill())

    async def _refill(self) -> None:
        await self._clock.sleep(self.capacity_refresh_time)
        self.available_capacity = self.queue_capacity
        self._refill_task = None
        self._notify()


async def _wait_for(tasks: list[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)


async def _cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await _wait_for(tasks)


def _events_with_status(status: EventStatus) -> Any:
    return property(lambda self: self.pile.filter(lambda event: event.status is status))


class Executor:
    """Collection of events that are executed by a processor, which is created on first use.

    Args:
        processor_config: Keyword arguments for creating the processor.
        strict_event_type: True to reject subclasses of the event type.

    >>> class Answer(Event):
    ...     async def _invoke(self):
    ...         return 42
    >>> async def run():
    ...     executor = Executor({"queue_capacity": 10, "capacity_refresh_time": 1.0})
    ...     await executor.append(event := Answer())
    ...     await executor.forward()
    ...     return executor.completed_events[event].response
    >>> asyncio.run(run())
    42
    """

    processor_type: ClassVar[type[Processor]] = Processor

    def __init__(
        self,
        processor_config: Mapping[str, Any] | None = None,
        strict_event_type: bool = False,
    ) -> None:
        self.processor_config: dict[str, Any] = dict(processor_config or {})
        self.pile: Pile[Event] = Pile((), self.event_type, strict_type=strict_event_type)
        self.pending: Progression = Progression()
        self.processor: Processor | None = None

    @property
    def event_type(self) -> type[Event]:
        """Accepted type of events."""
        return self.processor_type.event_type

    @property
    def strict_event_type(self) -> bool:
        """True if subclasses of the executor's event type are rejected."""
        return self.pile.strict_type

    def __contains__(self, ref: Any) -> bool:
        return ref in self.pile

    async def append(self, event: Event) -> None:
        """Add an event to the executor, to be run by the next :meth:`forward`.

        An event that was already added is ignored.

        Raises:
            ValidationError: The event has the wrong type. In this case, nothing is changed.
        """
        async with self.pile:
            if self.pile.include(event):
                self.pending.include(event)

    async def forward(self) -> None:
        """Pass all pending events to the processor, and wait until they finish.

        If the processor's ``execute()`` is running, it starts the events, and this method does not
        wait. Events that a stopped processor does not accept stay pending.
        """
        processor = await self._get_processor()
        while self.pending and not processor.is_stopped():
            event = self.pile.get(self.pending[0], None)
            if event is not None and not processor.try_enqueue(event):
                # The queue is full, so events must start first.
                if not processor.execution_mode:
                    await processor.join()
                    continue
                await processor.enqueue(event)
            self.pending.popleft()
        if not processor.execution_mode:
            await processor.join()

    async def start(self) -> None:
        """Start the processor after a stop, creating the processor if necessary."""
        await (await self._get_processor()).start()

    async def stop(self) -> None:
        """Stop the processor, if it exists."""
        if self.processor is not None:
            await self.processor.stop()

    async def _get_processor(self) -> Processor:
        if self.processor is None:
            await self._create_processor()
        if self.processor is None:
            raise ConfigurationError(
                f"{type(self).__name__} has no processor after _create_processor().",
                fix="Set self.processor in _create_processor().",
            )
        return self.processor

    async def _create_processor(self) -> None:
        """Create the processor from ``processor_config``. Subclasses may override this method."""
        self.processor = await self.processor_type.create(**self.processor_config)

    completed_events: Any = _events_with_status(EventStatus.COMPLETED)
    """Completed events."""
    pending_events: Any = _events_with_status(EventStatus.PENDING)
    """Events that have not started."""
    failed_events: Any = _events_with_status(EventStatus.FAILED)
    """Failed events."""
    cancelled_events: Any = _events_with_status(EventStatus.CANCELLED)
    """Events cancelled while they ran."""
    skipped_events: Any = _events_with_status(EventStatus.SKIPPED)
    """Events without permission."""

    @property
    def status_counts(self) -> dict[str, int]:
        """Number of events by status."""
        return dict(Counter(event.status.value for event in self.pile))

    def cleanup_completed(self) -> int:
        """Remove finished events from the executor, and return the number of removed events."""
        finished = self.pile.filter(lambda event: event.status.is_terminal)
        self.pile.exclude(list(finished))
        return len(finished)

    def inspect_state(self) -> dict[str, Any]:
        """Return the state as plain data."""
        processor = self.processor
        return {
            "total": len(self.pile),
            "counts": self.status_counts,
            "pending": len(self.pending),
            "running": processor is not None and processor.execution_mode,
            "stopped": processor is not None and processor.is_stopped(),
        }
