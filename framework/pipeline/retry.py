"""Stage ``retry``: repeat the inner stages of a step, or a model call, after a failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from langgraph.errors import GraphBubbleUp

import capgraph.telemetry as telemetry
from capgraph.base.errors import ErrorSeverity, FatalExecutionError
from capgraph.base.ports import Attempt, Failure, RetryRule, StepRecord
from capgraph.helpers.clock import current_clock
from capgraph.langgraph_compat import reset_task_counters
from capgraph.pipeline.failures import mark_failure_permanent
from capgraph.pipeline.finalize import set_attempts
from capgraph.pipeline.retry_policy import RetryPolicy, is_retriable, next_attempt
from capgraph.pipeline.step_execution import NextStage, StepExecution, StepResult

T = TypeVar("T")


async def retry(
    execution: StepExecution, attempt: Attempt, call_next: NextStage, rule: RetryRule | None = None
) -> StepResult:
    """Retry an attempt until the step succeeds, fails permanently, or waits for a person.

    Args:
        execution: State of the step execution.
        attempt: Attempt to run.
        call_next: Function that runs the stages of a single attempt.
        rule: Retry rule that replaces the capability's retry policy.
    """
    context = execution.context
    if attempt.short_circuit is not None:
        outcome: StepResult = await call_next(execution, attempt)
        return outcome
    failures, wait = await context.ledger.earlier_failures(
        attempt.key, execution.config.clock.now()
    )
    failures = max(failures, context.failures)
    while True:
        if wait is not None:
            await execution.config.clock.sleep(wait)
        if execution.should_stop() or context.control.is_draining():
            return None
        if attempt.number != failures + 1:
            attempt = replace(attempt, number=failures + 1)
        result: StepResult = await call_next(execution, attempt)
        if not isinstance(result, StepRecord) or result.error is None:
            return result
        failures += 1
        wait = await _compute_next_delay(execution, attempt, result.error, failures, rule)
        if wait is not None and context.control.is_draining():
            return None  # the journal contains the attempt and the delay
        if wait is None or execution.should_stop():
            # If another failure ended the retries, attempts may be left.
            if wait is None and await execution.has_nested_effect():
                result = replace(result, error=mark_failure_permanent(result.error))
            return set_attempts(result, failures, final=wait is None)
        reset_task_counters()


async def _compute_next_delay(
    execution: StepExecution,
    attempt: Attempt,
    error: Failure,
    failures: int,
    rule: RetryRule | None,
) -> float | None:
    """Return the delay before the next attempt, or ``None`` if no attempts are left."""
    if not _is_retriable(execution, error, rule):
        return None
    limits, context = execution.config.limits, execution.context
    declared = RetryPolicy.from_dict(error.retry_policy, limits).max_attempts
    allowed = _find_max_attempts(declared if rule is None else rule.max_attempts, execution)
    upcoming = next_attempt(error, failures, limits, rule, allowed)
    seconds_left = context.control.seconds_left()
    if upcoming is None or (seconds_left is not None and upcoming.delay >= seconds_left):
        return None
    if failures >= declared and limits.max_turn_attempts is None:
        context.budget.allow_more_attempts(1)  # the budget was computed from the declared number
    await context.ledger.record_failure(
        attempt.key, failures, upcoming.delay, execution.config.clock.now()
    )
    telemetry.emit(upcoming.event(attempt.capability, error.message, attempt.key))
    return upcoming.delay


def _is_retriable(execution: StepExecution, error: Failure, rule: RetryRule | None) -> bool:
    """Return True if a failed step may be retried.

    A step with ``effect="once"`` is not retried if its effect may have happened.
    """
    passing = error.severity is ErrorSeverity.RETRIABLE
    if rule is not None and (
        execution.effect_done or (execution.spec.effect == "once" and not passing)
    ):
        return False
    failure = execution.attempt_state.failure
    return is_retriable(error, rule, failure[0] if failure is not None else None)


def _find_max_attempts(declared: int, execution: StepExecution) -> int:
    """Return the maximum number of attempts for a step, which the state may override."""
    retries = execution.view.state.get("control_max_retries")
    if isinstance(retries, int) and not isinstance(retries, bool) and retries >= 0:
        declared = retries + 1
    return min(declared, execution.config.limits.max_attempts)


async def retry_call(
    name: str,
    rule: RetryRule,
    call: Callable[[int], Awaitable[T]],
    classify: Callable[[Exception], Failure],
) -> T:
    """Retry a model call according to a retry rule, and return the first successful result.

    Args:
        name: Role of the model.
        rule: Retry rule that selects the failures to retry and limits the attempts.
        call: Function that makes the call. Its argument is the number of the attempt.
        classify: Function that classifies an exception.

    Raises:
        Exception: The last attempt failed with this error.
    """
    failures = 0
    while True:
        try:
            return await call(failures + 1)
        except (GraphBubbleUp, FatalExecutionError):
            raise
        except Exception as exc:
            failures += 1
            failure = classify(exc)
            upcoming = (
                next_attempt(failure, failures, rule=rule) if rule.applies(exc, failure) else None
            )
            if upcoming is None:
                raise
        telemetry.emit(upcoming.event(name, failure.message))
        await current_clock().sleep(upcoming.delay)
