"""Stage ``timeout``: enforce the time limit of an attempt."""

from __future__ import annotations

import asyncio
from typing import Any

from capgraph.base.ports import Attempt, TimeLimit
from capgraph.pipeline.observe import create_deadline_error
from capgraph.pipeline.step_execution import NextStage, StepExecution


async def timeout(
    execution: StepExecution,
    attempt: Attempt,
    call_next: NextStage,
    limit_override: TimeLimit | None = None,
) -> Any:
    """Cancel an attempt that exceeds the time limit of its capability or turn.

    Args:
        execution: State of the step execution.
        attempt: Attempt to run.
        call_next: Function that runs the inner stages.
        limit_override: Time limit that replaces the capability's ``timeout_seconds``.

    Raises:
        TimeoutError: The attempt exceeded its time limit.
        LimitError: The deadline of the turn passed.
    """
    planned = attempt.step.get("timeout")
    limit_seconds = (
        limit_override.time_limit if limit_override is not None else execution.spec.timeout_seconds
    )
    if planned is not None:
        limit_seconds = (
            planned if limit_override is None else min(planned, limit_override.time_limit)
        )
    limit = limit_seconds or execution.config.limits.step_timeout_seconds
    seconds_left = execution.context.control.seconds_left()
    by_turn = seconds_left is not None and (limit is None or seconds_left < limit)
    timer = asyncio.timeout(seconds_left if by_turn else limit)
    try:
        async with timer:
            return await call_next(execution, attempt)
    except TimeoutError as exc:
        if not timer.expired():
            raise
        execution.attempt_state.timed_out = True
        if by_turn:
            raise create_deadline_error(execution, attempt) from exc
        setting = "timeout_seconds" if limit_override is None else repr(limit_override)
        setting = "the timeout of the step or the limit" if planned is not None else setting
        raise TimeoutError(
            f"{execution.spec.name!r} exceeded its time limit of {limit:g} s in step {attempt.key!r}."
            f" Fix: raise {setting} of {execution.spec.name!r}, or let it do less work."
        ) from exc
