"""Delivery of a graph's events to its sinks, outside the path of the run.

A sink never slows or breaks a run: each has a bounded queue and a thread. Events that do not fit
into the queue are dropped, and the sink is notified of their number before the next event.

Besides ``emit``, a sink may have:

- ``emit_many(events)``, to receive queued events as a batch,
- ``run_began(run_id, agent_name)``, called synchronously, which may return the trace of the run as
  its ID or as ``traceparent``,
- ``run_ended(event)``, called with an event that is not part of the stream,
- ``set_upstream_drain(drain)``, to receive a function that waits until all emitted events have
  reached the sink,
- ``inline = True``, if ``emit`` is fast enough to be called synchronously.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import Any

import capgraph.telemetry as telemetry
from capgraph.base.ports import Sink
from capgraph.configs.errors import ConfigurationError
from capgraph.configs.logger import MAX_MESSAGE_CHARS, get_logger, mask_secrets
from capgraph.configs.run_context import override_run_context, run_context
from capgraph.helpers.clock import utc_now_text

_FLUSH_SECONDS = 0.25
_MAX_BATCH = 500
EVENT_IDS = (
    *("run_id", "thread_id", "turn_id", "plan_id", "step_id", "attempt_id", "parent_id"),
    *("trace_id", "turn_trace"),
)
"""IDs that an event may carry.

