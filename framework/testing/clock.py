"""A clock on which waiting takes no time."""

from __future__ import annotations

import asyncio


class FakeClock:
    """A ``Clock`` that a test moves; sleeping moves it at once and is recorded.

    Sleeps that begin at the same moment overlap, as they do on the machine's clock.

    Args:
        start: Seconds since the epoch at which the clock begins.

    Attributes:
        sleeps: Every wait that was asked for, in seconds, in the order of the calls.

    >>> clock = FakeClock(start=100.0)
    >>> asyncio.run(clock.sleep(2.5))
    >>> clock.now(), clock.sleeps
    (102.5, [2.5])
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._start = start
        self._now = start
        self.sleeps: list[float] = []

    def now(self) -> float:
        """Return seconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """Return seconds since this clock began."""
        return self._now - self._start

    def advance(self, seconds: float) -> None:
        """Move the clock forward, as if that much work had been done.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        if seconds < 0:
            raise ValueError(f"A clock cannot be moved by {seconds!r} s. Fix: give 0 or more.")
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        """Record the wait, move the clock to its end, and let other coroutines run once."""
        self.sleeps.append(seconds)
        end = self._now + max(0.0, seconds)
        await asyncio.sleep(0)
        self._now = max(self._now, end)
