"""Worker process: runs jobs of an engine and recovers abandoned work."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from capgraph.base.errors import CapgraphError, PersistenceError
from capgraph.configs.logger import get_logger
from capgraph.graph.turn_runner import DRAIN_SECONDS
from capgraph.scale.client import Client
from capgraph.scale.engine import TURN_QUEUE
from capgraph.scale.jobs import StepJob, TurnJob
from capgraph.scale.remote import RemoteSteps
from capgraph.scale.run_executor import RunExecutor
from capgraph.scale.schedules import Schedules
from capgraph.stores.database import SqlTables
from capgraph.stores.threads import list_suspended_threads

_UPSERT_WORKER = (
    "INSERT INTO capgraph_workers (id, queues, running, gone) VALUES (?, ?, ?, {now} + ?)"
    " ON CONFLICT (id) DO UPDATE SET running = excluded.running, gone = excluded.gone"
)
_POLL_SECONDS = 1.0
_PRUNE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Information about a live worker.

    Attributes:
        id: ID of the worker.
        queues: Names of the queues that the worker takes jobs from.
        running: Number of jobs that the worker is currently running.
    """

    id: str
    queues: list[str]
    running: int


async def list_workers(tables: SqlTables) -> list[WorkerInfo]:
    """Return the live workers, sorted by ID.

    A dead worker disappears from the list after twice its lease duration.

    Args:
        tables: SQL access to the database that stores the threads.
    """
    _, rows = await tables.run(
        "SELECT id, queues, running FROM capgraph_workers WHERE gone > {now} ORDER BY id"
    )
    return [WorkerInfo(name, json.loads(queues), running) for name, queues, running in rows]


def new_worker_id() -> str:
    """Create a unique worker ID that contains the host name and the process ID."""
    machine = os.environ.get("CAPGRAPH_MACHINE") or platform.node()
    return f"{machine}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


