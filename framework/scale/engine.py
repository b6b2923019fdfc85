"""Protocol of engines, which hand jobs to workers at least once and store no results."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from capgraph.scale.jobs import StepJob, TurnJob

TURN_QUEUE = "turns"
"""Queue of turns, and of steps without a queue."""


class JobHandler(Protocol):
    """Protocol for handlers that run the jobs of a worker.

    Each method may be called repeatedly for the same job, because jobs are delivered at least
    once.
    """

    async def run_turn(self, job: TurnJob) -> None:
        """Execute all open runs of the job's thread."""

    async def run_step(self, job: StepJob) -> None:
        """Run a step on this worker unless its result is already stored."""

    async def start_scheduled(self, schedule: str, moment: float) -> None:
        """Start the turn for one due time of a schedule.

        Repeated calls for the same due time start only one turn.
        """


@runtime_checkable
class Engine(Protocol):
    """Protocol for engines that deliver jobs to workers at least once, even if a worker dies.

    An engine does not store results. The database that stores the threads is the only source of
    truth.
    """

    async def submit(self, job: TurnJob, *, is_resubmission: bool = False) -> None:
        """Enqueue a job that runs a thread.

        The job is added to the ``turns`` queue. Only one worker at a time runs a thread.

        Args:
            job: Job that identifies the thread and its run.
            is_resubmission: Whether the run was submitted before. In this case, a thread that still
                has a job is left unchanged.
        """

    async def enqueue_step(self, job: StepJob) -> None:
        """Enqueue a job that runs a step.

        Returns when the job has been stored.
        """

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
        """Run jobs until ``draining`` is set and all running jobs have ended.

        Args:
            handler: Handler that runs the jobs.
            queues: Names of the queues to take jobs from.
            worker_id: ID of the worker.
            concurrency: Maximum number of concurrent jobs.
            draining: Event after which no new jobs are accepted.
            ready: Event that the engine sets once it accepts jobs.
        """

    async def count_waiting(self) -> Mapping[str, int]:
        """Return the number of waiting jobs in each queue."""

    async def schedule(self, name: str, cron: str, *, after: float = 0.0) -> None:
        """Start a turn at each due time of a schedule, or only at the next due time.

        This method is called again after each due time and periodically, because an engine may lose
        a schedule.

        Args:
            name: ID of the schedule.
            cron: Cron expression with five fields, in UTC.
            after: Last due time that has passed, in seconds since the epoch.
        """

    async def unschedule(self, name: str) -> None:
        """Delete a schedule so that it starts no further turns."""

    async def close(self) -> None:
        """Close all connections."""
