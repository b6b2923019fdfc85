"""What an engine has to do: hand orders to workers, at least once. It is never asked what came of them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from capgraph.scale.jobs import StepJob, TurnJob

TURN_QUEUE = "turns"
"""The queue of turns, and of steps that name none."""


class JobHandler(Protocol):
    """What a worker does with orders; each may be called again for the same order at any point."""

    async def run_turn(self, job: TurnJob) -> None:
        """Run what the thread has to do, until nothing is left that can go on."""

    async def run_step(self, job: StepJob) -> None:
        """Run a step, unless its result is there already."""

    async def start_scheduled(self, schedule: str, moment: float) -> None:
        """Begin the turn of a schedule; the same moment begins it once."""


@runtime_checkable
class Engine(Protocol):
    """Hands orders to workers, each at least once, also when a worker dies with one in its hands.

    An engine keeps no result and is never the truth about a thread: that is its database.
    """

    async def submit(self, job: TurnJob, *, is_resubmission: bool = False) -> None:
        """Hand a thread to a worker of the queue ``turns``; one at a time works on a thread.

        Args:
            job: The thread, and the run to begin with.
            is_resubmission: Whether the run was handed over before; then a thread that still has an order is
                left alone.
        """

    async def enqueue_step(self, job: StepJob) -> None:
        """Hand a step to a worker of its queue; returns when the order is kept."""

    async def serve(
        self,
        handler: JobHandler,
        queues: Collection[str],
        *,
        worker_id: str,
        concurrency: int,
        draining: asyncio.Event,
        ready: asyncio.Event,
    ) -> None:
        """Take orders until ``draining`` is set and those that were taken have ended.

        Args:
            handler: Does the work.
            queues: Orders of these are taken.
            worker_id: Name of the worker.
            concurrency: Most orders at a time.
            draining: When set, no further order is taken.
            ready: Set here when orders are taken.
        """

    async def count_waiting(self) -> Mapping[str, int]:
        """Count the orders that nobody has taken, by queue."""

    async def schedule(self, name: str, cron: str, *, after: float = 0.0) -> None:
        """Have a worker of the queue ``turns`` told of each moment, or the next one, of a schedule.

        Asked for again, after each moment and now and then, as an engine may have lost it.

        Args:
            name: Names it.
            cron: Five fields of cron, in UTC.
            after: The moment that has come, in seconds since the epoch.
        """

    async def unschedule(self, name: str) -> None:
        """Forget the moments of a schedule."""

    async def close(self) -> None:
        """Let connections go."""
