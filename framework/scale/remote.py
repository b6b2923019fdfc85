"""Remote steps: dispatch to workers of other queues, and execution on this worker."""

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
from capgraph.engine.services import Services
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
"""First and maximum polling delay in seconds, and the growth factor between them. With this factor,
the
end of a step is noticed late by at most a fifth of its duration. The maximum also applies where the
database sends notifications.
"""
_RETRY_SECONDS = 1.0
"""Delay in seconds after an error of the database or the engine."""
_TELL_SECONDS, _CANCEL_EVERY = 0.2, 4


class RemoteSteps:
    """Dispatcher and executor of steps that run on remote workers.

    Creating an instance makes the graph dispatch all steps whose queue this process does not
    serve.

    Args:
        graph: Graph created by ``build_graph``, with a saver on a database that the workers
            share.
        engine: Engine that delivers jobs to workers.
        queues: Queues that this process serves.
        draining: Event after which no further steps start in this process.
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
        """Return True if this process runs steps from a queue."""
        return queue in self._queues

    # --- in the process of the turn -------------------------------------------------------

    async def is_dispatched(self, name: str) -> bool:
        """Return True if a step was already dispatched, possibly by a different process."""
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
        """Run a step on a remote worker and return its result.

        See :class:`capgraph.base.ports.StepDispatcher`.
        """
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
        pending = _PendingStep(StepJob(name, queue, name, token), timeout_seconds)
        try:
            while not should_detach():
                changed = self._results.listener.event(name)
                try:
                    status = await self._results.get_status(name)
                    await self._forward_events(pending, status, on_event)
                    if status.attempts:
                        on_start()
                    if status.result is not None:
                        if not _is_final(status.result):
                            await self._results.drop(name, token)
                        return status.result
                    if await self._has_ended(pending, status, should_cancel=should_cancel()):
                        return None
                    await self._enqueue_if_needed(pending, status)
                except PersistenceError as exc:
                    if exc.stops_run:
                        raise
                    _log().warning("The status of step %s is unknown: %s", name, exc)
                    await asyncio.sleep(_RETRY_SECONDS)
                await pending.pause(changed, has_listener=self._results.listener.is_connected)
        except asyncio.CancelledError:
            with suppress(PersistenceError):
                await asyncio.shield(self._results.cancel(name, token))
            raise
        return None

    async def _has_ended(
        self, pending: _PendingStep, status: StepStatus, *, should_cancel: bool
    ) -> bool:
        """Return True if a timed-out or canceled step was withdrawn and can no longer start.

        Raises:
            TimeoutError: The step timed out and no live worker can report the timeout.
        """
        is_late, order = pending.is_late(), pending.order
        if not (is_late or should_cancel):
            return False
        has_ended = not status.attempts and await self._results.withdraw(order.id, order.token)
        if is_late and status.attempts and not self._has_live_worker(status):
            await self._results.drop(order.id, order.token)
            has_ended = True
        if has_ended and is_late:
            raise TimeoutError
        return has_ended

    def _has_live_worker(self, status: StepStatus) -> bool:
        return (
            status.silent_seconds is not None and status.silent_seconds < self._leases.ttl_seconds
        )

    async def _forward_events(
        self, pending: _PendingStep, status: StepStatus, on_event: Callable[[Any], None]
    ) -> None:
        if status.event_count > pending.last_event:
            for number, event in await self._results.events(pending.order.id, pending.last_event):
                on_event(event)
                pending.mark_event(number)

    async def _enqueue_if_needed(self, pending: _PendingStep, status: StepStatus) -> None:
        """Enqueue a remote step, or enqueue it again if its job or its worker is lost."""
        if self._has_live_worker(status):
            return
        is_lost = status.attempts > pending.attempts
        if not pending.is_due(_RETRY_SECONDS if is_lost else 2 * self._leases.ttl_seconds):
            return
        if status.attempts >= self._graph.services.settings.scale.max_losses:
            raise CapabilityError(
                f"The step {pending.order.id} was started {status.attempts} times and never finished.",
                fix="Check the workers' logs; the step may crash its worker.",
            )
        pending.enqueued_at = None
        await self._engine.enqueue_step(pending.order)
        pending.mark_enqueued(status.attempts)

    @asynccontextmanager
    async def slot(self, name: str, limit: int) -> AsyncIterator[None]:
        """Hold one of a capability's execution slots inside an ``async with`` block.

        All processes share these slots, which limit concurrency.
        """
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
            await asyncio.sleep(delay * (0.5 + random.random()))  # noqa: S311 - jitter
            delay = min(delay * _LATER, _TELL_SECONDS)

    # --- in the process of the step -------------------------------------------------------

    async def run(self, order: StepJob) -> None:
        """Run a step on this worker unless its result already exists or it was canceled.

        Raises:
            ThreadBusyError: A different worker is running the step.
            PersistenceError: The result cannot be stored, or this worker does not have the
                capability.
        """
        lease = await self._leases.acquire(step_lease_name(order.id))
        try:
            claimed = await self._results.claim(order.id)
            if claimed is not None:
                name = claimed.request["attempt"]["capability"]
                if name not in self._graph.services.registry.capabilities:
                    # A worker of another version may have the capability.
                    await self._results.unclaim(order.id)
                    raise PersistenceError(
                        f"This worker does not have the capability {name!r}.",
                        fix="Start all workers with the same configuration.",
                    )
                await self._run_with_lease(order.id, claimed, lease)
        finally:
            await self._leases.release(lease)

    async def _run_with_lease(self, name: str, claimed: ClaimedStep, lease: Lease) -> None:
        events: list[Mapping[str, Any]] = []
        work = asyncio.create_task(self._execute(name, claimed, lease, events.append))
        reporter = asyncio.create_task(
            self._report_progress(name, claimed.event_count + 1, events, work)
        )
        try:
            result = await work
        except asyncio.CancelledError:
            running = asyncio.current_task()
            if running is not None and running.cancelling():
                work.cancel()
                raise
            return  # canceled on request of the turn
        except PersistenceError as exc:
            _log().warning("The step %s is left to other workers: %s", name, exc)
            return
        except Exception as exc:
            _log().exception("The step %s cannot be run here.", name)
            result = refusal_reply(exc)
        finally:
            reporter.cancel()
            await asyncio.wait({work, reporter})
        if result is None:
            return
        while not lease.is_lost:
            try:
                await self._results.finish(name, lease.owner.owner_id, result)
            except PersistenceError as exc:
                _log().warning("The result of step %s cannot be stored yet: %s", name, exc)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _report_progress(
        self,
        name: str,
        event_number: int,
        events: list[Mapping[str, Any]],
        work: asyncio.Task[Any],
    ) -> None:
        """Store the progress events of a running step, and cancel the step on request."""

        async def store_events() -> None:
            nonlocal event_number
            batch = events[:]
            if batch:
                await self._results.append_events(name, event_number, batch)
                del events[: len(batch)]
                event_number += len(batch)

        checks, is_cancelled = 0, False
        try:
            while True:
                await asyncio.sleep(_TELL_SECONDS)
                checks += 1
                with suppress(PersistenceError):
                    await store_events()
                    if is_cancelled or checks % _CANCEL_EVERY:
                        continue  # cancel once, so that cleanup is not interrupted
                    if is_cancelled := await self._results.is_cancelled(name):
                        work.cancel()
        finally:
            with suppress(PersistenceError):
                await store_events()

    async def _execute(
        self, name: str, claimed: ClaimedStep, lease: Lease, on_event: Callable[[Any], None]
    ) -> dict[str, Any] | None:
        request, results = claimed.request, dict[str, Any]()
        clock = asyncio.get_running_loop().time
        deadline = None if claimed.timeout_seconds is None else clock() + claimed.timeout_seconds

        async def fence(ask: bool) -> None:
            await self._leases.confirm(lease.thread_id, force_query=ask)
            if not await self._results.has_waiting_turn(name):
                raise PersistenceError(
                    f"The step {name} is abandoned: another process has taken over its thread.",
                    fix="Check the status of the thread.",
                )

        # Event sinks receive the events in the process of the turn.
        services: Services = replace(self._graph.services, events=EventDispatcher())
        checkpoints = [
            (str(space), str(checkpoint)) for space, checkpoint in request["checkpoints"]
        ]
        journal = Journal(
            self._persistence, claimed.thread_id, checkpoints=checkpoints, fence=fence
        )
        caller = configurable_for(Caller(**request["caller"]))
        config: Any = {"configurable": {**caller, "thread_id": claimed.thread_id}}
        view, limits = remote_turn_view(request), services.limits

        @entrypoint(store=self._graph.store)
        async def step(_: dict[str, Any]) -> None:
            budget = TurnBudget(model_calls=request["model_calls"])
            with (
                billed_to(view.owner or view.caller),
                count_model_calls(budget, limits.max_model_calls),
                charge_to(
                    services.spending(view, includes_plan_budget=bool(view.plan.get("budget")))
                ),
                add_callbacks(USAGE_CALLBACK, BUDGET_CALLBACK),
            ):
                results["result"] = await run_remote_step(
                    services.runner,
                    request,
                    journal,
                    seconds_left=lambda: None if deadline is None else deadline - clock(),
                    is_draining=self._draining.is_set,
                )

        scope = run_scope(services, config, has_subscriber=request["heard"])
        try:
            with scope, override_run_context(journal=journal), event_context(**request["ids"]):
                async for event in step.astream({}, config, stream_mode="custom"):
                    on_event(event)
        finally:
            await end_run(scope)
        result: dict[str, Any] | None = results["result"]
        return result


class _PendingStep:
    """Remote step whose result a turn is waiting for.

    Attributes:
        order: Job that runs the step.
        last_event: Sequence number of the last event received.
        attempts: Number of times the step had started when its job was last enqueued.
        enqueued_at: Time at which the job was last enqueued.
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
    """Return True if a remote step succeeded, so that it must never run again."""
    return bool("record" in result and result["record"]["success"])


def _log() -> Any:
    return get_logger("scale", "steps")