``parent_id`` is the ID of the enclosing attempt. ``turn_trace`` is the ``traceparent`` of the run
in which the turn started.
"""
_IDS = frozenset(EVENT_IDS)


class SentEvent(dict[str, Any]):
    """Event as delivered to sinks, which is a dictionary with properties for common fields.

    >>> event = SentEvent(event_type="retry", run_id="r", step_id="a", seq=3)
    >>> event.run_id, event.step, event.seq, event["event_type"]
    ('r', 'a', 3, 'retry')
    """

    __slots__ = ()

    @property
    def run_id(self) -> str | None:
        """ID of the run."""
        return self.get("run_id")

    @property
    def thread_id(self) -> str | None:
        """ID of the thread, or ``None`` if the graph has no saver."""
        return self.get("thread_id")

    @property
    def turn(self) -> str | None:
        """ID of the turn, which is the ID of the message or plan that started it."""
        return self.get("turn_id")

    @property
    def plan_id(self) -> str | None:
        """ID of the current plan."""
        return self.get("plan_id")

    @property
    def step(self) -> str | None:
        """Context key of the step."""
        return self.get("step_id") or self.get("context_key")

    @property
    def attempt(self) -> int | None:
        """Attempt number of the step, starting at 1, or ``None`` if the event has none."""
        number = str(self.get("attempt_id") or self.get("attempt") or "").rpartition("/")[2]
        return int(number) if number.isdecimal() else None

    @property
    def seq(self) -> int | None:
        """Sequence number of the event within its run, starting at 1."""
        return self.get("seq")

    @property
    def data(self) -> dict[str, Any]:
        """Copy of the event as a plain dictionary."""
        return dict(self)


def event_context(**ids: str | None) -> AbstractContextManager[None]:
    """Context manager that adds IDs to all events emitted inside the block.

    The IDs also apply to events of tasks that start inside the block.

    Args:
        **ids: Event IDs by name, as listed in :data:`EVENT_IDS`. ``None`` removes an ID.

    >>> with event_context(plan_id="p1"), event_context(step_id="a"):
    ...     pass  # events emitted here carry both IDs
    """
    if unknown := ids.keys() - _IDS:
        raise TypeError(
            f"event_context() got the unknown IDs {sorted(unknown)}. Fix: use {', '.join(EVENT_IDS)}."
        )
    return override_run_context(ids=_merge_ids(ids))


def _merge_ids(ids: dict[str, str | None]) -> dict[str, str]:
    known = run_context().ids
    if "attempt_id" in known and any(
        name in ids and ids[name] != known.get(name) for name in ("plan_id", "step_id")
    ):
        # Another plan or step starts inside an attempt.
        known = {n: value for n, value in known.items() if n not in ("step_id", "attempt_id")}
        ids = {"parent_id": run_context().ids["attempt_id"], **ids}
    return {name: value for name, value in {**known, **ids}.items() if value is not None}


def current_event_ids() -> Mapping[str, str]:
    """Return the IDs that are added to events emitted in the current context.

    >>> with event_context(plan_id="p1"):
    ...     dict(current_event_ids())
    {'plan_id': 'p1'}
    """
    return run_context().ids


class EventDispatcher:
    """Dispatcher that numbers a graph's events, adds IDs, and delivers them to the sinks.

    Args:
        sinks: Objects with ``emit(event)``, which may be asynchronous. The method receives one
            :class:`SentEvent` at a time, in order, and must not modify the event. Coroutines
            run on a separate event loop for the sink.
        capacity: Maximum number of queued events per sink.
        agent_name: Name of the agent.

    Raises:
        ConfigurationError: A sink has no ``emit`` method.
    """

    def __init__(
        self, sinks: Sequence[Sink] = (), *, capacity: int = 10_000, agent_name: str = ""
    ) -> None:
        self._capacity, self._agent_name = capacity, agent_name
        self._outlets: tuple[SinkQueue, ...] = ()
        for sink in sinks:
            self.subscribe(sink)

    def subscribe(
        self, sink: Sink, event_types: Collection[str | type[Any]] | None = None
    ) -> Callable[[], None]:
        """Subscribe a sink to all later events, or to events of certain types.

        Args:
            sink: Sink to add, as described for the ``sinks`` argument of the class.
            event_types: Types of events to deliver, as ``event_type`` strings or event classes.
                None means all.

        Returns:
            A function that unsubscribes the sink. Events already queued are still delivered.

        Raises:
            ConfigurationError: The sink has no ``emit`` method.
        """
        if isinstance(sink, type) or not callable(getattr(sink, "emit", None)):
            raise ConfigurationError(
                f"The sink {sink!r} has no emit method.", fix="Pass an object with emit(event)."
            )
        kinds = None if event_types is None else frozenset(map(_get_event_type, event_types))
        outlet = SinkQueue(sink, self._capacity, kinds)
        self._outlets = (*self._outlets, outlet)

        def unsubscribe() -> None:
            self._outlets = tuple(known for known in self._outlets if known is not outlet)

        return unsubscribe

    @property
    def has_sinks(self) -> bool:
        """True if the dispatcher has at least one sink."""
        return bool(self._outlets)

    def dispatch_run(self, **ids: str | None) -> AbstractContextManager[None]:
        """Context manager that dispatches the events of a run to the sinks.

        In a nested run, the dispatchers of both runs deliver the events, and ``seq`` counts the
        events of both runs.

        Args:
            **ids: IDs of the run, as for :func:`event_context`.
        """
        return override_run_context(**self.run_context_fields(**ids))

    def run_context_fields(self, **ids: str | None) -> dict[str, Any]:
        """Build the run context fields that :meth:`dispatch_run` sets.

        Args:
            **ids: IDs of the run, as for :func:`event_context`.
        """
        seq, dispatchers = _get_running() or (itertools.count(1), ())
        if not dispatchers and (name := ids.get("run_id")):
            traces = [
                outlet._call(functools.partial(outlet.run_began, name), self._agent_name)
                for outlet in self._outlets
                if outlet.run_began is not None
            ]
            trace: str = next((value for value in traces if value is not None), None) or ""
            parts = trace.split("-")
            ids["trace_id"] = (parts[1] if len(parts) == 4 else trace) or None
            ids["turn_trace"] = trace if len(parts) == 4 else None
        dispatchers = (self, *dispatchers)

        def send(event: dict[str, Any]) -> dict[str, Any]:
            stamped = {**event, **run_context().ids, "seq": next(seq)}
            for index, dispatcher in enumerate(dispatchers, 1):
                dispatcher._dispatch(stamped, dispatchers[index:])
            return stamped

        return {"dispatch": (seq, dispatchers), "outlet": send, "ids": _merge_ids(ids)}

    def _dispatch(self, event: dict[str, Any], outer: Sequence[EventDispatcher] = ()) -> None:
        if self._outlets:
            sent_event = SentEvent(event)
            for outlet in self._outlets:
                if outlet.kinds is not None and event.get("event_type") not in outlet.kinds:
                    continue
                if not any(dispatcher._has_sink(outlet.sink) for dispatcher in outer):
                    outlet.enqueue(sent_event)

    def _has_sink(self, sink: Sink) -> bool:
        return any(outlet.sink is sink for outlet in self._outlets)

    def end_run(self, error: BaseException | None = None) -> None:
        """Report the end of a run to the sinks that have a ``run_ended`` method.

        A sink that also receives the events of an enclosing run is not notified until that run
        ends.

        Args:
            error: Exception that ended the run, or None if no exception ended it.
        """
        ended = {"event_type": "run_ended", "timestamp": utc_now_text(), **run_context().ids}
        if error is not None:
            ended["error"] = type(error).__name__
        _, running = _get_running() or (None, ())
        outer = running[running.index(self) + 1 :] if self in running else ()
        for outlet in self._outlets:
            if outlet.wants_run_end and not any(around._has_sink(outlet.sink) for around in outer):
                outlet.enqueue(SentEvent(ended))

    async def flush(self) -> None:
        """Wait until all sinks have processed or dropped the events emitted so far."""
        for outlet in self._outlets:
            await asyncio.wrap_future(outlet.executor.submit(lambda: None))

    async def flush_briefly(self) -> None:
        """Wait a fraction of a second for the sinks to process the run's events."""
        if any(outlet.busy for outlet in self._outlets):
            with suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_SECONDS):
                    await self.flush()


