"""Stage ``timeout``: the step's own time limit."""

from __future__ import annotations

import asyncio
from typing import Any

from capgraph.base.ports import Attempt, TimeLimit
from capgraph.pipeline.observe import deadline_error
from capgraph.pipeline.step_execution import NextStage, StepExecution


async def timeout(
    job: StepExecution, attempt: Attempt, inner: NextStage, instead: TimeLimit | None = None
) -> Any:
    """Stop what takes longer than the capability, or the turn, may.

    Args:
        job: The run of the stages.
        attempt: What is asked for.
        inner: The work.
        instead: What takes the place of the capability's own limit.

    Raises:
        TimeoutError: The step took too long.
        LimitError: The turn's time is over.
    """
    planned = attempt.step.get("timeout")
    own = instead.time_limit if instead is not None else job.spec.timeout_seconds
    if planned is not None:
        own = planned if instead is None else min(planned, instead.time_limit)
    limit = own or job.config.limits.step_timeout_seconds
    left = job.context.control.seconds_left()
    by_turn = left is not None and (limit is None or left < limit)
    timer = asyncio.timeout(left if by_turn else limit)
    try:
        async with timer:
            return await inner(job, attempt)
    except TimeoutError as exc:
        if not timer.expired():
            raise
        job.attempt_state.timed_out = True
        if by_turn:
            raise deadline_error(job, attempt) from exc
        what = "timeout_seconds" if instead is None else repr(instead)
        what = "the step's timeout, or that" if planned is not None else what
        raise TimeoutError(
            f"{job.spec.name!r} took longer than {limit:g} s in step {attempt.key!r}."
            f" Fix: raise {what} of {job.spec.name!r}, or give it less to do."
        ) from exc
