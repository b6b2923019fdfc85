"""Clocks, which let tests replace the source of time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Protocol

from capgraph.configs.errors import ConfigurationError
from capgraph.configs.run_context import override_run_context, run_context


class Clock(Protocol):
    """Source of time that can also sleep."""

    def now(self) -> float:
        """Return the seconds since the epoch."""

    def monotonic(self) -> float:
        """Return a monotonic time in seconds, for measuring durations."""

    async def sleep(self, seconds: float) -> None:
        """Sleep for a number of seconds without blocking the event loop."""


class SystemClock:
    """Clock of the operating system."""

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return a monotonic time in seconds, for measuring durations."""
        return time.perf_counter()

    async def sleep(self, seconds: float) -> None:
        """Sleep for a number of seconds without blocking the event loop."""
        await asyncio.sleep(seconds)


class _FunctionClock:
    """Clock that obtains the time from a function but sleeps in real time."""

    def __init__(self, read: Callable[[], float]) -> None:
        self.now = self.monotonic = read

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def as_clock(clock: Clock | Callable[[], float]) -> Clock:
    """Convert a function that returns seconds to a ``Clock``.

    A ``Clock`` is returned unchanged.

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
    """Return the time after a delay, in seconds since the epoch.

    If the clock wraps a function, the system time is used, because the epoch of the function is
    unknown.
    """
    return (time.time() if isinstance(clock, _FunctionClock) else clock.now()) + seconds


def utc_now_text() -> str:
    """Return the current UTC time in ISO format."""
    return datetime.now(UTC).isoformat()


def current_clock() -> Clock:
    """Return the clock of the graph that is running, or the system clock outside a run.

    >>> isinstance(current_clock(), SystemClock)
    True
    """
    clock: Clock | None = run_context().clock
    return clock or SystemClock()


def use_clock(clock: Clock | None) -> AbstractContextManager[None]:
    """Context manager that sets the clock for the code in its block.

    ``None`` selects the system clock.

    >>> with use_clock(as_clock(lambda: 12.0)):
    ...     current_clock().now()
    12.0
    """
    return override_run_context(clock=clock)
