"""A worker: takes orders of an engine, and looks after what nobody else does."""

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
    """A worker that lives.

    Attributes:
        id: Names it.
        queues: What it serves.
        running: How many orders it works on.
    """

    id: str
    queues: list[str]
    running: int


async def list_workers(tables: SqlTables) -> list[WorkerInfo]:
    """Return the workers that live, by id; a dead one is left out after twice its lease.

    Args:
        tables: Rows beside the threads.
    """
    _, found = await tables.run(
        "SELECT id, queues, running FROM capgraph_workers WHERE gone > {now} ORDER BY id"
    )
    return [WorkerInfo(name, json.loads(queues), running) for name, queues, running in found]


def new_worker_id() -> str:
    """Return a name for a worker that tells where it runs."""
    machine = os.environ.get("CAPGRAPH_MACHINE") or platform.node()
    return f"{machine}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


class Worker:
    """Does what an engine orders.

    Attributes:
        id: Names it.
        ready: Set when orders are taken.

    Args:
        client: The graph, its run log and the engine.
        queues: Orders of these are taken; without ``turns`` only steps are run.
        concurrency: Most orders at a time.
    """

    def __init__(self, client: Client, queues: Collection[str], *, concurrency: int = 10) -> None:
        self.id: str = new_worker_id()
        self.ready: asyncio.Event = asyncio.Event()
        self._client, self._queues, self._concurrency = client, tuple(queues), concurrency
        self._executor = RunExecutor(client.graph, client.log)
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
        """Take no other order; what runs comes to a point from which another worker goes on."""
        self._draining.set()
        self._executor.drain(seconds)
        asyncio.get_running_loop().call_later(seconds, self._cancel_steps)

    def _cancel_steps(self) -> None:
        for task in self._running:
            if task is not None:
                task.cancel()

    async def run(self) -> None:
        """Work until it is drained."""
        await self._client.graph.warm_up()
        looking = asyncio.create_task(self._maintain())
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
            looking.cancel()
            await asyncio.wait([looking])
            await self._client.log.flush()
            await self._announce(0.0)

    # --- orders ---------------------------------------------------------------------------

    async def run_turn(self, job: TurnJob) -> None:
        """Run what a thread has to do.

        Raises:
            ThreadBusyError: Somebody else runs it.
            PersistenceError: The database is away, or this worker ends: another one has to go on.
        """
        with self._track_task():
            report = await self._executor.advance(job)
        if report.has_more:
            raise PersistenceError("The worker ends.", fix="Another one goes on with the thread.")

    async def run_step(self, job: StepJob) -> None:
        """Run a step, unless its result is there.

        Raises:
            ThreadBusyError: Another worker runs it.
            PersistenceError: What came of it cannot be kept.
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
        """Begin the turn of a schedule, unless it is gone; the same moment begins it once."""
        found = await Schedules(self._client.graph.checkpointer).get(schedule)
        if found is None:
            await self._client.engine.unschedule(schedule)
            return
        at = datetime.fromtimestamp(moment, UTC).strftime("%Y%m%dT%H%M%S")
        thread = found.thread or f"{schedule}-{at}"
        run_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{schedule}/{at}"))
        if found.unreadable:
            get_logger("scale", "worker").error("%s asks nothing: %s", found.id, found.unreadable)
        else:
            await self._client.submit(thread, found.message, run_id=run_id)
        await self._client.engine.schedule(found.id, found.cron, after=moment)

    # --- what nobody else looks after -----------------------------------------------------

    async def _maintain(self) -> None:
        pause = min(self._scale.heartbeat_interval, _POLL_SECONDS)
        while True:
            try:
                await self._executor.apply_stop_requests()
                await self._announce(2 * self._scale.lease_seconds)
                if TURN_QUEUE in self._queues and not self._draining.is_set():
                    await self._wake_due_threads()
            except CapgraphError as exc:
                get_logger("scale", "worker").warning("Nothing was looked after: %s", exc)
            except Exception:  # a worker that looks after nothing any more would be taken for dead
                get_logger("scale", "worker").exception("Nothing was looked after.")
            await asyncio.sleep(pause)

    async def _announce(self, seconds: float) -> None:
        """Say that this worker lives, and for how long it is to be believed."""
        assert self._tables is not None
        if seconds:
            running, now = len(self._running), time.monotonic()
            if running == self._announced[0] and now < self._announced[1]:
                return  # it was said not long ago
            await self._tables.run(
                _UPSERT_WORKER, (self.id, json.dumps(self._queues), running, seconds)
            )
            self._announced = running, now + seconds / 4
        else:
            await self._tables.run("DELETE FROM capgraph_workers WHERE id = ?", (self.id,))

    async def _wake_due_threads(self) -> None:
        """Wake threads whose moment has come, and hand over what its engine has lost."""
        client, now = self._client, time.monotonic()
        for one in await list_suspended_threads(client.graph.checkpointer, now=time.time()):
            await client.wake(one)
        if now >= self._next_recovery:
            self._next_recovery = now + self._scale.lease_seconds
            # An order that waits already is the same one.
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
