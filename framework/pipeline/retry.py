"""The tries of a step (stage ``retry``) and of a model call; each passes the stages inside again."""

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
from capgraph.pipeline.failures import with_effect_done
from capgraph.pipeline.finalize import with_attempts
from capgraph.pipeline.retry_policy import RetryPolicy, is_retriable, next_attempt
from capgraph.pipeline.step_execution import NextStage, StepExecution, StepResult

T = TypeVar("T")


async def retry(
    job: StepExecution, attempt: Attempt, inner: NextStage, rule: RetryRule | None = None
) -> StepResult:
    """Try until the step succeeds, fails for good, or has to wait for somebody.

    Args:
        job: The run of the stages.
        attempt: What is asked for.
        inner: One try.
        rule: What takes the place of the class's own policy.
    """
    door = job.context
    if attempt.short_circuit is not None:
        given: StepResult = await inner(job, attempt)
        return given
    failures, wait = await door.ledger.earlier_failures(attempt.key, job.config.clock.now())
    failures = max(failures, door.failures)
    while True:
        if wait is not None:
            await job.config.clock.sleep(wait)
        if job.should_stop() or door.control.is_draining():
            return None
        if attempt.number != failures + 1:
            attempt = replace(attempt, number=failures + 1)
        result: StepResult = await inner(job, attempt)
        if not isinstance(result, StepRecord) or result.error is None:
            return result
        failures += 1
        wait = await _next_delay(job, attempt, result.error, failures, rule)
        if wait is not None and door.control.is_draining():
            return None  # the journal holds the attempt and the wait
        if wait is None or job.should_stop():
            # Cut short by another failure, it may have tries left; that one has not.
            if wait is None and await job.has_nested_effect():
                result = replace(result, error=with_effect_done(result.error))
            return with_attempts(result, failures, final=wait is None)
        reset_task_counters()


async def _next_delay(
    job: StepExecution, attempt: Attempt, error: Failure, failures: int, rule: RetryRule | None
) -> float | None:
    """Return how long to wait before the next try; ``None`` when there is none."""
    if not _is_retriable(job, error, rule):
        return None
    limits, door = job.config.limits, job.context
    declared = RetryPolicy.from_dict(error.retry_policy, limits).max_attempts
    allowed = _max_attempts(declared if rule is None else rule.max_attempts, job)
    found = next_attempt(error, failures, limits, rule, allowed)
    left = door.control.seconds_left()
    if found is None or (left is not None and found.delay >= left):
        return None
    if failures >= declared and limits.max_turn_attempts is None:
        door.budget.allow_more_attempts(1)  # the budget was made of what the class says
    await door.ledger.record_failure(attempt.key, failures, found.delay, job.config.clock.now())
    telemetry.emit(found.event(attempt.capability, error.message, attempt.key))
    return found.delay


def _is_retriable(job: StepExecution, error: Failure, rule: RetryRule | None) -> bool:
    """Tell whether a failure is worth another try; what acted once is never guessed about."""
    passing = error.severity is ErrorSeverity.RETRIABLE
    if rule is not None and (job.effect_done or (job.spec.effect == "once" and not passing)):
        return False
    failure = job.attempt_state.failure
    return is_retriable(error, rule, failure[0] if failure is not None else None)


def _max_attempts(declared: int, job: StepExecution) -> int:
    """Return how often the step is tried: as often as is said of it, unless a node said otherwise."""
    retries = job.view.state.get("control_max_retries")
    if isinstance(retries, int) and not isinstance(retries, bool) and retries >= 0:
        declared = retries + 1
    return min(declared, job.config.limits.max_attempts)


async def retry_call(
    name: str,
    rule: RetryRule,
    call: Callable[[int], Awaitable[T]],
    classify: Callable[[Exception], Failure],
) -> T:
    """Make a call as often as a rule says, and return the result of the first that succeeds.

    Args:
        name: The role that is called.
        rule: Which failures are worth another try, and how many tries there are.
        call: Makes the call; its argument is the number of the try.
        classify: Classifies an exception.

    Raises:
        Exception: The last try failed with it.
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
            found = (
                next_attempt(failure, failures, rule=rule) if rule.applies(exc, failure) else None
            )
            if found is None:
                raise
        telemetry.emit(found.event(name, failure.message))
        await current_clock().sleep(found.delay)
