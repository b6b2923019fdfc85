"""Time as a dependency, so that tests need not wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from capgraph.configs.errors import ConfigurationError
from capgraph.configs.run_context import override_run_context, run_context


class Clock(Protocol):
    """Tells the time and waits."""

    def now(self) -> float:
        """Return seconds since the epoch."""

    def monotonic(self) -> float:
        """Return seconds that only grow, for durations."""

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking the event loop."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds that only grow, for durations."""
        return time.perf_counter()

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking the event loop."""
        await asyncio.sleep(seconds)


class _Seconds:
    """A clock made of a function that returns seconds; it waits as the machine does."""

    def __init__(self, read: Callable[[], float]) -> None:
        self.now = self.monotonic = read

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def as_clock(clock: Clock | Callable[[], float]) -> Clock:
    """Return a clock of whatever a caller gave as one.

    Args:
        clock: A clock, or a function that returns seconds, such as ``time.monotonic``.

    Raises:
        ConfigurationError: It is neither.

    >>> as_clock(lambda: 12.0).monotonic()
    12.0
    """
    if not callable(clock) and not hasattr(clock, "monotonic"):
        raise ConfigurationError(f"{clock!r} is no clock.", fix="Give a function of no argument.")
    return _Seconds(clock) if callable(clock) else clock


def timestamp_after(clock: Clock, seconds: float) -> float:
    """Return the moment in so many seconds, since the epoch.

    A clock that was made of a function counts from anywhere, so the machine says what time it is.
    """
    return (time.time() if isinstance(clock, _Seconds) else clock.now()) + seconds


def current_clock() -> Clock:
    """Return the clock of the graph whose attempt or model call is under way, else the machine's.

    >>> isinstance(current_clock(), SystemClock)
    True
    """
    clock: Clock | None = run_context().clock
    return clock or SystemClock()


def use_clock(clock: Clock | None) -> AbstractContextManager[None]:
    """Have what runs inside tell the time by a clock; by the machine's for ``None``.

    >>> with use_clock(as_clock(lambda: 12.0)):
    ...     current_clock().now()
    12.0
    """
    return override_run_context(clock=clock)
