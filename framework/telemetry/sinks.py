"""Hands the events of a graph's runs to its sinks, off the runs' path.

A sink never slows or breaks a run: each has a bounded queue and a thread of its own. What does not
fit into the queue is counted as lost, and the sink is told how much before the next event.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from configs.errors import ConfigurationError
from configs.logger import get_logger, mask_secrets
from configs.scoped import scoped
from configs.streaming import use_outlet
from framework.base.ports import Sink
from framework.telemetry.events import EventsLost

_MOMENT = 0.25
IDS = ("run_id", "thread_id", "turn_id", "plan_id", "step_id", "attempt_id")
"""What an event may be about."""

_ids: ContextVar[dict[str, str]] = ContextVar("capgraph_event_ids", default={})  # noqa: B039 - never changed
_run: ContextVar[tuple[Iterator[int], tuple[_Outlet, ...]] | None] = ContextVar(
    "capgraph_event_run", default=None
)


def about(**ids: str | None) -> AbstractContextManager[None]:
    """Put ids on the events of what runs inside, tasks that it starts included.

    Args:
        **ids: Some of :data:`IDS`; ``None`` takes one away.

    >>> with about(plan_id="p1"), about(step_id="a"):
    ...     pass  # events here carry both
    """
    unknown = ids.keys() - set(IDS)
    if unknown:
        raise TypeError(f"about() got unknown ids {sorted(unknown)}. Fix: use {', '.join(IDS)}.")
    merged = {name: value for name, value in {**_ids.get(), **ids}.items() if value is not None}
    return scoped(_ids, merged)


class EventDispatcher:
    """Stamps the events of a graph's runs and hands them to its sinks.

    Args:
        sinks: Objects with ``emit(event)``, a function or a coroutine function. It is given the
            event as a plain dictionary, which it must not change, one at a time and in order. A
            coroutine runs on an event loop of the sink's own.
        capacity: Events that may wait for one sink.

    Raises:
        ConfigurationError: A sink has no ``emit``.
    """

    def __init__(self, sinks: Sequence[Sink] = (), *, capacity: int = 10_000) -> None:
        for sink in sinks:
            if not callable(getattr(sink, "emit", None)):
                raise ConfigurationError(
                    f"The sink {sink!r} cannot take events.", fix="Give it a method emit(event)."
                )
        self._outlets = [_Outlet(sink, capacity) for sink in sinks]

    @property
    def has_sinks(self) -> bool:
        """Whether anybody takes up events."""
        return bool(self._outlets)

    @contextmanager
    def run(self, **ids: str | None) -> Iterator[None]:
        """Stamp the events of what runs inside, and hand them on.

        Inside the run of another one, both hand them on; ``seq`` counts the events of both.

        Args:
            **ids: See :func:`about`.
        """
        seq, outlets = _run.get() or (itertools.count(1), ())
        outlets = (*self._outlets, *outlets)

        def send(event: dict[str, Any]) -> dict[str, Any]:
            stamped = {**event, **_ids.get(), "seq": next(seq)}
            for outlet in outlets:
                outlet.put(stamped)
            return stamped

        with scoped(_run, (seq, outlets)), use_outlet(send), about(**ids):
            yield

    async def flush(self) -> None:
        """Wait until the sinks have taken, lost or refused every event so far."""
        for outlet in self._outlets:
            await asyncio.wrap_future(outlet.executor.submit(lambda: None))

    async def settle(self) -> None:
        """Give the sinks a moment to take what a run sent; a slow one is not waited for."""
        if any(outlet.busy for outlet in self._outlets):
            with suppress(TimeoutError):
                async with asyncio.timeout(_MOMENT):
                    await self.flush()


class _Outlet:
    """The queue and the thread of one sink. Nothing here takes a lock that a run could wait for."""

    def __init__(self, sink: Sink, capacity: int) -> None:
        self.sink, self.capacity = sink, capacity
        self.waiting: deque[tuple[dict[str, Any], int]] = deque()
        self.busy = False
        self.lost = self.told = 0
        self.failed = False
        # Its thread starts with the first event, ends with this object, and at the end of the
        # process first delivers what waits.
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="capgraph sink")

    def put(self, event: dict[str, Any]) -> None:
        if len(self.waiting) >= self.capacity:
            self._note("is too slow, so events are lost", first=not self.lost)
            self.lost += 1
            return
        self.waiting.append((event, self.lost))
        if not self.busy:
            self.busy = True
            self.executor.submit(self._deliver)

    def _deliver(self) -> None:
        while True:
            try:
                event, lost = self.waiting.popleft()
            except IndexError:
                self.busy = False
                if not self.waiting:
                    return
                self.busy = True  # one came between the two lines above
                continue
            if lost > self.told:
                self._hand(EventsLost(count=lost - self.told).model_dump(exclude_none=True))
                self.told = lost
            self._hand(event)

    def _hand(self, event: dict[str, Any]) -> None:
        try:
            result: Any = self.sink.emit(event)
            if inspect.isawaitable(result):
                self._loop.run_until_complete(_wait_for(result))
        except Exception as exc:
            told = mask_secrets(f"raised {type(exc).__name__}: {exc}")
            self._note(told, first=not self.failed)
            self.failed = True

    @functools.cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        weakref.finalize(self, loop.close)
        return loop

    def _note(self, what: str, *, first: bool) -> None:
        if first:
            name = type(self.sink).__name__
            get_logger("framework", "sinks").warning("The sink %s %s; said once.", name, what)


async def _wait_for(result: Any) -> None:
    await result
