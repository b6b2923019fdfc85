"""Events in a queue, begun at a bounded rate: ``Processor``, and ``Executor``, which keeps them.

A thin stand-in for code that was written against lionagi; plans and their ready queue are the way
of this project.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
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
from capgraph.helpers.async_calls import maybe_await
from capgraph.helpers.clock import Clock, SystemClock

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


class Processor:
    """Begins events in the order in which they came, so many in each stretch of time.

    Each event is invoked once and ends once. An event whose permission is refused is handed to
    :meth:`handle_denied`; it takes no capacity and never blocks those behind it.

    Args:
        queue_capacity: The most events that begin in one ``capacity_refresh_time``.
        capacity_refresh_time: Seconds after which the capacity is whole again.
        concurrency_limit: The most events that run at once; ``None`` or 0 for no bound.
        max_queue_size: The most events that wait; past it :meth:`enqueue` waits. 0 for no bound.
        clock: Time.

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
            raise ConfigurationError("Queue capacity must be greater than 0.")
        if not capacity_refresh_time > 0:
            raise ConfigurationError("Capacity refresh time must be greater than 0.")
        if max_queue_size < 0 or (concurrency_limit or 0) < 0:
            raise ConfigurationError("Neither queue size nor concurrency can be less than 0.")
        self.queue_capacity = queue_capacity
        self.capacity_refresh_time = capacity_refresh_time
        self.concurrency_limit: int | None = concurrency_limit or None
        self.max_queue_size = max_queue_size
        self.available_capacity: int = queue_capacity
        self.execution_mode: bool = False
        self.queue: deque[Event] = deque()
        self._clock = clock or SystemClock()
        self._running: dict[UUID, asyncio.Task[None]] = {}
        self._stopped = False
        self._changed = asyncio.Event()
        self._refill_task: asyncio.Task[None] | None = None

    @classmethod
    async def create(cls: type[ProcessorT], **kwargs: Any) -> ProcessorT:
        """Make one."""
        return cls(**kwargs)

    @property
    def queue_full(self) -> bool:
        """Whether no further event may wait."""
        return 0 < self.max_queue_size <= len(self.queue)

    def try_enqueue(self, event: Event) -> bool:
        """Add an event, unless the queue is full; tell whether it was added."""
        if self.queue_full:
            return False
        self.queue.append(event)
        self._notify()
        return True

    async def enqueue(self, event: Event) -> None:
        """Add an event, once there is room for it."""
        while not self.try_enqueue(event):
            await self._changed.wait()

    async def dequeue(self) -> Event:
        """Take the next event out, once there is one."""
        while not self.queue:
            await self._changed.wait()
        event = self.queue.popleft()
        self._notify()
        return event

    def _notify(self) -> None:
        # Whoever took the old one before looking cannot miss what changed since.
        self._changed.set()
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Take back an earlier :meth:`stop`."""
        self._stopped = False

    async def stop(self) -> None:
        """Begin no further event; what runs ends."""
        self._stopped = True
        self._notify()

    def is_stopped(self) -> bool:
        """Tell whether no further event begins."""
        return self._stopped

    async def request_permission(self, **request: Any) -> bool:
        """Tell whether an event may begin; given is what its ``request`` says."""
        return True

    def handle_denied(self, event: Event) -> Any:
        """Say what becomes of an event that may not begin; may be a coroutine function.

        Returns:
            Anything but ``False`` for an event that was ended here (as it is, it ends as skipped);
            ``False`` to put it at the end of the queue.
        """
        event.status = EventStatus.SKIPPED

    async def process(self) -> None:
        """Begin what may begin with the capacity that is left, and wait until all of it has ended.

        Without :meth:`execute` the capacity is whole again afterwards. Events that were put off
        wait in the queue.
        """
        began: list[asyncio.Task[None]] = []
        try:
            await self._start_events(began)
            await _wait_for(began)
        finally:
            await _cancel_all(began)
            if self.execution_mode:
                self._schedule_refill()  # execute() began meanwhile
            else:
                self.available_capacity = self.queue_capacity

    async def join(self) -> None:
        """Go on until every event in the queue has ended, or the processor is stopped."""
        while self._running or (self.queue and not self._stopped):
            changed = self._changed
            if self.execution_mode or not self.queue:
                await changed.wait()
                continue
            until = self._clock.monotonic() + self.capacity_refresh_time
            await self.process()
            if self.queue and not self._stopped:
                await self._clock.sleep(max(0.0, until - self._clock.monotonic()))

    async def execute(self) -> None:
        """Go on until :meth:`stop`; a stop from before holds, until :meth:`start`."""
        self.execution_mode = True
        began: list[asyncio.Task[None]] = []
        try:
            while not self._stopped:
                changed = self._changed
                began = [task for task in began if not task.done()]
                await self._start_events(began)
                await changed.wait()
            await _wait_for(began)
        finally:
            self.execution_mode = False
            await _cancel_all([*began, *([self._refill_task] if self._refill_task else [])])
            self._refill_task = None
            self.available_capacity = self.queue_capacity
            self._notify()

    async def _start_events(self, tasks: list[asyncio.Task[None]]) -> None:
        """Begin events while there is capacity, and note their tasks."""
        for _ in range(len(self.queue)):  # one pass: what is put off comes again in the next one
            if self._stopped or not self.queue or self.available_capacity < 1:
                return
            if self.concurrency_limit and len(self._running) >= self.concurrency_limit:
                if self.execution_mode:
                    return
                await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
            event = self.queue.popleft()
            self._notify()
            if event.status is not EventStatus.PENDING or event.id in self._running:
                continue  # it stood in the queue twice, or was ended from outside
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
            found = await maybe_await(self.handle_denied(event))
            if found is False:
                self.queue.append(event)
            elif not event.status.is_terminal:
                event.status = EventStatus.SKIPPED
        except Exception as exc:
            event.execution.error, event.status = exc, EventStatus.FAILED
        except BaseException:
            self.queue.appendleft(event)  # nobody decided: the next one goes on with it
            raise
        return False

    def _on_task_done(self, event: Event, _: asyncio.Task[None]) -> None:
        del self._running[event.id]
        if not event.status.is_terminal:
            event.status = EventStatus.CANCELLED  # before it could begin
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
    """Keeps events and hands them to a processor, which it makes when it needs one.

    Args:
        processor_config: Arguments of the processor.
        strict_event_type: Whether classes derived from the event type are refused.

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
        """The type of events that it takes."""
        return self.processor_type.event_type

    @property
    def strict_event_type(self) -> bool:
        """Whether classes derived from the event type are refused."""
        return self.pile.strict_type

    def __contains__(self, ref: Any) -> bool:
        return ref in self.pile

    async def append(self, event: Event) -> None:
        """Keep an event for the next :meth:`forward`; one that is kept already stays as it is.

        Raises:
            ValidationError: It is of another type; then nothing is changed.
        """
        async with self.pile:
            if self.pile.include(event):
                self.pending.include(event)

    async def forward(self) -> None:
        """Hand everything that is pending to the processor, and wait until it has ended.

        While the processor's ``execute()`` runs, it is that which begins them, and nothing is
        waited for. What a stopped processor does not take stays pending.
        """
        processor = await self._make_processor()
        while self.pending and not processor.is_stopped():
            event = self.pile.get(self.pending[0], None)
            if event is not None and not processor.try_enqueue(event):
                # The queue is full, so something has to be begun first.
                if not processor.execution_mode:
                    await processor.join()
                    continue
                await processor.enqueue(event)
            self.pending.popleft()
        if not processor.execution_mode:
            await processor.join()

    async def start(self) -> None:
        """Make the processor if there is none, and take back an earlier stop."""
        await (await self._make_processor()).start()

    async def stop(self) -> None:
        """Stop the processor, if there is one."""
        if self.processor is not None:
            await self.processor.stop()

    async def _make_processor(self) -> Processor:
        if self.processor is None:
            self.processor = await self.processor_type.create(**self.processor_config)
        return self.processor

    completed_events: Any = _events_with_status(EventStatus.COMPLETED)
    """Those that did what they should."""
    pending_events: Any = _events_with_status(EventStatus.PENDING)
    """Those that have not begun."""
    failed_events: Any = _events_with_status(EventStatus.FAILED)
    """Those that failed."""
    cancelled_events: Any = _events_with_status(EventStatus.CANCELLED)
    """Those that were cancelled while they ran."""
    skipped_events: Any = _events_with_status(EventStatus.SKIPPED)
    """Those that were denied."""

    @property
    def status_counts(self) -> dict[str, int]:
        """How many events stand where."""
        return dict(Counter(event.status.value for event in self.pile))

    def cleanup_completed(self) -> int:
        """Forget the events that have ended; return how many these were."""
        ended = self.pile.filter(lambda event: event.status.is_terminal)
        self.pile.exclude(list(ended))
        return len(ended)

    def inspect_state(self) -> dict[str, Any]:
        """Return the whole state as plain data."""
        processor = self.processor
        return {
            "total": len(self.pile),
            "counts": self.status_counts,
            "pending": len(self.pending),
            "running": processor is not None and processor.execution_mode,
            "stopped": processor is not None and processor.is_stopped(),
        }
