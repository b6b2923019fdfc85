"""Clocks, which let tests replace the source of time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from capgraph.configs.errors import ConfigurationError
from capgraph.configs.run_context import override_run_context, run_context


class Clock(Protocol):
    """Source of time that can also sleep."""

    def now(self) -> float:
        """Return the seconds since the epoch."""

    def monotonic(self) -> float:
        """Return seconds that never decrease, for measuring durations."""

    async def sleep(self, seconds: float) -> None:
        """Sleep without blocking the event loop."""


class SystemClock:
    """Clock of the operating system."""

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds that never decrease, for measuring durations."""
        return time.perf_counter()

    async def sleep(self, seconds: float) -> None:
        """Sleep without blocking the event loop."""
        await asyncio.sleep(seconds)


class _FunctionClock:
    """Clock that reads the time from a function but sleeps in real time."""

    def __init__(self, read: Callable[[], float]) -> None:
        self.now = self.monotonic = read

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def as_clock(clock: Clock | Callable[[], float]) -> Clock:
    """Return a ``Clock`` for a clock or a function that returns seconds.

    Args:
        clock: Clock, or a function that returns seconds, such as ``time.monotonic``.

    Raises:
        ConfigurationError: The argument is neither.

    >>> as_clock(lambda: 12.0).monotonic()
    12.0
    """
    if not callable(clock) and not hasattr(clock, "monotonic"):
        raise ConfigurationError(
            f"{clock!r} is not a clock: it is neither a Clock object nor a function.",
            fix="Pass a Clock, or a function without arguments that returns seconds.",
        )
    return _FunctionClock(clock) if callable(clock) else clock


def timestamp_after(clock: Clock, seconds: float) -> float:
    """Return the timestamp after a delay, in seconds since the epoch.

    A clock that wraps a function has an unknown origin, so the system time is used instead.
    """
    return (time.time() if isinstance(clock, _FunctionClock) else clock.now()) + seconds


def current_clock() -> Clock:
    """Return the clock of the running graph, or the system clock outside a graph.

    >>> isinstance(current_clock(), SystemClock)
    True
    """
    clock: Clock | None = run_context().clock
    return clock or SystemClock()


def use_clock(clock: Clock | None) -> AbstractContextManager[None]:
    """Context manager: use a clock inside the block. None means the system clock.

    >>> with use_clock(as_clock(lambda: 12.0)):
    ...     current_clock().now()
    12.0
    """
    return override_run_context(clock=clock)
