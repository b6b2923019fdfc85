"""Exclusive runs: a run holds the lease of its thread from start to end.

A graph acquires the lease before it reads or writes the thread, and always releases it at the end.
A second run is refused before it can do harm, and a run that waits for a person holds no lease. A
nested graph on the same thread shares the outer lease.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import GraphDrained
from langgraph.types import Command

from capgraph.base.errors import CapgraphError, ValidationError
from capgraph.configs.run_context import override_run_context, run_context
from capgraph.langgraph_compat import is_task, open_interrupts, outer_checkpoint, plain_values
from capgraph.pipeline.run_config import caller_from_configurable
from capgraph.planning.waits import is_wait_interrupt
from capgraph.stores.history import assigned_turn
from capgraph.stores.leases import Lease
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import RUN_END, thread_config, write_record

if TYPE_CHECKING:
    from capgraph.stores.retention import Retention


def share_lease(lease: Lease) -> AbstractContextManager[None]:
    """Context manager in which nested runs share the thread lease of the caller."""
    return override_run_context(shared_leases=(lease,))


async def run_with_lease(
    persistence: Persistence,
    config: Mapping[str, Any],
    inputs: Any,
    run: Callable[[Any], AsyncIterator[Any]],
    retention: Retention | None = None,
) -> AsyncIterator[Any]:
    """Run a graph while holding the lease (exclusive right to run) of its thread.

    Args:
        persistence: Storage of the thread.
        config: Configuration of the run, merged with that of the graph and of any outer graph.
        inputs: Input of the graph.
        run: Function that starts the graph with an input and yields its stream.
        retention: Retention rules, which are notified when a turn has ended.

    Raises:
        ThreadBusyError: Another run holds the lease.
        ValidationError: The input answers a question, but no question is open.
    """
    saver = persistence.saver
    async with hold_lease(persistence, config) as lease:
        is_outermost = not is_task(config)
        if is_outermost and isinstance(inputs, Command) and inputs.resume is not None:
            await _check_open_question(saver, config["configurable"])
        if is_outermost:
            inputs = await _assign_replay_to_caller(saver, config["configurable"], inputs)
        # The caller's context must not contain the lease.
        lease_context = override_run_context(leases=(*run_context().leases, lease))
        try:
            async with aclosing(run(inputs)) as stream:  # type: ignore[type-var]
                while True:
                    try:
                        with lease_context:
                            chunk = await anext(stream)
                    except StopAsyncIteration:
                        break
                    yield chunk
            if is_outermost and retention is not None:
                await retention.prune_after_turn(persistence, lease.thread_id)
        except BaseException as exc:
            if is_outermost and not lease.is_lost:
                await asyncio.shield(_record_end(saver, lease.thread_id, exc))
            raise


@asynccontextmanager
async def hold_lease(persistence: Persistence, config: Mapping[str, Any]) -> AsyncIterator[Lease]:
    """Context manager that holds the lease (exclusive right to run) of a configured thread.

    Raises:
        ThreadBusyError: Another run holds the lease.
    """
    thread = str(config["configurable"]["thread_id"])
    leases = persistence.leases
    # A separate run on the thread of an enclosing run would overwrite its data.
    context = run_context()
    outer = context.leases if is_task(config) else context.shared_leases
    lease = await leases.acquire(thread, share_key=outer_checkpoint(config), outer_leases=outer)
    try:
        yield lease
    finally:
        await leases.release(lease)


async def _check_open_question(
    saver: BaseCheckpointSaver[Any], configurable: Mapping[str, Any]
) -> None:
    # A question of an earlier checkpoint can be answered again, which forks the thread.
    checkpoint_id = configurable.get("checkpoint_id") or None
    saved = await saver.aget_tuple(
        thread_config(str(configurable["thread_id"]), checkpoint_id=checkpoint_id)
    )
    is_fork = checkpoint_id is not None
    open_ = [] if saved is None else open_interrupts(saved.pending_writes, include_answered=is_fork)
    if all(is_wait_interrupt(item.value) for item in open_):
        raise ValidationError(
            f"Thread {configurable['thread_id']!r} has no open question to answer.",
            fix="check the thread ID and whether the question was already answered. Resume a step"
            " that waits for an event with a signal.",
        )


async def _assign_replay_to_caller(
    saver: BaseCheckpointSaver[Any], configurable: Mapping[str, Any], inputs: Any
) -> Any:
    """Return a run's input, assigning a replayed turn to the person who starts the replay.

    A run from an earlier checkpoint is a replay. Like a fork, a replay starts without
    approvals.
    """
    checkpoint_id = configurable.get("checkpoint_id")
    is_resumed = inputs is None or isinstance(inputs, Command)
    if not checkpoint_id or configurable.get("checkpoint_ns") or not is_resumed:
        return inputs
    thread = str(configurable["thread_id"])
    latest = await saver.aget_tuple(thread_config(thread))
    if latest is None or latest.checkpoint["id"] == checkpoint_id:
        return inputs
    saved = await saver.aget_tuple(thread_config(thread, checkpoint_id=str(checkpoint_id)))
    values = {} if saved is None else plain_values(saved)
    if not values.get("control_turn"):
        return inputs
    caller = run_context().caller or caller_from_configurable(configurable)
    update = assigned_turn(values, caller)
    update["control_turn"]["approval_scope"] = uuid.uuid4().hex
    return replace(inputs or Command(), update=update)


async def _record_end(
    saver: BaseCheckpointSaver[Any], thread_id: str, error: BaseException
) -> None:
    status, reason = "failed", f"{type(error).__name__}: {error}"
    if isinstance(error, GraphDrained):
        status, reason = "unfinished", "The process was shut down during the turn."
    elif isinstance(error, (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)):
        status, reason = "cancelled", "The run was cancelled."
    with suppress(CapgraphError):
        saved = await saver.aget_tuple(thread_config(thread_id))
        record = {
            "status": status,
            "reason": reason[:2000],
            "checkpoint": saved.checkpoint["id"] if saved else None,
        }
        await write_record(saver, thread_id, RUN_END, record)
