"""One run of a thread at a time: a lease is held from the start of a run to its end.

A graph takes the lease before it reads or writes anything, and gives it back in whatever way it
ends. So a second run is told before it can do harm, and a run that waits for a person holds
nothing. A graph inside another one's step, on the same thread, shares the outer lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Command

from capgraph.base.errors import CapgraphError, ValidationError
from capgraph.configs.run_context import override_run_context, run_context
from capgraph.langgraph_compat import is_task, open_interrupts, outer_checkpoint
from capgraph.planning.waits import is_wait_interrupt
from capgraph.stores.leases import Lease
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import RUN_END, thread_config, write_record

if TYPE_CHECKING:
    from capgraph.stores.retention import Retention


def share_lease(lease: Lease) -> AbstractContextManager[None]:
    """Let runs inside the block share a lease that the caller holds, and will give back."""
    return override_run_context(shared_leases=(lease,))


async def run_with_lease(
    persistence: Persistence,
    config: Mapping[str, Any],
    inputs: Any,
    run: Callable[[], AsyncIterator[Any]],
    retention: Retention | None = None,
) -> AsyncIterator[Any]:
    """Run a graph while it has the lease of its thread.

    Args:
        persistence: Where the thread is stored.
        config: The run's configuration, with what an outer graph and the graph itself bring.
        inputs: What the graph is given.
        run: Starts the graph and yields what it streams.
        retention: Told when a turn has ended.

    Raises:
        ThreadBusyError: Another run has the thread.
        ValidationError: The input answers a question, and none is open.
    """
    saver = persistence.saver
    async with hold_lease(persistence, config) as lease:
        alone = not is_task(config)
        if alone and isinstance(inputs, Command) and inputs.resume is not None:
            await _check_open_question(saver, config["configurable"])
        # Only what runs inside sees the lease; the caller's context stays as it was.
        inside = override_run_context(leases=(*run_context().leases, lease))
        try:
            async with aclosing(run()) as stream:  # type: ignore[type-var]
                while True:
                    try:
                        with inside:
                            chunk = await anext(stream)
                    except StopAsyncIteration:
                        break
                    yield chunk
            if alone and retention is not None:
                await retention.prune_after_turn(persistence, lease.thread_id)
        except BaseException as exc:
            if alone and not lease.is_lost:
                await asyncio.shield(_record_end(saver, lease.thread_id, exc))
            raise


@asynccontextmanager
async def hold_lease(persistence: Persistence, config: Mapping[str, Any]) -> AsyncIterator[Lease]:
    """Hold the lease of the thread that a configuration names.

    Raises:
        ThreadBusyError: Another run has the thread.
    """
    thread = str(config["configurable"]["thread_id"])
    leases = persistence.leases
    # A run of its own on the thread of the run around it would write what that one writes.
    context = run_context()
    outer = context.leases if is_task(config) else context.shared_leases
    lease = await leases.acquire(thread, share_key=outer_checkpoint(config), outer_leases=outer)
    try:
        yield lease
    finally:
        await leases.release(lease)


async def _check_open_question(saver: BaseCheckpointSaver[Any], asked: Mapping[str, Any]) -> None:
    # A question of an earlier checkpoint can be answered again: that is a fork.
    moment = asked.get("checkpoint_id") or None
    found = await saver.aget_tuple(thread_config(str(asked["thread_id"]), checkpoint_id=moment))
    again = moment is not None
    open_ = [] if found is None else open_interrupts(found.pending_writes, include_answered=again)
    if all(is_wait_interrupt(item.value) for item in open_):
        raise ValidationError(
            f"The thread {asked['thread_id']!r} asks nothing, so the answer changes nothing.",
            fix="It was answered before, or it is meant for another thread. What waits for an event"
            " goes on by a signal.",
        )


async def _record_end(
    saver: BaseCheckpointSaver[Any], thread_id: str, error: BaseException
) -> None:
    cancelled = isinstance(error, (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt))
    reason = "The run was cancelled." if cancelled else f"{type(error).__name__}: {error}"
    with suppress(CapgraphError):
        found = await saver.aget_tuple(thread_config(thread_id))
        record = {
            "status": "cancelled" if cancelled else "failed",
            "reason": reason[:2000],
            "checkpoint": found.checkpoint["id"] if found else None,
        }
        await write_record(saver, thread_id, RUN_END, record)
