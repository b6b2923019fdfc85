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
from capgraph.graph.turns import DRAIN_SECONDS
from capgraph.scale.advance import Runner
from capgraph.scale.client import Client
from capgraph.scale.engine import TURNS
from capgraph.scale.order import StepOrder, TurnOrder
from capgraph.scale.remote import Steps
from capgraph.scale.schedules import Schedules
from capgraph.stores.database import SqlTables
from capgraph.stores.threads import due

_PUT = (
    "INSERT INTO capgraph_workers (id, queues, running, gone) VALUES (?, ?, ?, {now} + ?)"
    " ON CONFLICT (id) DO UPDATE SET running = excluded.running, gone = excluded.gone"
)
_LOOK_SECONDS = 1.0
_HOUR = 3600.0


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


async def list_workers(rows: SqlTables) -> list[WorkerInfo]:
    """Return the workers that live, by id; a dead one is left out after twice its lease.

    Args:
        rows: Rows beside the threads.
    """
    _, found = await rows.run(
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
        self._runner = Runner(client.graph, client.log)
        self._scale = client.graph.services.settings.scale
        self._rows = client.graph.persistence.tables
        self._draining = asyncio.Event()
        self._steps = Steps(
            client.graph, client.engine, queues=self._queues, draining=self._draining
        )
        self._running: set[asyncio.Task[None] | None] = set()
        self._next_recovery = self._next_pruning = 0.0
        self._told = (-1, 0.0)

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Take no other order; what runs comes to a point from which another worker goes on."""
        self._draining.set()
        self._runner.drain(seconds)
        asyncio.get_running_loop().call_later(seconds, self._end_steps)

    def _end_steps(self) -> None:
        for task in self._running:
            if task is not None:
                task.cancel()

    async def run(self) -> None:
        """Work until it is drained."""
        await self._client.graph.warm_up()
        looking = asyncio.create_task(self._look())
        try:
            await self._client.engine.serve(
                self,
                self._queues,
                worker=self.id,
                concurrency=self._concurrency,
                draining=self._draining,
                ready=self.ready,
            )
        finally:
            looking.cancel()
            await asyncio.wait([looking])
            await self._client.log.flush()
            await self._tell(0.0)

    # --- orders ---------------------------------------------------------------------------

    async def turn(self, order: TurnOrder) -> None:
        """Run what a thread has to do.

        Raises:
            ThreadBusyError: Somebody else runs it.
            PersistenceError: The database is away, or this worker ends: another one has to go on.
        """
        with self._working():
            report = await self._runner.advance(order)
        if report.left:
            raise PersistenceError("The worker ends.", fix="Another one goes on with the thread.")

    async def step(self, order: StepOrder) -> None:
        """Run a step, unless its result is there.

        Raises:
            ThreadBusyError: Another worker runs it.
            PersistenceError: What came of it cannot be kept.
        """
        with self._working():
            await self._steps.run(order)

    @contextmanager
    def _working(self) -> Iterator[None]:
        task: asyncio.Task[None] | None = asyncio.current_task()
        self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)

    async def scheduled(self, schedule: str, moment: float) -> None:
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

    async def _look(self) -> None:
        pause = min(self._scale.beat, _LOOK_SECONDS)
        while True:
            try:
                await self._runner.look()
                await self._tell(2 * self._scale.lease_seconds)
                if TURNS in self._queues and not self._draining.is_set():
                    await self._wake()
            except CapgraphError as exc:
                get_logger("scale", "worker").warning("Nothing was looked after: %s", exc)
            except Exception:  # a worker that looks after nothing any more would be taken for dead
                get_logger("scale", "worker").exception("Nothing was looked after.")
            await asyncio.sleep(pause)

    async def _tell(self, seconds: float) -> None:
        """Say that this worker lives, and for how long it is to be believed."""
        assert self._rows is not None
        if seconds:
            running, now = len(self._running), time.monotonic()
            if running == self._told[0] and now < self._told[1]:
                return  # it was said not long ago
            await self._rows.run(_PUT, (self.id, json.dumps(self._queues), running, seconds))
            self._told = running, now + seconds / 4
        else:
            await self._rows.run("DELETE FROM capgraph_workers WHERE id = ?", (self.id,))

    async def _wake(self) -> None:
        """Wake threads whose moment has come, and hand over what its engine has lost."""
        client, now = self._client, time.monotonic()
        for one in await due(client.graph.checkpointer, now=time.time()):
            await client.wake(one)
        if now >= self._next_recovery:
            self._next_recovery = now + self._scale.lease_seconds
            # An order that waits already is the same one.
            before = time.time() - self._scale.lease_seconds
            lost = [run for run in await client.log.unfinished() if run.opened < before]
            for run in reversed(lost):
                await client.engine.submit(TurnOrder(run.thread_id, run.run_id), again=True)
            for schedule in await Schedules(client.graph.checkpointer).all():
                await client.engine.schedule(schedule.id, schedule.cron)
        if now >= self._next_pruning:
            self._next_pruning = now + _HOUR
            assert self._rows is not None
            await self._rows.run("DELETE FROM capgraph_workers WHERE gone < {now}")
            keep = client.graph.services.settings.serve.keep_runs_days
            await client.log.prune(keep * 86_400)
