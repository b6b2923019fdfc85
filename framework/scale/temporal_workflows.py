"""Temporal workflows that queue the jobs of a thread and start scheduled turns.

This module imports nothing else from the project, because Temporal replays it. Workers of another
version continue histories written by this one, so changes must pass the test that replays recorded
histories.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey

LOCAL_ACTIVITY_TIMEOUT = timedelta(minutes=10)
"""Maximum duration of a local activity. A local activity needs one task of the server instead of
three
but writes a heartbeat to the history regularly, so it must not run forever.
"""
_MOMENT = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")


@dataclass(frozen=True)
class ThreadJob:
    """Job for a thread, as serialized for Temporal.

    Attributes:
        thread: Storage ID of the thread.
        run: ID of the run in the run log.
        lease_seconds: Seconds to wait for a worker that sends no heartbeat.
        queue: Task queue of the thread's database. Empty if the server is used by one database.
        at_hand: Whether the workflow's worker may run the job in a local activity.
    """

    thread: str
    run: str
    lease_seconds: float
    queue: str = ""
    at_hand: bool = False


@dataclass(frozen=True)
class ScheduledStart:
    """Request to start a turn of a schedule, as serialized for Temporal.

    Attributes:
        schedule: ID of the schedule.
        lease_seconds: Seconds to wait for a worker that sends no heartbeat.
    """

    schedule: str
    lease_seconds: float


def activity_options(lease_seconds: float) -> dict[str, Any]:
    """Return options for a Temporal activity that is retried until it succeeds.

    The heartbeat timeout is shorter than the lease. The next worker therefore starts before the
    lease of an unresponsive worker expires, and waits for the lease.

    Args:
        lease_seconds: Duration of a lease, in seconds.

    >>> activity_options(30)["heartbeat_timeout"]
    datetime.timedelta(seconds=20)
    """
    return {
        "start_to_close_timeout": timedelta(days=3650),
        "heartbeat_timeout": timedelta(seconds=lease_seconds * 2 / 3),
        "retry_policy": RetryPolicy(
            initial_interval=timedelta(seconds=min(0.2, lease_seconds / 8)),
            maximum_interval=timedelta(seconds=lease_seconds / 8),
        ),
    }


@workflow.defn(name="capgraph-thread")
class ThreadWorkflow:
    """Temporal workflow that queues the jobs of a thread.

    The workflow ends when its queue is empty, so a thread that waits for a person has no
    workflow.
    """

    @workflow.init
    def __init__(self, orders: list[ThreadJob]) -> None:
        self._orders = list(orders)

    @workflow.run
    async def run(self, orders: list[ThreadJob]) -> None:
        """Run the queued jobs of a thread, one after the other."""
        while self._orders:
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(self._orders)
            order = self._orders.pop(0)
            if order.at_hand and not await workflow.execute_local_activity(
                "at_hand",
                args=[order.thread, order.run],
                result_type=str,
                start_to_close_timeout=2 * LOCAL_ACTIVITY_TIMEOUT,
                retry_policy=RetryPolicy(maximum_attempts=1),
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            ):
                continue
            await workflow.execute_activity(
                "advance",
                args=[order.thread, order.run],
                # Canceling the workflow does not stop a turn; a stop is recorded in the database.
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                **activity_options(order.lease_seconds),
            )

    @workflow.signal
    def order(self, order: ThreadJob) -> None:
        """Append a job to the thread's queue unless it is already queued.

        A job for a thread with the same ID in a different database is left to that database's
        workers.
        """
        if order.queue not in {"", workflow.info().task_queue}:
            return
        if order not in self._orders:
            self._orders.append(order)


@workflow.defn(name="capgraph-schedule")
class ScheduleWorkflow:
    """Start of one scheduled turn."""

    @workflow.run
    async def run(self, begin: ScheduledStart) -> None:
        """Start a turn of a schedule on a worker."""
        info = workflow.info()
        moment = info.typed_search_attributes.get(_MOMENT) or info.start_time
        await workflow.execute_activity(
            "scheduled",
            args=[begin.schedule, moment.timestamp()],
            **activity_options(begin.lease_seconds),
        )
