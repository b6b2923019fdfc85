"""What an engine has to do: hand orders to workers, at least once. It is never asked what came of them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from framework.scale.order import StepOrder, TurnOrder

TURNS = "turns"
"""The queue of turns, and of steps that name none."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A turn that is begun again and again.

    Attributes:
        id: Names it.
        cron: When, as five fields of cron, in UTC.
        message: What is asked.
        thread: Thread that it is asked in; empty for a new one each time.
    """

    id: str
    cron: str
    message: str
    thread: str = ""


class Handler(Protocol):
    """What a worker does with orders; each may be called again for the same order at any point."""

    async def turn(self, order: TurnOrder) -> None:
        """Run what the thread has to do, until nothing is left that can go on."""

    async def step(self, order: StepOrder) -> None:
        """Run a step, unless its result is there already."""

    async def scheduled(self, schedule: Schedule, moment: float) -> None:
        """Begin the turn of a schedule; the same moment begins it once."""


@runtime_checkable
class Engine(Protocol):
    """Hands orders to workers, each at least once, also when a worker dies with one in its hands.

    An engine keeps no result and is never the truth about a thread: that is its database.
    """

    async def submit(self, order: TurnOrder) -> None:
        """Hand a thread to a worker of the queue ``turns``; one at a time works on a thread."""

    async def run_step(self, order: StepOrder) -> None:
        """Hand a step to a worker of its queue; returns when the order is kept."""

    async def serve(
        self,
        handler: Handler,
        queues: Collection[str],
        *,
        worker: str,
        concurrency: int,
        draining: asyncio.Event,
        ready: asyncio.Event,
    ) -> None:
        """Take orders until ``draining`` is set and those that were taken have ended.

        Args:
            handler: Does the work.
            queues: Orders of these are taken.
            worker: Name of the worker.
            concurrency: Most orders at a time.
            draining: When set, no further order is taken.
            ready: Set here when orders are taken.
        """

    async def waiting(self) -> Mapping[str, int]:
        """Count the orders that nobody has taken, by queue."""

    async def add_schedule(self, schedule: Schedule) -> None:
        """Keep a schedule."""

    async def schedules(self) -> Sequence[Schedule]:
        """Return the schedules."""

    async def remove_schedule(self, schedule_id: str) -> bool:
        """Forget a schedule; tells whether there was one."""

    async def close(self) -> None:
        """Let connections go."""
