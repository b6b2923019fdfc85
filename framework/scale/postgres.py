"""Orders as jobs of procrastinate, in the database that holds the threads; no other server."""

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
"""So often an order is tried to be kept: the pool may hold connections that are cut."""
_RETRY_SECONDS = 1.0
"""An order whose thread is busy is tried again so much later, or a tenth of a lease."""


class PostgresEngine:
    """Orders as jobs of procrastinate.

    There is at most one waiting order of a thread, and one that is worked on: an order asks a
    worker to look at everything that the thread has to do. A finished order leaves nothing behind.

    Args:
        app: Tasks and connections of procrastinate, opened.
        lease_seconds: After so long without a sign of life a worker's orders go to others.
    """

    def __init__(self, app: procrastinate.App, lease_seconds: float) -> None:
        self._app, self._lease_seconds = app, lease_seconds
        self._pool: AsyncConnectionPool[Any] = app.connector.pool  # type: ignore[attr-defined]
        self._log = get_logger("scale", "postgres")

    @classmethod
    async def open(cls, url: str, *, lease_seconds: float) -> PostgresEngine:
        """Connect to the database; whoever comes first makes the tables.

        Args:
            url: ``postgresql://…``.
            lease_seconds: The length of a lease.

        Raises:
            PersistenceError: The database cannot be reached.
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

    # --- orders ---------------------------------------------------------------------------

    async def submit(self, job: TurnJob, *, is_resubmission: bool = False) -> None:
        """Hand a thread to a worker; one that waits already is enough."""
        await self._defer(_TURN, TURN_QUEUE, job.thread, asdict(job))

    async def enqueue_step(self, job: StepJob) -> None:
        """Hand a step to a worker of its queue; one that waits already is enough."""
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
        for left in reversed(range(_TRIES)):
            try:
                with _translate_errors(), suppress(AlreadyEnqueued):
                    await job.defer_async(**args)
            except PersistenceError:
                if not left:
                    raise
                await asyncio.sleep(_SOON_SECONDS)
            else:
                break

    async def count_waiting(self) -> Mapping[str, int]:
        """Count the orders that nobody has taken, by queue."""
        found = await self._run(
            "SELECT queue_name, count(*) FROM procrastinate_jobs job WHERE status = 'todo'"
            " AND task_name <> %s AND NOT EXISTS (SELECT 1 FROM procrastinate_jobs other"
            " WHERE other.lock = job.lock AND other.status = 'doing')"
            " GROUP BY queue_name ORDER BY queue_name",
            _SCHEDULED,
        )
        return {str(queue): int(number) for queue, number in found}

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
        """Take orders until ``draining`` is set and those that were taken have ended.

        While the database is away it is asked again and again.
        """
        desk = _JobRunner(self, handler, draining)
        app = procrastinate.App(connector=self._app.connector)
        for name, do in ((_TURN, desk.turn), (_STEP, desk.step), (_SCHEDULED, desk.scheduled)):
            app.task(name=name, pass_context=True)(do)
        # A turn waits for its steps on other workers, so steps have places of their own.
        steps = [queue for queue in queues if queue != TURN_QUEUE]
        kinds = [kind for kind in ([TURN_QUEUE] if TURN_QUEUE in queues else [], steps) if kind]
        absent = list(kinds)

        def begun(kind: list[str]) -> None:
            absent[:] = [one for one in absent if one != kind]
            if not absent:
                ready.set()

        async def serve(kind: list[str]) -> None:
            options = {"queues": kind, "name": worker_id, "concurrency": concurrency}
            await self._run_worker(app, desk, options, draining, lambda: begun(kind))

        await asyncio.gather(*map(serve, kinds))

    async def _run_worker(
        self,
        app: procrastinate.App,
        runner: _JobRunner,
        options: Mapping[str, Any],
        draining: asyncio.Event,
        on_ready: Callable[[], None],
    ) -> None:
        while not draining.is_set():
            working: Any = Worker(
                app,
                **options,
                fetch_job_polling_interval=min(_POLL_SECONDS, self._lease_seconds / 10),
                delete_jobs="always",
                install_signal_handlers=False,
                update_heartbeat_interval=_NEVER,  # its own does not outlast a database that was away
                stalled_worker_timeout=self._lease_seconds,
            )
            run = asyncio.create_task(working.run())
            looking = asyncio.create_task(self._maintain(working, runner, on_ready))
            waiting = asyncio.create_task(draining.wait())
            await asyncio.wait({run, waiting}, return_when=asyncio.FIRST_COMPLETED)
            working.stop()
            for task in (looking, waiting):
                task.cancel()
            try:
                with _translate_errors():
                    await run
            except PersistenceError as exc:
                self._log.warning("No orders are taken: %s", exc)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _maintain(
        self, worker: Any, runner: _JobRunner, on_ready: Callable[[], None]
    ) -> None:
        """Give to others what the dead have left."""
        left: set[int] = set()
        while True:
            if takes := worker.worker_id is not None:
                on_ready()
            try:
                with _translate_errors():
                    left = await self._requeue_lost_jobs(worker, runner, left)
            except PersistenceError as exc:
                self._log.warning("Nothing was looked after: %s", exc)
            await asyncio.sleep(self._lease_seconds / 6 if takes else 0.02)

    async def _requeue_lost_jobs(
        self, worker: Any, runner: _JobRunner, suspects: set[int]
    ) -> set[int]:
        jobs = self._app.job_manager
        # A lease says who has a thread, so an order may be given to another one too early.
        silent = 2 * self._lease_seconds / 3
        for job in await jobs.get_stalled_jobs(seconds_since_heartbeat=silent):
            await self._requeue_and_finish(job)
        if worker.worker_id is None:
            return set()
        await jobs.update_heartbeat(worker.worker_id)
        # The word of an order's end may have been lost while the database was away.
        mine = await jobs.list_jobs_async(status="doing", worker_id=worker.worker_id)
        seen = {job.id for job in mine if job.id is not None and job.id not in runner.job_ids}
        for job in mine:
            if job.id in suspects & seen:
                await self._requeue_and_finish(job)
        return seen

    async def _requeue_and_finish(self, job: Job) -> None:
        assert job.id is not None
        await self.requeue(job, immediately=True)
        with suppress(ConnectorException):  # somebody else did it at the same moment
            await self._app.job_manager.finish_job_by_id_async(
                job_id=job.id, status=Status.FAILED, delete_job=True
            )

    async def requeue(self, job: Job, *, immediately: bool) -> None:
        """Give back an order that is being worked on."""
        at = None if immediately else time.time() + min(_RETRY_SECONDS, self._lease_seconds / 10)
        lock = str(job.lock).partition("/")[2]
        await self._defer(job.task_name, job.queue, lock, dict(job.task_kwargs), at)

    # --- schedules ------------------------------------------------------------------------

    async def schedule(self, name: str, cron: str, *, after: float = 0.0) -> None:
        """Order the next moment of a schedule, unless it is; who does it asks for the one after it."""
        at = croniter(cron, max(time.time(), after)).get_next(float)
        await self._defer(_SCHEDULED, TURN_QUEUE, name, {"schedule": name, "moment": at}, at)

    async def unschedule(self, name: str) -> None:
        """Forget the moments of a schedule."""
        await self._run(
            "DELETE FROM procrastinate_jobs WHERE status = 'todo' AND queueing_lock = %s",
            f"{_SCHEDULED}/{name}",
        )

    async def close(self) -> None:
        """Let connections go."""
        await self._app.close_async()

    async def _run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with _translate_errors():
            async with self._pool.connection() as conn:
                cursor = await conn.execute(statement.encode(), values)
                return await cursor.fetchall() if cursor.description else []


def _create_pool(**options: Any) -> AsyncConnectionPool[Any]:
    # Asked before each use, whether it lives, a connection would cost a turn six statements more.
    return AsyncConnectionPool(**{**options, "check": None})


async def _configure_connection(connection: Any) -> None:
    # Every statement of procrastinate stands for itself.
    await connection.set_autocommit(True)
    # Until the database has counted a burst of orders, it would sort all that wait to fetch one.
    await connection.execute("SET enable_sort = off")


class _JobRunner:
    """The orders of a worker that are under way."""

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
                get_logger("scale", "postgres").warning("An order is given back: %r", exc)
            await self._engine.requeue(job, immediately=self._draining.is_set())
        finally:
            self.job_ids.discard(job.id)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Say in the project's words that the database is away."""
    import psycopg

    try:
        yield
    except AlreadyEnqueued:
        raise
    except (ConnectorException, psycopg.Error, PoolTimeout) as exc:
        raise PersistenceError(
            f"The database of the orders cannot be reached: {str(exc) or type(exc).__name__}.",
            fix="Start it, or check the address; then try again.",
            is_unavailable=True,
        ) from exc
