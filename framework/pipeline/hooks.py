"""Behaviours without a stage: hooks around a whole step, a model call or a node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from langgraph.errors import GraphBubbleUp

from capgraph.base.awaiting import awaited
from capgraph.base.errors import CapabilityError, FatalExecutionError, PolicyError
from capgraph.base.ports import Attempt, Behavior, BehaviorContext, ShortCircuit, StepRecord
from capgraph.pipeline.finalize import failed_record
from capgraph.pipeline.job import Inner, Job, Result, standing_in


async def hooks(
    job: Job, attempt: Attempt, inner: Inner, *, behaviors: Sequence[Behavior], again: Inner
) -> Result:
    """Run the hooks of behaviours around a step.

    Args:
        job: The run of the stages.
        attempt: What is asked for.
        inner: What they stand around.
        behaviors: The behaviours, the outermost first.
        again: The stage ``finalize`` with what stands around it, for results that hooks give.
    """
    if attempt.replayed:  # what is handed back is what they made of it
        replayed: Result = await inner(job, attempt)
        return replayed
    plan = job.view.plan_id
    context = BehaviorContext(
        agent_id=attempt.capability,
        task=attempt.objective,
        attempt=job.door.failures + 1,
        execution_id=f"{plan}/{attempt.key}" if plan else job.door.ledger.plain_key(attempt),
        last_completed_step=len(job.view.done) - 1,
    )

    async def settled(record: StepRecord, given: ShortCircuit) -> Result:
        found = await again(job, replace(attempt, number=record.attempts, given=given))
        return replace(found, effect=record.effect) if isinstance(found, StepRecord) else found

    try:
        with standing_in(job):
            await before(behaviors, context)
        record: Result = await inner(job, attempt)
        if isinstance(record, StepRecord):
            context.attempt = record.attempts
            if record.success:
                result = _returned(job, record)
                with standing_in(job):
                    found = await after(behaviors, context, result)
                if found is not result:
                    record = await settled(record, ShortCircuit(found, record.source, told=True))
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as exc:
        record = await failed_record(job, attempt, exc)
    if not isinstance(record, StepRecord) or record.error is None:
        return record
    raised = job.current.failure[0] if job.current.failure is not None else None
    error = raised if isinstance(raised, Exception) else CapabilityError(record.error.message)
    try:
        with standing_in(job):
            found = await instead(behaviors, context, error)
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as second:
        return await failed_record(job, attempt, second)
    return record if found is None else await settled(record, ShortCircuit(found, "fallback"))


async def around(
    behaviors: Sequence[Behavior], context: BehaviorContext, work: Callable[[], Awaitable[Any]]
) -> Any:
    """Run hooks around work that gives its result as it is: a model call.

    Raises:
        Exception: What the work or a hook raised, when no hook gives a result all the same.
    """
    try:
        await before(behaviors, context)
        return await after(behaviors, context, await work())
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as exc:
        found = await instead(behaviors, context, exc)
        if found is None:
            raise
        return found


async def before(behaviors: Sequence[Behavior], context: BehaviorContext) -> None:
    """Run the hooks before something begins."""
    for behavior in behaviors:
        await awaited(behavior.before_execute(context))


async def after(behaviors: Sequence[Behavior], context: BehaviorContext, result: Any) -> Any:
    """Run the hooks that look at a result, the innermost first; give what it became."""
    for behavior in reversed(behaviors):
        found = await awaited(behavior.after_execute(context, result))
        result = result if found is None else found
    return result


async def instead(behaviors: Sequence[Behavior], context: BehaviorContext, error: Exception) -> Any:
    """Run the hooks that look at a failure; give the first result that stands in, or ``None``.

    Nothing stands in for what a policy, or a person, refused: then they are only told.
    """
    for behavior in behaviors:
        try:
            found = await awaited(behavior.on_error(context, error))
        except (GraphBubbleUp, FatalExecutionError):
            raise
        except Exception as second:
            second.add_note(f"It was raised for what had failed: {error!r}")
            raise
        if found is not None and not isinstance(error, PolicyError):
            return found
    return None


def _returned(job: Job, record: StepRecord) -> Any:
    """Return what the capability returned; of a result that was there already its data."""
    if job.current.result is not None and record.source == "run":
        return job.current.result
    return plain_result(record)


def plain_result(record: StepRecord) -> Any:
    """Return the data of a record: of the one output, or of each by its type."""
    data = {kind: next(iter(entries.values())) for kind, entries in record.contexts.items()}
    return next(iter(data.values())) if len(data) == 1 else data
