"""Protocol of engines, which hand jobs to workers at least once and store no results."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from capgraph.scale.jobs import StepJob, TurnJob

TURN_QUEUE = "turns"
"""Queue of turns, and of steps without a queue."""


class JobHandler(Protocol):
    """Protocol of job handlers. Each method may be called repeatedly for the same job."""

    async def run_turn(self, job: TurnJob) -> None:
        """Execute all open runs of a thread."""

    async def run_step(self, job: StepJob) -> None:
        """Run a step unless its result is already stored."""

    async def start_scheduled(self, schedule: str, moment: float) -> None:
        """Start the turn of a schedule. Each due time starts one turn."""


@runtime_checkable
class Engine(Protocol):
    """Protocol of engines, which deliver jobs to workers at least once, even if a worker dies.

    An engine stores no results. The database of a thread is the only source of truth.
    """

    async def submit(self, job: TurnJob, *, is_resubmission: bool = False) -> None:
        """Enqueue a job for a thread in the queue ``turns``. One worker at a time runs a thread.

        Args:
            job: The thread and its run.
            is_resubmission: True if the run was submitted before. A thread that still has a job is
                then left unchanged.
        """

    async def enqueue_step(self, job: StepJob) -> None:
        """Enqueue a job for a step. The method returns when the job is stored."""

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
        """Run jobs until ``draining`` is set and running jobs have ended.

        Args:
            handler: Runs the jobs.
            queues: Queues to serve.
            worker_id: ID of the worker.
            concurrency: Maximum number of concurrent jobs.
            draining: Event that ends the acceptance of jobs.
            ready: Event that the engine sets when it accepts jobs.
        """

    async def count_waiting(self) -> Mapping[str, int]:
        """Return the number of waiting jobs, by queue."""

    async def schedule(self, name: str, cron: str, *, after: float = 0.0) -> None:
        """Start a turn at each due time of a schedule, or at its next one.

        Called again after each due time and periodically, because an engine may have lost the
        schedule.

        Args:
            name: ID of the schedule.
            cron: Cron expression with five fields, in UTC.
            after: The due time that has passed, in seconds since the epoch.
        """

    async def unschedule(self, name: str) -> None:
        """Delete a schedule, so that it starts no more turns."""

    async def close(self) -> None:
        """Close all connections."""
