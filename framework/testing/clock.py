"""Fake clock for tests, on which sleeping takes no time."""

from __future__ import annotations

import asyncio


class FakeClock:
    """Clock that a test controls. Sleeping advances it at once and is recorded.

    Concurrent sleeps overlap, as they do on a real clock.

    Args:
        start: Initial time in seconds since the epoch.

    Attributes:
        sleeps: Durations of all sleeps in seconds, in the order of the calls.

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
        """Return the time in seconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds since the clock was created."""
        return self._now - self._start

    def advance(self, seconds: float) -> None:
        """Advance the clock by some seconds, as if work had taken that long.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        if seconds < 0:
            raise ValueError(f"seconds is {seconds!r}: it must be 0 or more. Fix: pass 0 or more.")
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        """Record the sleep, advance the clock to its end, and let other coroutines run once."""
        self.sleeps.append(seconds)
        end = self._now + max(0.0, seconds)
        await asyncio.sleep(0)
        self._now = max(self._now, end)
