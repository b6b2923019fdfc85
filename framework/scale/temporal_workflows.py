"""What Temporal replays: a thread's orders, handed on one at a time, and the moments of schedules.

Nothing of the project is imported here, so nothing of it is replayed. A worker of another version
goes on with a history that this one wrote: what is changed here passes the test that replays a
recorded history.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey

LOCAL_ACTIVITY_TIMEOUT = timedelta(minutes=10)
"""So long whoever looks at an order does it at once, which is one task of the server's instead of three;
the server hears of it by an entry in the history every now and then, which must not grow for ever."""
_MOMENT = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")


@dataclass(frozen=True)
class ThreadJob:
    """A run of a thread that is to be looked at.

    Attributes:
        thread: The thread.
        run: The run in the log.
        lease_seconds: How long a worker is waited for that is not heard of.
        queue: The queue of workers that have the thread's database; empty where there is one database.
        at_hand: Whether the worker that looks at the order may do it itself, before it is handed to any.
    """

    thread: str
    run: str
    lease_seconds: float
    queue: str = ""
    at_hand: bool = False


@dataclass(frozen=True)
class ScheduledStart:
    """A schedule whose moment has come.

    Attributes:
        schedule: Names the schedule.
        lease_seconds: How long a worker is waited for that is not heard of.
    """

    schedule: str
    lease_seconds: float


def activity_options(lease_seconds: float) -> dict[str, Any]:
    """Return how an activity is waited for: as long as its worker lives, and tried for ever.

    The next worker begins before the lease of one that is not heard of is over, and waits for that.

    Args:
        lease_seconds: The length of a lease.

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
    """A thread's orders; ends when none is left, so a thread that waits for a person has none."""

    @workflow.init
    def __init__(self, orders: list[ThreadJob]) -> None:
        self._orders = list(orders)

    @workflow.run
    async def run(self, orders: list[ThreadJob]) -> None:
        """Have a worker do each order."""
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
                # Whoever cancels here stops no turn: that is written in the thread's database.
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                **activity_options(order.lease_seconds),
            )

    @workflow.signal
    def order(self, order: ThreadJob) -> None:
        """Put an order behind the others; one that waits already is the same.

        One for a thread of this name in another database is left to those that have that.
        """
        if order.queue not in {"", workflow.info().task_queue}:
            return
        if order not in self._orders:
            self._orders.append(order)


@workflow.defn(name="capgraph-schedule")
class ScheduleWorkflow:
    """One moment of a schedule."""

    @workflow.run
    async def run(self, begin: ScheduledStart) -> None:
        """Have a worker begin the turn."""
        info = workflow.info()
        moment = info.typed_search_attributes.get(_MOMENT) or info.start_time
        await workflow.execute_activity(
            "scheduled",
            args=[begin.schedule, moment.timestamp()],
            **activity_options(begin.lease_seconds),
        )