def _get_running() -> tuple[Iterator[int], tuple[EventDispatcher, ...]] | None:
    dispatch: tuple[Iterator[int], tuple[EventDispatcher, ...]] | None = run_context().dispatch
    return dispatch


def _get_event_type(event_type: str | type[Any]) -> str:
    return (
        event_type
        if isinstance(event_type, str)
        else str(event_type.model_fields["event_type"].default)
    )


class SinkQueue:
    """Queue and worker thread for one event sink, so that runs never wait for the sink."""

    def __init__(self, sink: Sink, capacity: int, kinds: frozenset[str] | None = None) -> None:
        self.sink: Sink = sink
        self.capacity: int = capacity
        self.kinds: frozenset[str] | None = kinds
        self.wants_run_end: bool = callable(getattr(sink, "run_ended", None))
        self.run_began: Callable[..., Any] | None = getattr(sink, "run_began", None)
        self.inline: bool = bool(getattr(sink, "inline", False))
        self.emit_many: Callable[..., Any] | None = getattr(sink, "emit_many", None)
        self.waiting: deque[tuple[dict[str, Any], int]] = deque()
        self.busy: bool = False
        self.lost: int = 0
        self.reported_lost: int = 0
        self.failed: bool = False
        # The thread starts with the first event and ends with this object. When the process
        # ends, it first delivers the queued events.
        self.executor: ThreadPoolExecutor = ThreadPoolExecutor(
            1, thread_name_prefix="capgraph sink"
        )
        if (set_upstream_drain := getattr(sink, "set_upstream_drain", None)) is not None:
            here = weakref.ref(self)
            set_upstream_drain(lambda: outlet.drain() if (outlet := here()) is not None else None)

    def drain(self) -> None:
        """Wait until the sink has processed or dropped all events queued so far."""
        if self.busy:
            self.executor.submit(lambda: None).result()

    def enqueue(self, event: dict[str, Any]) -> None:
        """Queue an event for delivery, or deliver it immediately if the sink is inline."""
        if self.inline:
            self._send([event])
            return
        if len(self.waiting) >= self.capacity:
            self._warn_once("is too slow and misses events", first=not self.lost)
            self.lost += 1
            return
        self.waiting.append((event, self.lost))
        if not self.busy:
            self.busy = True
            self.executor.submit(self._deliver)

    def _deliver(self) -> None:
        while True:
            events: list[dict[str, Any]] = []
            with suppress(IndexError):
                while len(events) < (_MAX_BATCH if self.emit_many is not None else 1):
                    event, lost = self.waiting.popleft()
                    if lost > self.reported_lost:
                        count = lost - self.reported_lost
                        dropped_event = telemetry.EventsDropped(count=count).model_dump(
                            exclude_none=True
                        )
                        events.append(SentEvent(dropped_event))
                        self.reported_lost = lost
                    events.append(event)
            if events:
                self._send(events)
                continue
            self.busy = False
            if not self.waiting:
                return
            self.busy = True  # an event arrived between the two lines above

    def _send(self, events: list[dict[str, Any]]) -> None:
        if self.emit_many is not None:
            self._call(self.emit_many, events)
            return
        for event in events:
            end = event.get("event_type") == "run_ended"
            self._call(self.sink.run_ended if end else self.sink.emit, event)  # type: ignore[attr-defined]

    def _call(self, method: Callable[[Any], Any], arg: Any) -> Any:
        try:
            result: Any = method(arg)
            if inspect.isawaitable(result):
                result = self._loop.run_until_complete(_wait_for(result))
        except Exception as exc:
            problem = mask_secrets(f"raised {type(exc).__name__}: {exc}", MAX_MESSAGE_CHARS)
            self._warn_once(problem, first=not self.failed)
            self.failed = True
            return None
        return result

    @functools.cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        weakref.finalize(self, loop.close)
        return loop

    def _warn_once(self, problem: str, *, first: bool) -> None:
        if first:
            name = type(self.sink).__name__
            get_logger("framework", "sinks").warning(
                "The sink %s %s. Further warnings are suppressed.", name, problem
            )


async def _wait_for(result: Any) -> Any:
    return await result
