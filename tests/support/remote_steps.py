"""Two workers of one test process over one database: one runs turns, the other steps of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from capgraph import build_graph
from capgraph.base.errors import PersistenceError
from capgraph.scale.jobs import StepJob, TurnJob
from capgraph.scale.remote import RemoteSteps
from capgraph.stores import open_saver
from capgraph.stores.persistence import Persistence


@dataclass
class OneQueue:
    """Hands orders to whoever takes them; nothing is lost, and nobody is asked what came of it."""

    waiting: asyncio.Queue[StepJob] = field(default_factory=asyncio.Queue)
    seen: list[StepJob] = field(default_factory=list)

    async def submit(self, job: TurnJob) -> None:
        raise NotImplementedError

    async def enqueue_step(self, job: StepJob) -> None:
        self.seen.append(job)
        self.waiting.put_nowait(job)


@dataclass
class Worker:
    """A process, as far as one test process can have two: its own graph on a saver of its own."""

    graph: Any
    steps: RemoteSteps
    engine: OneQueue
    draining: asyncio.Event
    running: set[asyncio.Task[None]] = field(default_factory=set)
    _serving: asyncio.Task[None] | None = None

    @property
    def saver(self) -> Any:
        return self.graph.checkpointer

    def serve(self) -> None:
        self._serving = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        while True:
            order = await self.engine.waiting.get()
            task = asyncio.create_task(self._run(order))
            self.running.add(task)
            task.add_done_callback(self.running.discard)

    async def _run(self, order: StepJob) -> None:
        with suppress(PersistenceError):  # it is busy, or for others
            await self.steps.run(order)

    async def stop(self) -> None:
        """End as a process does that is told to: what it runs is cancelled."""
        tasks = [*self.running, *([self._serving] if self._serving else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._serving = None


@dataclass
class Place:
    """A database with the workers that share it."""

    url: str
    stack: AsyncExitStack
    engine: OneQueue = field(default_factory=OneQueue)

    async def worker(
        self,
        capabilities: Sequence[Any],
        *queues: str,
        ttl: float = 0.6,
        encryption_key: str | None = None,
        **options: Any,
    ) -> Worker:
        saver = await self.stack.enter_async_context(
            open_saver(self.url, encryption_key=encryption_key)
        )
        graph = build_graph(capabilities, checkpointer=saver, **options)
        leases = Persistence.of(saver).leases
        leases.ttl_seconds, leases.heartbeat_seconds = ttl, ttl / 3
        draining = asyncio.Event()
        steps = RemoteSteps(graph, self.engine, queues=queues, draining=draining)  # type: ignore[arg-type]
        made = Worker(graph, steps, self.engine, draining)
        self.stack.push_async_callback(made.stop)
        return made


@asynccontextmanager
async def place(url: str) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        yield Place(url, stack)


def plan(*steps: Any) -> dict[str, Any]:
    """Return the input of a turn that brings its plan: ``(key, capability, {more})``."""
    listed = [
        {"context_key": key, "capability": name, **(more[0] if more else {})}
        for key, name, *more in steps
    ]
    return {"messages": [("user", "Go")], "planning_execution_plan": {"steps": listed}}


def thread(name: str = "t", **more: Any) -> Any:
    return {"configurable": {"thread_id": name, **more}}


async def until(true: Callable[[], Any], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.01)
