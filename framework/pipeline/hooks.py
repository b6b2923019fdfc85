"""Hooks of behaviors around a step, a model call, or an infrastructure node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from langgraph.errors import GraphBubbleUp

from capgraph.base.errors import (
    CapabilityError,
    ConfigurationError,
    FatalExecutionError,
    PolicyError,
)
from capgraph.base.ports import Attempt, Behavior, BehaviorContext, ShortCircuit, StepRecord
from capgraph.helpers.async_calls import maybe_await
from capgraph.pipeline.finalize import failed_record
from capgraph.pipeline.step_execution import NextStage, StepExecution, StepResult, execution_scope


async def run_hooks(
    execution: StepExecution,
    attempt: Attempt,
    call_next: NextStage,
    *,
    behaviors: Sequence[Behavior],
    refinalize: NextStage,
) -> StepResult:
    """Run the behaviors' hooks around a step.

    Args:
        execution: State of the step execution.
        attempt: Attempt to run.
        call_next: Function that runs the wrapped stages.
        behaviors: Behaviors with hooks, outermost first.
        refinalize: ``finalize`` stage with its middleware, for results that hooks return.
    """
    if attempt.is_replayed:  # hooks already processed a replayed result
        replayed: StepResult = await call_next(execution, attempt)
        return replayed
    plan = execution.view.plan_id
    context = BehaviorContext(
        agent_id=attempt.capability,
        task=attempt.objective,
        attempt=execution.context.failures + 1,
        execution_id=f"{plan}/{attempt.key}"
        if plan
        else execution.context.ledger.step_key(attempt),
        last_completed_step=len(execution.view.succeeded_keys) - 1,
    )

    async def settled(record: StepRecord, short_circuit: ShortCircuit) -> StepResult:
        value = await refinalize(
            execution, replace(attempt, number=record.attempts, short_circuit=short_circuit)
        )
        return replace(value, effect=record.effect) if isinstance(value, StepRecord) else value

    try:
        with execution_scope(execution):
            await run_before_hooks(behaviors, context)
        record: StepResult = await call_next(execution, attempt)
        if isinstance(record, StepRecord):
            context.attempt = record.attempts
            if record.success:
                result = _create_hook_result(execution, record)
                with execution_scope(execution):
                    value = await run_after_hooks(behaviors, context, result)
                if value is not result:
                    record = await settled(
                        record, ShortCircuit(value, record.source, is_emitted=True)
                    )
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as exc:
        record = await failed_record(execution, attempt, exc)
    if not isinstance(record, StepRecord) or record.error is None:
        return record
    raised = (
        execution.attempt_state.failure[0] if execution.attempt_state.failure is not None else None
    )
    error = raised if isinstance(raised, Exception) else CapabilityError(record.error.message)
    try:
        with execution_scope(execution):
            value = await recover_with_hooks(behaviors, context, error)
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as second:
        return await failed_record(execution, attempt, second)
    return record if value is None else await settled(record, ShortCircuit(value, "fallback"))


async def call_with_hooks(
    behaviors: Sequence[Behavior], context: BehaviorContext, call: Callable[[], Awaitable[Any]]
) -> Any:
    """Run hooks around a call that does not return a step record, such as a model call.

    Args:
        behaviors: Behaviors with hooks, outermost first.
        context: Description of the call for the hooks.
        call: Function that makes the call.

    Raises:
        Exception: The call or a hook failed, and no hook returned a replacement.
    """
    try:
        await run_before_hooks(behaviors, context)
        return await run_after_hooks(behaviors, context, await call())
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as exc:
        replacement = await recover_with_hooks(behaviors, context, exc)
        if replacement is None:
            raise
        return replacement


async def run_before_hooks(behaviors: Sequence[Behavior], context: BehaviorContext) -> None:
    """Run the ``before_execute`` hooks of behaviors.

    Raises:
        ConfigurationError: A hook returned a different context or changed the task. Neither
            would have any effect, because earlier stages have already used the task.
    """
    task = context.task
    for behavior in behaviors:
        returned = await maybe_await(behavior.before_execute(context))
        if context.task != task or not (returned is None or returned is context):
            context.task = task
            raise ConfigurationError(
                f"before_execute of {behavior!r:.80} must not replace the context or its task.",
                fix="Change context.metadata, or replace the result in after_execute.",
                facts={"returned": type(returned).__name__},
            )


async def run_after_hooks(
    behaviors: Sequence[Behavior], context: BehaviorContext, result: Any
) -> Any:
    """Run the ``after_execute`` hooks, innermost first, and return the final result."""
    for behavior in reversed(behaviors):
        replacement = await maybe_await(behavior.after_execute(context, result))
        result = result if replacement is None else replacement
    return result


async def recover_with_hooks(
    behaviors: Sequence[Behavior], context: BehaviorContext, error: Exception
) -> Any:
    """Run the ``on_error`` hooks and return the first replacement result, or ``None``.

    Hooks cannot replace the result of a denied step.
    """
    for behavior in behaviors:
        try:
            replacement = await maybe_await(behavior.on_error(context, error))
        except (GraphBubbleUp, FatalExecutionError):
            raise
        except Exception as second:
            second.add_note(f"on_error was handling: {error!r}")
            raise
        if replacement is not None and not isinstance(error, PolicyError):
            return replacement
    return None


def _create_hook_result(execution: StepExecution, record: StepRecord) -> Any:
    """Return the capability's return value, or the record's data if the capability did not run."""
    if execution.attempt_state.result is not None and record.source == "run":
        return execution.attempt_state.result
    return result_data(record)


def result_data(record: StepRecord) -> Any:
    """Return the data of a record's only output, or a mapping by type for several outputs."""
    data = {kind: next(iter(entries.values())) for kind, entries in record.contexts.items()}
    return next(iter(data.values())) if len(data) == 1 else data
