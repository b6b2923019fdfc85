"""Engine on PostgreSQL: jobs of procrastinate in the threads' database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import procrastinate
from croniter import croniter
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException
from procrastinate.jobs import Job, Status
from procrastinate.worker import Worker
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from capgraph.base.errors import PersistenceError, ThreadBusyError
from capgraph.configs.logger import get_logger
from capgraph.scale.engine import TURN_QUEUE, JobHandler
from capgraph.scale.jobs import StepJob, TurnJob
from capgraph.scale.procrastinate_schema import migrate_tables

_TURN, _STEP, _SCHEDULED = "capgraph.turn", "capgraph.step", "capgraph.scheduled"
_CONNECT_SECONDS = 10.0
_POLL_SECONDS = 2.0
_NEVER = 1e9
_TRIES, _SOON_SECONDS = 6, 0.1
"""Attempts to store a job, and the delay between them. The pool may contain broken connections."""
_RETRY_SECONDS = 1.0
"""Delay before a job of a busy thread is tried again, unless a tenth of the lease is shorter."""


class PostgresEngine:
    """Engine that stores jobs in PostgreSQL with procrastinate.

    A thread has at most one waiting and one running job, because each job makes a worker do all
    pending work of the thread. Finished jobs are deleted.

    Args:
        app: Open procrastinate ``App``.
        lease_seconds: Seconds without a heartbeat after which a worker's jobs are requeued.
    """

    def __init__(self, app: procrastinate.App, lease_seconds: float) -> None:
        self._app, self._lease_seconds = app, lease_seconds
        self._pool: AsyncConnectionPool[Any] = app.connector.pool  # type: ignore[attr-defined]
        self._log = get_logger("scale", "postgres")

    @classmethod
    async def open(cls, url: str, *, lease_seconds: float) -> PostgresEngine:
        """Connect to the job database and create missing tables.

        Args:
            url: Database URL, such as ``postgresql://…``.
            lease_seconds: Duration of a lease, in seconds.

        Raises:
            PersistenceError: The database is unavailable.
        """
        connector = procrastinate.PsycopgConnector(
            conninfo=url,
            min_size=1,
            max_size=4,
            timeout=_CONNECT_SECONDS,
            pool_factory=_create_pool,
            configure=_configure_connection,
        )
        app = procrastinate.App(connector=connector)
        with _translate_errors():
            await app.open_async()
            engine = cls(app, lease_seconds)
            async with engine._pool.connection() as conn:
                await migrate_tables(conn, lease_seconds=lease_seconds)
        return engine

    # --- jobs -----------------------------------------------------------------------------

    async def submit(self, job: TurnJob, *, is_resubmission: bool = False) -> None:
        """Enqueue a job that runs a thread unless such a job is already waiting."""
        await self._defer(_TURN, TURN_QUEUE, job.thread, asdict(job))

    async def enqueue_step(self, job: StepJob) -> None:
        """Enqueue a job that runs a step unless such a job is already waiting."""
        await self._defer(_STEP, job.queue, job.id, asdict(job))

    async def _defer(
        self, task: str, queue: str, lock: str, args: dict[str, Any], at: float | None = None
    ) -> None:
        lock = f"{task}/{lock}"
        job = self._app.configure_task(
            task,
            allow_unknown=True,
            queue=queue,
            lock=lock,
            queueing_lock=lock,
            schedule_at=None if at is None else datetime.fromtimestamp(at, UTC),
        )
        for tries_left in reversed(range(_TRIES)):
            try:
                with _translate_errors(), suppress(AlreadyEnqueued):
                    await job.defer_async(**args)
            except PersistenceError:
                if not tries_left:
                    raise
                await asyncio.sleep(_SOON_SECONDS)
            else:
                break

    async def count_waiting(self) -> Mapping[str, int]:
        """Return the number of waiting jobs in each queue.

        Scheduled jobs are not counted, nor are jobs whose thread or step is already running.
        """
        rows = await self._run(
            "SELECT queue_name, count(*) FROM procrastinate_jobs job WHERE status = 'todo'"
            " AND task_name <> %s AND NOT EXISTS (SELECT 1 FROM procrastinate_jobs other"
            " WHERE other.lock = job.lock AND other.status = 'doing')"
            " GROUP BY queue_name ORDER BY queue_name",
            _SCHEDULED,
        )
        return {str(queue): int(number) for queue, number in rows}

    # --- work -----------------------------------------------------------------------------

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

        If the database becomes unavailable, the engine keeps trying to reconnect.
        """
        runner = _JobRunner(self, handler, draining)
        app = procrastinate.App(connector=self._app.connector)
        for name, handler_method in (
            (_TURN, runner.turn),
            (_STEP, runner.step),
            (_SCHEDULED, runner.scheduled),
        ):
            app.task(name=name, pass_context=True)(handler_method)
        # A turn waits for its steps, so turns and steps must not share slots.
        step_queues = [queue for queue in queues if queue != TURN_QUEUE]
        queue_groups = [
            group for group in ([TURN_QUEUE] if TURN_QUEUE in queues else [], step_queues) if group
        ]
        pending_groups = list(queue_groups)

        def mark_ready(group: list[str]) -> None:
            pending_groups[:] = [pending for pending in pending_groups if pending != group]
            if not pending_groups:
                ready.set()

        async def serve(group: list[str]) -> None:
            options = {"queues": group, "name": worker_id, "concurrency": concurrency}
            await self._run_worker(app, runner, options, draining, lambda: mark_ready(group))

        await asyncio.gather(*map(serve, queue_groups))

    async def _run_worker(
        self,
        app: procrastinate.App,
        runner: _JobRunner,
        options: Mapping[str, Any],
        draining: asyncio.Event,
        on_ready: Callable[[], None],
    ) -> None:
        while not draining.is_set():
            job_worker: Any = Worker(
                app,
                **options,
                fetch_job_polling_interval=min(_POLL_SECONDS, self._lease_seconds / 10),
                delete_jobs="always",
                install_signal_handlers=False,
                update_heartbeat_interval=_NEVER,  # procrastinate's own does not survive an unavailable database
                stalled_worker_timeout=self._lease_seconds,
            )
            run = asyncio.create_task(job_worker.run())
            maintenance = asyncio.create_task(self._maintain(job_worker, runner, on_ready))
            drained = asyncio.create_task(draining.wait())
            await asyncio.wait({run, drained}, return_when=asyncio.FIRST_COMPLETED)
            job_worker.stop()
            for task in (maintenance, drained):
                task.cancel()
            try:
                with _translate_errors():
                    await run
            except PersistenceError as exc:
                self._log.warning("Jobs cannot be fetched: %s", exc)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _maintain(
        self, worker: Any, runner: _JobRunner, on_ready: Callable[[], None]
    ) -> None:
        """Send heartbeats for this worker and requeue the jobs of dead workers, repeatedly."""
        suspects: set[int] = set()
        while True:
            if is_registered := worker.worker_id is not None:
                on_ready()
            try:
                with _translate_errors():
                    suspects = await self._requeue_lost_jobs(worker, runner, suspects)
            except PersistenceError as exc:
                self._log.warning("Maintenance failed: %s", exc)
            await asyncio.sleep(self._lease_seconds / 6 if is_registered else 0.02)

    async def _requeue_lost_jobs(
        self, worker: Any, runner: _JobRunner, suspects: set[int]
    ) -> set[int]:
        jobs = self._app.job_manager
        # Requeuing a job too early is safe: the lease decides which worker runs the thread.
        timeout = 2 * self._lease_seconds / 3
        for job in await jobs.get_stalled_jobs(seconds_since_heartbeat=timeout):
            await self._requeue_and_finish(job)
        if worker.worker_id is None:
            return set()
        await jobs.update_heartbeat(worker.worker_id)
        # The completion of a job may have been lost while the database was unavailable.
        own_jobs = await jobs.list_jobs_async(status="doing", worker_id=worker.worker_id)
        unknown = {
            job.id for job in own_jobs if job.id is not None and job.id not in runner.job_ids
        }
        for job in own_jobs:
            if job.id in suspects & unknown:
                await self._requeue_and_finish(job)
        return unknown

    async def _requeue_and_finish(self, job: Job) -> None:
        assert job.id is not None
        await self.requeue(job, immediately=True)
        with suppress(ConnectorException):  # another worker did the same concurrently
            await self._app.job_manager.finish_job_by_id_async(
                job_id=job.id, status=Status.FAILED, delete_job=True
            )

    async def requeue(self, job: Job, *, immediately: bool) -> None:
        """Return a running job to its queue, either immediately or after a short delay."""
        at = None if immediately else time.time() + min(_RETRY_SECONDS, self._lease_seconds / 10)
        lock = str(job.lock).partition("/")[2]
        await self._defer(job.task_name, job.queue, lock, dict(job.task_kwargs), at)

    # --- schedules ------------------------------------------------------------------------

    async def schedule(self, name: str, cron: str, *, after: float = 0.0) -> None:
        """Enqueue the next run of a schedule unless it is already enqueued.

        Each run enqueues the following run.
        """
        at = croniter(cron, max(time.time(), after)).get_next(float)
        await self._defer(_SCHEDULED, TURN_QUEUE, name, {"schedule": name, "moment": at}, at)

    async def unschedule(self, name: str) -> None:
        """Delete the waiting jobs of a schedule so that it starts no further turns."""
        await self._run(
            "DELETE FROM procrastinate_jobs WHERE status = 'todo' AND queueing_lock = %s",
            f"{_SCHEDULED}/{name}",
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._app.close_async()

    async def _run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with _translate_errors():
            async with self._pool.connection() as conn:
                cursor = await conn.execute(statement.encode(), values)
                return await cursor.fetchall() if cursor.description else []


def _create_pool(**options: Any) -> AsyncConnectionPool[Any]:
    # Checking connections before each use would cost six more statements per turn.
    return AsyncConnectionPool(**{**options, "check": None})


async def _configure_connection(connection: Any) -> None:
    # procrastinate needs no transactions across statements.
    await connection.set_autocommit(True)
    # With outdated statistics after a burst of jobs, fetching one job would sort all of them.
    await connection.execute("SET enable_sort = off")


class _JobRunner:
    """Running jobs of a worker."""

    def __init__(
        self, engine: PostgresEngine, handler: JobHandler, draining: asyncio.Event
    ) -> None:
        self._engine, self._handler, self._draining = engine, handler, draining
        self.job_ids: set[int | None] = set()

    async def turn(self, context: procrastinate.JobContext, thread: str, run: str) -> None:
        await self._run_job(context.job, lambda: self._handler.run_turn(TurnJob(thread, run)))

    async def step(self, context: procrastinate.JobContext, **order: str) -> None:
        await self._run_job(context.job, lambda: self._handler.run_step(StepJob(**order)))

    async def scheduled(
        self, context: procrastinate.JobContext, schedule: str, moment: float
    ) -> None:
        await self._run_job(context.job, lambda: self._handler.start_scheduled(schedule, moment))

    async def _run_job(self, job: Job, work: Callable[[], Awaitable[None]]) -> None:
        self.job_ids.add(job.id)
        try:
            await work()
        except (Exception, asyncio.CancelledError) as exc:
            if not isinstance(exc, ThreadBusyError):
                get_logger("scale", "postgres").warning("A job is requeued: %r", exc)
            await self._engine.requeue(job, immediately=self._draining.is_set())
        finally:
            self.job_ids.discard(job.id)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Context manager: convert connection errors to ``PersistenceError``."""
    import psycopg

    try:
        yield
    except AlreadyEnqueued:
        raise
    except (ConnectorException, psycopg.Error, PoolTimeout) as exc:
        raise PersistenceError(
            f"The job database is unavailable: {str(exc) or type(exc).__name__}.",
            fix="Start the database or check its URL, then try again.",
            is_unavailable=True,
        ) from exc
