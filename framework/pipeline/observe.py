"""Stage ``observe``: sees everything below, refusals too; keeps the turn's deadline.

Events from inside say which turn, plan and step they are about.
"""

from __future__ import annotations

from typing import Any

from capgraph.base.errors import LimitError, StoppedError
from capgraph.base.ports import Attempt
from capgraph.pipeline.finalize import failed_record
from capgraph.pipeline.step_execution import NextStage, StepExecution
from capgraph.telemetry.event_dispatcher import event_context


def deadline_error(job: StepExecution, attempt: Attempt) -> LimitError:
    """Return the error of a step for which the turn, or its plan, has no time left."""
    deadline, limit = job.view.plan.get("deadline"), job.config.limits.run_timeout_seconds
    if deadline is not None and (limit is None or deadline < limit):
        return LimitError(
            f"The plan's deadline of {deadline:g} s was reached at step {attempt.key!r}"
            f" ({attempt.capability}).",
            fix="Give the plan a later deadline, or less to do.",
        )
    return LimitError(
        f"The run's time limit was reached at step {attempt.key!r} ({attempt.capability}).",
        fix="Raise limits.run_timeout_seconds, or ask for less at once.",
    )


async def observe(job: StepExecution, attempt: Attempt, inner: NextStage) -> Any:
    """Begin no step for which the turn has no time left, or of a turn that was stopped."""
    with event_context(**job.view.event_ids, step_id=attempt.key):
        left = job.context.control.seconds_left()
        if left is not None and left <= 0:
            return await failed_record(job, attempt, deadline_error(job, attempt))
        try:
            await job.context.ledger.raise_if_stopped()
        except StoppedError as exc:
            return await failed_record(job, attempt, exc)
        return await inner(job, attempt)
