"""Behaviours without a stage: hooks around a whole step, a model call or a node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from langgraph.errors import GraphBubbleUp

from capgraph.base.errors import CapabilityError, FatalExecutionError, PolicyError
from capgraph.base.ports import Attempt, Behavior, BehaviorContext, ShortCircuit, StepRecord
from capgraph.helpers.async_calls import maybe_await
from capgraph.pipeline.finalize import failed_record
from capgraph.pipeline.step_execution import NextStage, StepExecution, StepResult, execution_scope


async def run_hooks(
    job: StepExecution,
    attempt: Attempt,
    inner: NextStage,
    *,
    behaviors: Sequence[Behavior],
    again: NextStage,
) -> StepResult:
    """Run the hooks of behaviours around a step.

    Args:
        job: The run of the stages.
        attempt: What is asked for.
        inner: What they stand around.
        behaviors: The behaviours, the outermost first.
        again: The stage ``finalize`` with what stands around it, for results that hooks give.
    """
    if attempt.is_replayed:  # what is handed back is what they made of it
        replayed: StepResult = await inner(job, attempt)
        return replayed
    plan = job.view.plan_id
    context = BehaviorContext(
        agent_id=attempt.capability,
        task=attempt.objective,
        attempt=job.context.failures + 1,
        execution_id=f"{plan}/{attempt.key}" if plan else job.context.ledger.step_key(attempt),
        last_completed_step=len(job.view.succeeded_keys) - 1,
    )

    async def settled(record: StepRecord, given: ShortCircuit) -> StepResult:
        found = await again(job, replace(attempt, number=record.attempts, short_circuit=given))
        return replace(found, effect=record.effect) if isinstance(found, StepRecord) else found

    try:
        with execution_scope(job):
            await run_before_hooks(behaviors, context)
        record: StepResult = await inner(job, attempt)
        if isinstance(record, StepRecord):
            context.attempt = record.attempts
            if record.success:
                result = _hook_result(job, record)
                with execution_scope(job):
                    found = await run_after_hooks(behaviors, context, result)
                if found is not result:
                    record = await settled(
                        record, ShortCircuit(found, record.source, is_emitted=True)
                    )
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as exc:
        record = await failed_record(job, attempt, exc)
    if not isinstance(record, StepRecord) or record.error is None:
        return record
    raised = job.attempt_state.failure[0] if job.attempt_state.failure is not None else None
    error = raised if isinstance(raised, Exception) else CapabilityError(record.error.message)
    try:
        with execution_scope(job):
            found = await recover_with_hooks(behaviors, context, error)
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as second:
        return await failed_record(job, attempt, second)
    return record if found is None else await settled(record, ShortCircuit(found, "fallback"))


async def call_with_hooks(
    behaviors: Sequence[Behavior], context: BehaviorContext, call: Callable[[], Awaitable[Any]]
) -> Any:
    """Run hooks around work that gives its result as it is: a model call.

    Raises:
        Exception: What the work or a hook raised, when no hook gives a result all the same.
    """
    try:
        await run_before_hooks(behaviors, context)
        return await run_after_hooks(behaviors, context, await call())
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as exc:
        found = await recover_with_hooks(behaviors, context, exc)
        if found is None:
            raise
        return found


async def run_before_hooks(behaviors: Sequence[Behavior], context: BehaviorContext) -> None:
    """Run the hooks before something begins."""
    for behavior in behaviors:
        await maybe_await(behavior.before_execute(context))


async def run_after_hooks(
    behaviors: Sequence[Behavior], context: BehaviorContext, result: Any
) -> Any:
    """Run the hooks that look at a result, the innermost first; give what it became."""
    for behavior in reversed(behaviors):
        found = await maybe_await(behavior.after_execute(context, result))
        result = result if found is None else found
    return result


async def recover_with_hooks(
    behaviors: Sequence[Behavior], context: BehaviorContext, error: Exception
) -> Any:
    """Run the hooks that look at a failure; give the first result that stands in, or ``None``.

    Nothing stands in for what a policy, or a person, refused: then they are only told.
    """
    for behavior in behaviors:
        try:
            found = await maybe_await(behavior.on_error(context, error))
        except (GraphBubbleUp, FatalExecutionError):
            raise
        except Exception as second:
            second.add_note(f"It was raised for what had failed: {error!r}")
            raise
        if found is not None and not isinstance(error, PolicyError):
            return found
    return None


def _hook_result(job: StepExecution, record: StepRecord) -> Any:
    """Return what the capability returned; of a result that was there already its data."""
    if job.attempt_state.result is not None and record.source == "run":
        return job.attempt_state.result
    return result_data(record)


def result_data(record: StepRecord) -> Any:
    """Return the data of a record: of the one output, or of each by its type."""
    data = {kind: next(iter(entries.values())) for kind, entries in record.contexts.items()}
    return next(iter(data.values())) if len(data) == 1 else data
