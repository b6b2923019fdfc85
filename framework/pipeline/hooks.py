"""Behaviours without a stage: hooks around a whole step, just inside ``observe``."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from langgraph.errors import GraphBubbleUp

from framework.base.errors import CapabilityError, FatalExecutionError
from framework.base.ports import Attempt, Behavior, BehaviorContext, StepRecord
from framework.pipeline.job import Inner, Job, Result, StandIn
from framework.pipeline.settle import failed_record


async def hooks(
    job: Job, attempt: Attempt, inner: Inner, *, behaviors: Sequence[Behavior], again: Inner
) -> Result:
    """Run the hooks of behaviours around a step.

    Args:
        job: The run of the stages.
        attempt: What is asked for.
        inner: What they stand around.
        behaviors: The behaviours, the outermost first.
        again: The stage ``settle`` with what stands around it, for results that hooks give.
    """
    context = BehaviorContext(
        agent_id=attempt.capability,
        task=attempt.objective,
        attempt=job.door.failures + 1,
        execution_id="/".join(part for part in (job.view.plan_id, attempt.key) if part),
        last_completed_step=len(job.view.done) - 1,
    )

    try:
        for behavior in behaviors:
            await _given(behavior.before_execute(context))
        record: Result = await inner(job, attempt)
        if isinstance(record, StepRecord):
            context.attempt = record.attempts
            if record.success:
                record = await _after(job, attempt, record, behaviors, context, again)
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as exc:
        record = failed_record(job, attempt, exc)
    if isinstance(record, StepRecord) and record.error is not None:
        return await _on_error(job, attempt, record, behaviors, context, again)
    return record


async def _after(
    job: Job,
    attempt: Attempt,
    record: StepRecord,
    behaviors: Sequence[Behavior],
    context: BehaviorContext,
    again: Inner,
) -> Result:
    result = kept = _returned(job, record)
    for behavior in reversed(behaviors):
        found = await _given(behavior.after_execute(context, result))
        result = result if found is None else found
    if result is kept:
        return record
    return await _settled(job, attempt, record, again, StandIn(result, record.source))


async def _on_error(
    job: Job,
    attempt: Attempt,
    record: StepRecord,
    behaviors: Sequence[Behavior],
    context: BehaviorContext,
    again: Inner,
) -> Result:
    assert record.error is not None
    raised = job.failure[0] if job.failure is not None else None
    error = raised if isinstance(raised, Exception) else CapabilityError(record.error.message)
    for behavior in behaviors:
        try:
            found = await _given(behavior.on_error(context, error))
        except (GraphBubbleUp, FatalExecutionError):
            raise
        except Exception as second:
            second.add_note(f"It was raised for a step that had failed: {error!r}")
            return failed_record(job, attempt, second)
        if found is not None:
            return await _settled(job, attempt, record, again, StandIn(found, "fallback"))
    return record


async def _settled(
    job: Job, attempt: Attempt, record: StepRecord, again: Inner, stand_in: StandIn
) -> Result:
    job.stand_in = stand_in
    try:
        found = await again(job, replace(attempt, number=record.attempts))
    finally:
        job.stand_in = None
    return replace(found, effect=record.effect) if isinstance(found, StepRecord) else found


async def given(job: Job, attempt: Attempt) -> Any:
    """Give what a hook gave, in place of the call."""
    assert job.stand_in is not None
    job.source = job.stand_in.source
    return job.stand_in.value


async def _given(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found


def _returned(job: Job, record: StepRecord) -> Any:
    """Return what the capability returned; of a result that was there already its data."""
    if job.returned is not None and record.source == "run":
        return job.returned
    data = {kind: next(iter(entries.values())) for kind, entries in record.contexts.items()}
    return next(iter(data.values())) if len(data) == 1 else data
