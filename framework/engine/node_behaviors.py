"""Behaviors of infrastructure nodes: hooks, retries, and time limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from langgraph.errors import GraphBubbleUp

from capgraph.base.errors import FatalExecutionError, PersistenceError
from capgraph.base.ports import BehaviorContext, Failure, TimeLimit
from capgraph.base.spec import InfrastructureSpec
from capgraph.configs.limits import Limits
from capgraph.pipeline import hooks
from capgraph.pipeline.middleware import find_last_of_type
from capgraph.pipeline.retry_policy import has_attempts_left
from capgraph.state import TurnView


async def execute_with_behaviors(
    spec: InfrastructureSpec,
    view: TurnView,
    limits: Limits,
    work: Callable[[], Awaitable[Any]],
    classify: Callable[[Exception], Failure],
) -> Any:
    """Run an infrastructure node with its before, after, and error hooks.

    The before and after hooks run for each attempt; ``on_error`` runs only after the last
    attempt.

    Args:
        spec: Declarations of the node.
        view: Current state of the turn.
        limits: Limits of a run.
        work: Callback that runs the node's ``execute`` method.
        classify: Callback that classifies an exception.

    Raises:
        Exception: The node or a hook failed, and no hook returned a replacement result.
    """
    hook_behaviors = [item for item in spec.behaviors if getattr(item, "stage", None) is None]
    context = BehaviorContext(
        spec.name,
        view.task or spec.description,
        attempt=view.failed_attempts.get(spec.name, 0) + 1,
        execution_id=f"{view.turn_id or view.turn_number}/{spec.name}",
        last_completed_step=len(view.succeeded_keys) - 1,
    )
    try:
        await hooks.run_before_hooks(hook_behaviors, context)
        return await hooks.run_after_hooks(
            hook_behaviors, context, await _with_time_limit(spec, work)
        )
    except (GraphBubbleUp, FatalExecutionError, PersistenceError):
        raise
    except Exception as exc:
        if has_attempts_left(classify(exc), limits):
            raise
        replacement = await hooks.recover_with_hooks(hook_behaviors, context, exc)
        if replacement is None:
            raise
        return replacement


async def _with_time_limit(spec: InfrastructureSpec, work: Callable[[], Awaitable[Any]]) -> Any:
    limit: TimeLimit | None = find_last_of_type(spec.behaviors, TimeLimit)
    timer = asyncio.timeout(limit.time_limit if limit is not None else None)
    try:
        async with timer:
            return await work()
    except TimeoutError as exc:
        if limit is None or not timer.expired():
            raise
        raise TimeoutError(
            f"Node {spec.name!r} exceeded its time limit of {limit.time_limit:g} s."
            f" Fix: raise {limit!r}, or reduce the work of the node."
        ) from exc
