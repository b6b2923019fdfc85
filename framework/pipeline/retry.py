"""Stage ``retry``: the one owner of tries. Each try passes the stages inside again."""

from __future__ import annotations

from dataclasses import replace

import capgraph.telemetry as telemetry
from capgraph.base.errors import ErrorSeverity
from capgraph.base.ports import Attempt, Failure, RetryRule, StepRecord
from capgraph.langgraph_compat import new_try
from capgraph.pipeline.failures import after_effect
from capgraph.pipeline.finalize import with_attempts
from capgraph.pipeline.job import Inner, Job, Result
from capgraph.pipeline.retry_policy import JITTER, RetryPolicy, wait_seconds


async def retry(job: Job, attempt: Attempt, inner: Inner, rule: RetryRule | None = None) -> Result:
    """Try until the step succeeds, fails for good, or has to wait for somebody.

    Args:
        job: The run of the stages.
        attempt: What is asked for.
        inner: One try.
        rule: What takes the place of the class's own policy.
    """
    door = job.door
    if attempt.given is not None:
        given: Result = await inner(job, attempt)
        return given
    failures, wait = await door.ledger.earlier_failures(attempt.key, job.equipment.clock.now())
    failures = max(failures, door.failures)
    while True:
        if wait is not None:
            await job.equipment.clock.sleep(wait)
        if job.stopping() or door.draining():
            return None
        if attempt.number != failures + 1:
            attempt = replace(attempt, number=failures + 1)
        result: Result = await inner(job, attempt)
        if not isinstance(result, StepRecord) or result.error is None:
            return result
        failures += 1
        wait = await _next_try(job, attempt, result.error, failures, rule)
        if wait is not None and door.draining():
            return None  # the journal holds the attempt and the wait
        if wait is None or job.stopping():
            # Cut short by another failure, it may have tries left; that one has not.
            if wait is None and await job.has_acted_inside():
                result = replace(result, error=after_effect(result.error))
            return with_attempts(result, failures, final=wait is None)
        new_try()


async def _next_try(
    job: Job, attempt: Attempt, error: Failure, failures: int, rule: RetryRule | None
) -> float | None:
    """Return how long to wait before the next try; ``None`` when there is none."""
    if not _may_pass(job, error, rule):
        return None
    limits, door = job.equipment.limits, job.door
    declared = RetryPolicy.from_dict(error.retry_policy, limits)
    policy = rule or declared
    tries = _allowed(policy.max_attempts, job)
    if failures >= tries:
        return None
    asked = error.metadata.get("retry_after_seconds")
    jitter = JITTER if rule is None else 0.0
    delay = wait_seconds(policy, failures, limits, retry_after=asked, jitter=jitter)
    left = door.seconds_left()
    if left is not None and delay >= left:
        return None
    if failures >= declared.max_attempts and limits.max_turn_attempts is None:
        door.budget.allow(1)  # the budget was made of what the class says
    await door.ledger.failed(attempt.key, failures, delay, job.equipment.clock.now())
    telemetry.emit(
        telemetry.Retry(
            name=attempt.capability,
            context_key=attempt.key,
            attempt=failures + 1,
            max_attempts=tries,
            delay=delay,
            message=error.message,
        )
    )
    return delay


def _may_pass(job: Job, error: Failure, rule: RetryRule | None) -> bool:
    """Tell whether a failure is worth another try; what acted once is never guessed about."""
    if rule is None:
        return error.severity is ErrorSeverity.RETRIABLE
    failure = job.current.failure
    if job.effect_done or error.severity is ErrorSeverity.FATAL:
        return False
    if job.spec.effect == "once" and error.severity is not ErrorSeverity.RETRIABLE:
        return False
    return rule.applies(failure[0] if failure is not None else None, error)


def _allowed(declared: int, job: Job) -> int:
    """Return how often the step is tried: as often as is said of it, unless a node said otherwise."""
    retries = job.view.state.get("control_max_retries")
    if isinstance(retries, int) and not isinstance(retries, bool) and retries >= 0:
        declared = retries + 1
    return min(declared, job.equipment.limits.max_attempts)