class Worker:
    """Worker that runs the jobs delivered by an engine.

    Attributes:
        id: ID of the worker.
        ready: Event that is set when the worker accepts jobs.

    Args:
        client: Client with the graph, the run log, and the engine.
        queues: Names of the queues to take jobs from. Without ``turns``, the worker runs only
            steps.
        concurrency: Maximum number of concurrent jobs.
    """

    def __init__(self, client: Client, queues: Collection[str], *, concurrency: int = 10) -> None:
        self.id: str = new_worker_id()
        self.ready: asyncio.Event = asyncio.Event()
        self._client, self._queues, self._concurrency = client, tuple(queues), concurrency
        self._executor = RunExecutor(client.graph, client.log, checks_rules=True)
        self._scale = client.graph.services.settings.scale
        self._tables = client.graph.persistence.tables
        self._draining = asyncio.Event()
        self._remote_steps = RemoteSteps(
            client.graph, client.engine, queues=self._queues, draining=self._draining
        )
        self._running: set[asyncio.Task[None] | None] = set()
        self._next_recovery = self._next_pruning = 0.0
        self._announced = (-1, 0.0)

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Stop accepting jobs, and checkpoint active jobs for other workers to resume."""
        self._draining.set()
        self._executor.drain(seconds)
        asyncio.get_running_loop().call_later(seconds, self._cancel_steps)

    def _cancel_steps(self) -> None:
        for task in self._running:
            if task is not None:
                task.cancel()

    async def run(self) -> None:
        """Run jobs until the worker is drained."""
        await self._client.graph.warm_up()
        maintenance = asyncio.create_task(self._maintain())
        try:
            await self._client.engine.serve(
                self,
                self._queues,
                worker_id=self.id,
                concurrency=self._concurrency,
                draining=self._draining,
                ready=self.ready,
            )
        finally:
            maintenance.cancel()
            await asyncio.wait([maintenance])
            await self._client.log.flush()
            await self._record_liveness(0.0)

    # --- jobs -----------------------------------------------------------------------------

    async def run_turn(self, job: TurnJob) -> None:
        """Run all pending work of a thread.

        Raises:
            ThreadBusyError: A different process is running the thread.
            PersistenceError: The database is unavailable, or this worker is shutting down and
                a different worker must continue the thread.
        """
        with self._track_task():
            report = await self._executor.advance(job)
        if report.has_more:
            raise PersistenceError(
                "The worker is shutting down.", fix="Another worker continues the thread."
            )

    async def run_step(self, job: StepJob) -> None:
        """Run a step on this worker unless its result already exists.

        Raises:
            ThreadBusyError: A different worker is running the step.
            PersistenceError: The result cannot be stored.
        """
        with self._track_task():
            await self._remote_steps.run(job)

    @contextmanager
    def _track_task(self) -> Iterator[None]:
        task: asyncio.Task[None] | None = asyncio.current_task()
        self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)

    async def start_scheduled(self, schedule: str, moment: float) -> None:
        """Start the turn for one due time of a schedule, if the schedule still exists.

        Repeated calls for the same due time start only one turn.
        """
        record = await Schedules(self._client.graph.checkpointer).get(schedule)
        if record is None:
            await self._client.engine.unschedule(schedule)
            return
        due_time = datetime.fromtimestamp(moment, UTC).strftime("%Y%m%dT%H%M%S")
        thread = record.thread or f"{schedule}-{due_time}"
        run_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{schedule}/{due_time}"))
        if record.unreadable:
            get_logger("scale", "worker").error(
                "Schedule %s is unreadable: %s", record.id, record.unreadable
            )
        else:
            await self._client.submit(
                thread, record.message, run_id=run_id, caller=record.caller, rules=record.rules
            )
        await self._client.engine.schedule(record.id, record.cron, after=moment)

    # --- maintenance ----------------------------------------------------------------------

    async def _maintain(self) -> None:
        pause = min(self._scale.heartbeat_interval, _POLL_SECONDS)
        while True:
            try:
                await self._executor.apply_stop_requests()
                await self._record_liveness(2 * self._scale.lease_seconds)
                if TURN_QUEUE in self._queues and not self._draining.is_set():
                    await self._wake_due_threads()
            except CapgraphError as exc:
                get_logger("scale", "worker").warning("Maintenance failed: %s", exc)
            except Exception:  # without maintenance, the worker would be considered dead
                get_logger("scale", "worker").exception("Maintenance failed.")
            await asyncio.sleep(pause)

    async def _record_liveness(self, seconds: float) -> None:
        """Record that this worker counts as alive for a number of seconds.

        A value of 0 removes the record.
        """
        assert self._tables is not None
        if seconds:
            running, now = len(self._running), time.monotonic()
            if running == self._announced[0] and now < self._announced[1]:
                return  # announced recently
            await self._tables.run(
                _UPSERT_WORKER, (self.id, json.dumps(self._queues), running, seconds)
            )
            self._announced = running, now + seconds / 4
        else:
            await self._tables.run("DELETE FROM capgraph_workers WHERE id = ?", (self.id,))

    async def _wake_due_threads(self) -> None:
        """Resume threads whose wait is over, and resubmit jobs that the engine has lost."""
        client, now = self._client, time.monotonic()
        for wait in await list_suspended_threads(client.graph.checkpointer, now=time.time()):
            await client.wake(wait, keeps_rules=True)
        if now >= self._next_recovery:
            self._next_recovery = now + self._scale.lease_seconds
            # Resubmitting a job that is still queued has no effect.
            before = time.time() - self._scale.lease_seconds
            lost = [run for run in await client.log.unfinished_runs() if run.created_at < before]
            for run in reversed(lost):
                await client.engine.submit(TurnJob(run.thread_id, run.run_id), is_resubmission=True)
            for schedule in await Schedules(client.graph.checkpointer).list_all():
                await client.engine.schedule(schedule.id, schedule.cron)
        if now >= self._next_pruning:
            self._next_pruning = now + _PRUNE_SECONDS
            assert self._tables is not None
            await self._tables.run("DELETE FROM capgraph_workers WHERE gone < {now}")
            keep = client.graph.services.settings.serve.keep_runs_days
            await client.log.prune(keep * 86_400)
