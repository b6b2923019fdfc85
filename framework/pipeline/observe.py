"""Stage ``observe``: enforce the turn's deadline and label events with their step.

The stage is the outermost one, so its middleware sees refusals too.
"""

from __future__ import annotations

from typing import Any

from capgraph.base.errors import LimitError, StoppedError
from capgraph.base.ports import Attempt
from capgraph.pipeline.finalize import failed_record
from capgraph.pipeline.step_execution import NextStage, StepExecution
from capgraph.telemetry.event_dispatcher import event_context


def create_deadline_error(execution: StepExecution, attempt: Attempt) -> LimitError:
    """Create the error for a step that cannot start because a deadline has passed.

    The deadline belongs to the step's turn or to its plan.
    """
    deadline, limit = (
        execution.view.plan.get("deadline"),
        execution.config.limits.run_timeout_seconds,
    )
    if deadline is not None and (limit is None or deadline < limit):
        return LimitError(
            f"The plan reached its deadline of {deadline:g} s at step {attempt.key!r}"
            f" ({attempt.capability}).",
            fix="set a later deadline for the plan, or plan fewer steps.",
        )
    return LimitError(
        f"The run reached its time limit at step {attempt.key!r} ({attempt.capability}).",
        fix="raise limits.run_timeout_seconds, or split the request.",
    )


async def observe(execution: StepExecution, attempt: Attempt, call_next: NextStage) -> Any:
    """Run the inner stages, unless the turn was stopped or its deadline has passed."""
    with event_context(**execution.view.event_ids, step_id=attempt.key):
        left = execution.context.control.seconds_left()
        if left is not None and left <= 0:
            return await failed_record(
                execution, attempt, create_deadline_error(execution, attempt)
            )
        try:
            await execution.context.ledger.raise_if_stopped()
        except StoppedError as exc:
            return await failed_record(execution, attempt, exc)
        return await call_next(execution, attempt)
