"""What an infrastructure node declares to stand around it: hooks, and its tries and time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from langgraph.errors import GraphBubbleUp

from capgraph.base.errors import FatalExecutionError, PersistenceError
from capgraph.base.ports import BehaviorContext, Failure, TimeLimit
from capgraph.base.spec import InfrastructureSpec
from capgraph.configs.settings_model import Limits
from capgraph.pipeline import hooks
from capgraph.pipeline.middleware import last_of_type
from capgraph.pipeline.retry_policy import has_attempts_left
from capgraph.state import TurnView


async def execute_with_behaviors(
    spec: InfrastructureSpec,
    view: TurnView,
    limits: Limits,
    work: Callable[[], Awaitable[Any]],
    classify: Callable[[Exception], Failure],
) -> Any:
    """Run a node inside of what it declares; hooks run at each try, and ``on_error`` at the last.

    Args:
        spec: The node.
        view: The turn.
        limits: Bounds of a run.
        work: Its ``execute``.
        classify: Says what an exception means.

    Raises:
        Exception: What the node or a hook raised, and nothing stands in for.
    """
    own = [item for item in spec.behaviors if getattr(item, "stage", None) is None]
    context = BehaviorContext(
        spec.name,
        view.task or spec.description,
        attempt=view.failed_attempts.get(spec.name, 0) + 1,
        execution_id=f"{view.turn_id or view.turn_number}/{spec.name}",
        last_completed_step=len(view.succeeded_keys) - 1,
    )
    try:
        await hooks.run_before_hooks(own, context)
        return await hooks.run_after_hooks(own, context, await _with_time_limit(spec, work))
    except (GraphBubbleUp, FatalExecutionError, PersistenceError):
        raise
    except Exception as exc:
        if has_attempts_left(classify(exc), limits):
            raise
        found = await hooks.recover_with_hooks(own, context, exc)
        if found is None:
            raise
        return found


async def _with_time_limit(spec: InfrastructureSpec, work: Callable[[], Awaitable[Any]]) -> Any:
    limit: TimeLimit | None = last_of_type(spec.behaviors, TimeLimit)
    timer = asyncio.timeout(limit.time_limit if limit is not None else None)
    try:
        async with timer:
            return await work()
    except TimeoutError as exc:
        if limit is None or not timer.expired():
            raise
        raise TimeoutError(
            f"The node {spec.name!r} took longer than {limit.time_limit:g} s."
            f" Fix: raise {limit!r}, or give it less to do."
        ) from exc
