"""Steps on other workers: how the worker of a turn has them run, and how the worker of a queue does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from langgraph.func import entrypoint

from capgraph.base.budget import TurnBudget
from capgraph.base.errors import CapabilityError, PersistenceError, ThreadBusyError
from capgraph.base.ports import Caller
from capgraph.configs.logger import get_logger
from capgraph.configs.run_context import using
from capgraph.engine.run_scope import end_run, run_scope
from capgraph.langgraph_compat import called_back
from capgraph.pipeline.journal import Journal
from capgraph.pipeline.run_config import configurable_of, paid_by
from capgraph.pipeline.run_sent import refused, run_sent, view_of
from capgraph.scale.engine import Engine
from capgraph.scale.order import StepOrder
from capgraph.stores.leases import Lease, Leases
from capgraph.stores.persistence import Persistence
from capgraph.stores.step_results import Begun, Seen, StepResults, lease_of
from capgraph.telemetry.accounts import CASHIER, paying
from capgraph.telemetry.metered import METER, counting
from capgraph.telemetry.sinks import EventDispatcher, about

_FIRST_LOOK, _LATER, _LONGEST = 0.02, 1.2, 1.0
"""Seconds between two looks at a step: at first, how they grow (so that an end is seen late by a fifth
of what the step took), and at most, or where the database tells of it."""
_AGAIN = 1.0
"""Seconds until what the database or the engine refused is tried again."""
_MOST_RUNS = 10
_TELL_SECONDS, _CANCEL_EVERY = 0.2, 4


class Steps:
    """The steps that leave this process, and those that come to it.

    From the moment it is made, steps of the graph whose queue this process does not serve run on
    workers that do.

    Args:
        graph: A graph of ``build_graph`` on a saver whose database the workers share.
        engine: Hands orders to workers.
        queues: What this process serves.
        draining: Set when this process is to stop: no step begins here any more.
    """

    def __init__(
        self,
        graph: Any,
        engine: Engine,
        *,
        queues: Collection[str] = (),
        draining: asyncio.Event | None = None,
    ) -> None:
        self._graph, self._engine, self._queues = graph, engine, frozenset(queues)
        self._draining = draining or asyncio.Event()
        self._persistence: Persistence = graph.persistence
        self._results: StepResults = self._persistence.step_results
        self._leases: Leases = self._persistence.leases
        graph.services.equipment.sender = self

    def serves(self, queue: str) -> bool:
        """Tell whether this very process takes the orders of a queue."""
        return queue in self._queues

    # --- where the turn runs --------------------------------------------------------------

    async def is_sent(self, name: str) -> bool:
        """Tell whether a step was sent before, by whoever had its turn."""
        return await self._results.is_there(name)

    async def send(
        self,
        name: str,
        queue: str,
        request: Mapping[str, Any],
        *,
        tell: Callable[[Any], None],
        seconds: float | None,
        begins: Callable[[], None],
        leave: Callable[[], bool],
        should_cancel: Callable[[], bool],
    ) -> Mapping[str, Any] | None:
        """Have a step run, unless its result is there; see :class:`capgraph.base.ports.StepDispatcher`."""
        thread = request["thread"]
        lease = self._leases.held(thread)
        token = lease.holder.owner if lease is not None else ""
        await self._results.open(
            name,
            thread_id=thread,
            room=request["room"],
            turn=request["turn"],
            token=token,
            request=request,
            seconds=seconds,
        )
        waiting = _Waiting(StepOrder(name, queue, name, token), seconds)
        try:
            while not leave():
                ear = self._results.listener.event(name)
                try:
                    seen = await self._results.look(name)
                    await self._take_events(waiting, seen, tell)
                    if seen.begun:
                        begins()
                    if seen.result is not None:
                        if not _stays(seen.result):
                            await self._results.drop(name, token)
                        return seen.result
                    if await self._is_over(waiting, seen, should_cancel=should_cancel()):
                        return None
                    await self._hand_on(waiting, seen)
                except PersistenceError as exc:
                    if exc.ends_the_run:
                        raise
                    _log().warning("Nobody can say how the step %s is: %s", name, exc)
                    await asyncio.sleep(_AGAIN)
                await waiting.pause(ear, heard=self._results.listener.is_connected)
        except asyncio.CancelledError:
            with suppress(PersistenceError):
                await asyncio.shield(self._results.cancel(name, token))
            raise
        return None

    async def _is_over(self, waiting: _Waiting, seen: Seen, *, should_cancel: bool) -> bool:
        """Tell whether a step is not to begin any more.

        Raises:
            TimeoutError: Its time is over, and nobody is there who would say so.
        """
        late, order = waiting.is_late(), waiting.order
        if not (late or should_cancel):
            return False
        gone = not seen.begun and await self._results.withdraw(order.id, order.token)
        if late and seen.begun and not self._is_alive(seen):
            await self._results.drop(order.id, order.token)
            gone = True
        if gone and late:
            raise TimeoutError
        return gone

    def _is_alive(self, seen: Seen) -> bool:
        return seen.silent is not None and seen.silent < self._leases.ttl_seconds

    async def _take_events(
        self, waiting: _Waiting, seen: Seen, tell: Callable[[Any], None]
    ) -> None:
        if seen.told > waiting.told:
            for number, event in await self._results.events(waiting.order.id, waiting.told):
                tell(event)
                waiting.hear(number)

    async def _hand_on(self, waiting: _Waiting, seen: Seen) -> None:
        """Hand the step to the engine: at first, and again where it or its worker got lost."""
        if self._is_alive(seen):
            return
        lost = seen.begun > waiting.begun
        if not waiting.is_due(_AGAIN if lost else 2 * self._leases.ttl_seconds):
            return
        if seen.begun >= _MOST_RUNS:
            raise CapabilityError(
                f"{seen.begun} workers began the step {waiting.order.id} and none ended it.",
                fix="Look at the logs of the workers of its queue; it may be what ends them.",
            )
        waiting.handed = None
        await self._engine.run_step(waiting.order)
        waiting.hand(seen.begun)

    @asynccontextmanager
    async def slot(self, name: str, own: int) -> AsyncIterator[None]:
        """Hold one of the slots that a capability has in all processes together."""
        lease = await self._slot(name, own)
        try:
            yield
        finally:
            await self._leases.release(lease)

    async def _slot(self, name: str, own: int) -> Lease:
        delay = _FIRST_LOOK
        while True:
            for number in random.sample(range(own), own):
                with suppress(ThreadBusyError):
                    return await self._leases.take(f"capgraph-slot/{name}/{number}")
            await asyncio.sleep(delay * (0.5 + random.random()))  # noqa: S311 - no secret
            delay = min(delay * _LATER, _TELL_SECONDS)

    # --- where the step runs --------------------------------------------------------------

    async def run(self, order: StepOrder) -> None:
        """Run a step, unless its result is there, or nobody wants it any more.

        Raises:
            ThreadBusyError: Another worker runs it.
            PersistenceError: What came of it cannot be kept, or a worker that knows its capability
                has to run it.
        """
        lease = await self._leases.take(lease_of(order.id))
        try:
            begun = await self._results.begin(order.id)
            if begun is not None:
                name = begun.request["attempt"]["capability"]
                if name not in self._graph.services.registry.capabilities:
                    # One of another version may.
                    await self._results.leave(order.id)
                    raise PersistenceError(
                        f"This worker does not know the capability {name!r}.",
                        fix="Start the workers of its queue with the configuration of those that"
                        " run the turns.",
                    )
                await self._run(order.id, begun, lease)
        finally:
            await self._leases.release(lease)

    async def _run(self, name: str, begun: Begun, lease: Lease) -> None:
        told: list[Mapping[str, Any]] = []
        work = asyncio.create_task(self._work(name, begun, lease, told.append))
        tend = asyncio.create_task(self._tend(name, begun.told + 1, told, work))
        try:
            result = await work
        except asyncio.CancelledError:
            running = asyncio.current_task()
            if running is not None and running.cancelling():
                work.cancel()
                raise
            return  # whoever waited for it cancelled it
        except PersistenceError as exc:
            _log().warning("The step %s is left to others: %s", name, exc)
            return
        except Exception as exc:
            _log().exception("The step %s cannot be run here.", name)
            result = refused(exc)
        finally:
            tend.cancel()
            await asyncio.wait({work, tend})
        if result is None:
            return
        while not lease.lost:
            try:
                await self._results.end(name, lease.holder.owner, result)
            except PersistenceError as exc:
                _log().warning("The result of the step %s waits to be kept: %s", name, exc)
                await asyncio.sleep(_AGAIN)
            else:
                return

    async def _tend(
        self,
        name: str,
        number: int,
        told: list[Mapping[str, Any]],
        work: asyncio.Task[Any],
    ) -> None:
        """Write down what a step tells, and stop it when that is asked for."""

        async def write() -> None:
            nonlocal number
            batch = told[:]
            if batch:
                await self._results.tell(name, number, batch)
                del told[: len(batch)]
                number += len(batch)

        looks, cancelled = 0, False
        try:
            while True:
                await asyncio.sleep(_TELL_SECONDS)
                looks += 1
                with suppress(PersistenceError):
                    await write()
                    if cancelled or looks % _CANCEL_EVERY:
                        continue  # once: what cleans up is not to be cut short
                    if cancelled := await self._results.is_cancelled(name):
                        work.cancel()
        finally:
            with suppress(PersistenceError):
                await write()

    async def _work(
        self, name: str, begun: Begun, lease: Lease, tell: Callable[[Any], None]
    ) -> dict[str, Any] | None:
        request, found = begun.request, dict[str, Any]()
        clock = asyncio.get_running_loop().time
        until = None if begun.seconds is None else clock() + begun.seconds

        async def fence(ask: bool) -> None:
            await self._leases.confirm(lease.thread_id, ask=ask)
            if not await self._results.is_wanted(name):
                raise PersistenceError(
                    f"Nobody waits any more for the step {name}: another process has its thread.",
                    fix="Nothing more is run here; look at the thread to see how it goes on.",
                )

        # Whatever takes up events takes them up where the turn runs.
        services = replace(self._graph.services, events=EventDispatcher())
        places = [(str(space), str(place)) for space, place in request["checkpoints"]]
        journal = Journal(self._persistence, begun.thread_id, checkpoints=places, fence=fence)
        caller = configurable_of(Caller(**request["caller"]))
        config: Any = {"configurable": {**caller, "thread_id": begun.thread_id}}
        view, limits = view_of(request), services.limits

        @entrypoint(store=self._graph.store)
        async def step(_: dict[str, Any]) -> None:
            budget = TurnBudget(model_calls=request["model_calls"])
            with (
                paid_by(view.begun_by or view.caller),
                counting(budget, limits.max_model_calls),
                paying(services.spending(view, planned=bool(view.plan.get("budget")))),
                called_back(METER, CASHIER),
            ):
                found["result"] = await run_sent(
                    services.runner,
                    request,
                    journal,
                    seconds_left=lambda: None if until is None else until - clock(),
                    draining=self._draining.is_set,
                )

        scope = run_scope(services, config, listened=request["heard"])
        try:
            with scope, using(journal=journal), about(**request["ids"]):
                async for event in step.astream({}, config, stream_mode="custom"):
                    tell(event)
        finally:
            await end_run(scope)
        result: dict[str, Any] | None = found["result"]
        return result


class _Waiting:
    """A step that is waited for.

    Attributes:
        order: What is handed to the engine.
        told: The number of the last event that was taken up.
        begun: How often it had begun when it was handed on.
        handed: When that was.
    """

    def __init__(self, order: StepOrder, seconds: float | None) -> None:
        self.order = order
        self.told = self.begun = 0
        self.handed: float | None = None
        self._now = asyncio.get_running_loop().time
        self._until = None if seconds is None else self._now() + seconds
        self._delay = _FIRST_LOOK

    def is_late(self) -> bool:
        return self._until is not None and self._now() > self._until

    def is_due(self, patience: float) -> bool:
        return self.handed is None or self._now() - self.handed > patience

    def hand(self, begun: int) -> None:
        self.begun, self.handed = begun, self._now()

    def hear(self, number: int) -> None:
        self.told, self._delay = number, min(self._delay, _TELL_SECONDS)

    async def pause(self, ear: asyncio.Event, *, heard: bool) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST if heard else self._delay):
                await ear.wait()
        self._delay = min(self._delay * _LATER, _LONGEST)


def _stays(result: Mapping[str, Any]) -> bool:
    """Tell whether a step is not to run again whatever happens to the turn's worker now."""
    return bool("record" in result and result["record"]["success"])


def _log() -> Any:
    return get_logger("scale", "steps")
