"""Steps on other workers: how the worker of a turn has them run, and how the worker of a queue does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from langgraph.func import entrypoint

from capgraph.base.errors import CapabilityError, PersistenceError, ThreadBusyError
from capgraph.base.ports import Caller
from capgraph.base.turn_budget import TurnBudget
from capgraph.configs.logger import get_logger
from capgraph.configs.run_context import override_run_context
from capgraph.engine.run_scope import end_run, run_scope
from capgraph.langgraph_compat import add_callbacks
from capgraph.pipeline.journal import Journal
from capgraph.pipeline.remote_worker import refusal_reply, remote_turn_view, run_remote_step
from capgraph.pipeline.run_config import billed_to, configurable_for
from capgraph.scale.engine import Engine
from capgraph.scale.jobs import StepJob
from capgraph.stores.leases import Lease, Leases
from capgraph.stores.persistence import Persistence
from capgraph.stores.step_results import ClaimedStep, StepResults, StepStatus, step_lease_name
from capgraph.telemetry.budget_callback import BUDGET_CALLBACK, charge_to
from capgraph.telemetry.event_dispatcher import EventDispatcher, event_context
from capgraph.telemetry.usage_callback import USAGE_CALLBACK, count_model_calls

_FIRST_LOOK, _LATER, _LONGEST = 0.02, 1.2, 1.0
"""Seconds between two looks at a step: at first, how they grow (so that an end is seen late by a fifth
of what the step took), and at most, or where the database tells of it."""
_RETRY_SECONDS = 1.0
"""Seconds until what the database or the engine refused is tried again."""
_MAX_ATTEMPTS = 10
_TELL_SECONDS, _CANCEL_EVERY = 0.2, 4


class RemoteSteps:
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
        graph.services.runner_config.dispatcher = self

    def serves(self, queue: str) -> bool:
        """Tell whether this very process takes the orders of a queue."""
        return queue in self._queues

    # --- where the turn runs --------------------------------------------------------------

    async def is_dispatched(self, name: str) -> bool:
        """Tell whether a step was sent before, by whoever had its turn."""
        return await self._results.exists(name)

    async def dispatch(
        self,
        name: str,
        queue: str,
        request: Mapping[str, Any],
        *,
        on_event: Callable[[Any], None],
        timeout_seconds: float | None,
        on_start: Callable[[], None],
        should_detach: Callable[[], bool],
        should_cancel: Callable[[], bool],
    ) -> Mapping[str, Any] | None:
        """Have a step run, unless its result is there; see :class:`capgraph.base.ports.StepDispatcher`."""
        thread = request["thread"]
        lease = self._leases.find_held(thread)
        token = lease.owner.owner_id if lease is not None else ""
        await self._results.create(
            name,
            thread_id=thread,
            namespace=request["room"],
            turn_id=request["turn"],
            lease_owner=token,
            request=request,
            timeout_seconds=timeout_seconds,
        )
        waiting = _PendingStep(StepJob(name, queue, name, token), timeout_seconds)
        try:
            while not should_detach():
                ear = self._results.listener.event(name)
                try:
                    seen = await self._results.get_status(name)
                    await self._forward_events(waiting, seen, on_event)
                    if seen.attempts:
                        on_start()
                    if seen.result is not None:
                        if not _is_final(seen.result):
                            await self._results.drop(name, token)
                        return seen.result
                    if await self._has_ended(waiting, seen, should_cancel=should_cancel()):
                        return None
                    await self._enqueue_if_needed(waiting, seen)
                except PersistenceError as exc:
                    if exc.stops_run:
                        raise
                    _log().warning("Nobody can say how the step %s is: %s", name, exc)
                    await asyncio.sleep(_RETRY_SECONDS)
                await waiting.pause(ear, has_listener=self._results.listener.is_connected)
        except asyncio.CancelledError:
            with suppress(PersistenceError):
                await asyncio.shield(self._results.cancel(name, token))
            raise
        return None

    async def _has_ended(
        self, pending: _PendingStep, status: StepStatus, *, should_cancel: bool
    ) -> bool:
        """Tell whether a step is not to begin any more.

        Raises:
            TimeoutError: Its time is over, and nobody is there who would say so.
        """
        late, order = pending.is_late(), pending.order
        if not (late or should_cancel):
            return False
        gone = not status.attempts and await self._results.withdraw(order.id, order.token)
        if late and status.attempts and not self._has_live_worker(status):
            await self._results.drop(order.id, order.token)
            gone = True
        if gone and late:
            raise TimeoutError
        return gone

    def _has_live_worker(self, status: StepStatus) -> bool:
        return (
            status.silent_seconds is not None and status.silent_seconds < self._leases.ttl_seconds
        )

    async def _forward_events(
        self, pending: _PendingStep, status: StepStatus, tell: Callable[[Any], None]
    ) -> None:
        if status.event_count > pending.last_event:
            for number, event in await self._results.events(pending.order.id, pending.last_event):
                tell(event)
                pending.mark_event(number)

    async def _enqueue_if_needed(self, pending: _PendingStep, status: StepStatus) -> None:
        """Hand the step to the engine: at first, and again where it or its worker got lost."""
        if self._has_live_worker(status):
            return
        lost = status.attempts > pending.attempts
        if not pending.is_due(_RETRY_SECONDS if lost else 2 * self._leases.ttl_seconds):
            return
        if status.attempts >= _MAX_ATTEMPTS:
            raise CapabilityError(
                f"{status.attempts} workers began the step {pending.order.id} and none ended it.",
                fix="Look at the logs of the workers of its queue; it may be what ends them.",
            )
        pending.enqueued_at = None
        await self._engine.enqueue_step(pending.order)
        pending.mark_enqueued(status.attempts)

    @asynccontextmanager
    async def slot(self, name: str, limit: int) -> AsyncIterator[None]:
        """Hold one of the slots that a capability has in all processes together."""
        lease = await self._acquire_slot(name, limit)
        try:
            yield
        finally:
            await self._leases.release(lease)

    async def _acquire_slot(self, name: str, own: int) -> Lease:
        delay = _FIRST_LOOK
        while True:
            for number in random.sample(range(own), own):
                with suppress(ThreadBusyError):
                    return await self._leases.acquire(f"capgraph-slot/{name}/{number}")
            await asyncio.sleep(delay * (0.5 + random.random()))  # noqa: S311 - no secret
            delay = min(delay * _LATER, _TELL_SECONDS)

    # --- where the step runs --------------------------------------------------------------

    async def run(self, order: StepJob) -> None:
        """Run a step, unless its result is there, or nobody wants it any more.

        Raises:
            ThreadBusyError: Another worker runs it.
            PersistenceError: What came of it cannot be kept, or a worker that knows its capability
                has to run it.
        """
        lease = await self._leases.acquire(step_lease_name(order.id))
        try:
            begun = await self._results.claim(order.id)
            if begun is not None:
                name = begun.request["attempt"]["capability"]
                if name not in self._graph.services.registry.capabilities:
                    # One of another version may.
                    await self._results.unclaim(order.id)
                    raise PersistenceError(
                        f"This worker does not know the capability {name!r}.",
                        fix="Start the workers of its queue with the configuration of those that"
                        " run the turns.",
                    )
                await self._run_with_lease(order.id, begun, lease)
        finally:
            await self._leases.release(lease)

    async def _run_with_lease(self, name: str, begun: ClaimedStep, lease: Lease) -> None:
        told: list[Mapping[str, Any]] = []
        work = asyncio.create_task(self._execute(name, begun, lease, told.append))
        tend = asyncio.create_task(self._report_progress(name, begun.event_count + 1, told, work))
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
            result = refusal_reply(exc)
        finally:
            tend.cancel()
            await asyncio.wait({work, tend})
        if result is None:
            return
        while not lease.is_lost:
            try:
                await self._results.finish(name, lease.owner.owner_id, result)
            except PersistenceError as exc:
                _log().warning("The result of the step %s waits to be kept: %s", name, exc)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _report_progress(
        self,
        name: str,
        number: int,
        events: list[Mapping[str, Any]],
        work: asyncio.Task[Any],
    ) -> None:
        """Write down what a step tells, and stop it when that is asked for."""

        async def write() -> None:
            nonlocal number
            batch = events[:]
            if batch:
                await self._results.append_events(name, number, batch)
                del events[: len(batch)]
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

    async def _execute(
        self, name: str, begun: ClaimedStep, lease: Lease, tell: Callable[[Any], None]
    ) -> dict[str, Any] | None:
        request, found = begun.request, dict[str, Any]()
        clock = asyncio.get_running_loop().time
        until = None if begun.timeout_seconds is None else clock() + begun.timeout_seconds

        async def fence(ask: bool) -> None:
            await self._leases.confirm(lease.thread_id, force_query=ask)
            if not await self._results.has_waiting_turn(name):
                raise PersistenceError(
                    f"Nobody waits any more for the step {name}: another process has its thread.",
                    fix="Nothing more is run here; look at the thread to see how it goes on.",
                )

        # Whatever takes up events takes them up where the turn runs.
        services = replace(self._graph.services, events=EventDispatcher())
        places = [(str(space), str(place)) for space, place in request["checkpoints"]]
        journal = Journal(self._persistence, begun.thread_id, checkpoints=places, fence=fence)
        caller = configurable_for(Caller(**request["caller"]))
        config: Any = {"configurable": {**caller, "thread_id": begun.thread_id}}
        view, limits = remote_turn_view(request), services.limits

        @entrypoint(store=self._graph.store)
        async def step(_: dict[str, Any]) -> None:
            budget = TurnBudget(model_calls=request["model_calls"])
            with (
                billed_to(view.owner or view.caller),
                count_model_calls(budget, limits.max_model_calls),
                charge_to(services.spending(view, planned=bool(view.plan.get("budget")))),
                add_callbacks(USAGE_CALLBACK, BUDGET_CALLBACK),
            ):
                found["result"] = await run_remote_step(
                    services.runner,
                    request,
                    journal,
                    seconds_left=lambda: None if until is None else until - clock(),
                    is_draining=self._draining.is_set,
                )

        scope = run_scope(services, config, has_subscriber=request["heard"])
        try:
            with scope, override_run_context(journal=journal), event_context(**request["ids"]):
                async for event in step.astream({}, config, stream_mode="custom"):
                    tell(event)
        finally:
            await end_run(scope)
        result: dict[str, Any] | None = found["result"]
        return result


class _PendingStep:
    """A step that is waited for.

    Attributes:
        order: What is handed to the engine.
        last_event: The number of the last event that was taken up.
        attempts: How often it had begun when it was handed on.
        enqueued_at: When that was.
    """

    def __init__(self, order: StepJob, seconds: float | None) -> None:
        self.order = order
        self.last_event = self.attempts = 0
        self.enqueued_at: float | None = None
        self._now = asyncio.get_running_loop().time
        self._until = None if seconds is None else self._now() + seconds
        self._delay = _FIRST_LOOK

    def is_late(self) -> bool:
        return self._until is not None and self._now() > self._until

    def is_due(self, seconds: float) -> bool:
        return self.enqueued_at is None or self._now() - self.enqueued_at > seconds

    def mark_enqueued(self, attempts: int) -> None:
        self.attempts, self.enqueued_at = attempts, self._now()

    def mark_event(self, number: int) -> None:
        self.last_event, self._delay = number, min(self._delay, _TELL_SECONDS)

    async def pause(self, changed: asyncio.Event, *, has_listener: bool) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST if has_listener else self._delay):
                await changed.wait()
        self._delay = min(self._delay * _LATER, _LONGEST)


def _is_final(result: Mapping[str, Any]) -> bool:
    """Tell whether a step is not to run again whatever happens to the turn's worker now."""
    return bool("record" in result and result["record"]["success"])


def _log() -> Any:
    return get_logger("scale", "steps")
