"""Retry rules: which failures are retried, how often, and after which delay.

Steps, infrastructure nodes, and model calls share these rules. :mod:`capgraph.pipeline.retry`
applies them.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import capgraph.telemetry as telemetry
from capgraph.base.error_classification import iter_causes
from capgraph.base.errors import ErrorSeverity
from capgraph.base.ports import Failure, RetryRule
from capgraph.configs.limits import Limits
from capgraph.configs.logger import get_logger
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.number_validation import check_number
from capgraph.helpers.plain_data import to_plain

JITTER = 0.1


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retry policy of a capability or node: number of attempts, and delays between attempts.

    Attributes:
        max_attempts: Maximum number of attempts, including the first.
        delay_seconds: Delay before the second attempt.
        backoff_factor: Factor by which each further delay grows.

    >>> RetryPolicy(3, 0.5, 2.0).delay(2)
    1.0
    """

    max_attempts: int = 3
    delay_seconds: float = 0.5
    backoff_factor: float = 1.5

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None, limits: Limits) -> RetryPolicy:
        """Create a retry policy from the result of ``get_retry_policy``.

        Invalid values allow only one attempt.
        """
        policy = values or {}
        try:
            requested = float(policy.get("max_attempts", 1))
            attempts = limits.max_attempts if requested == math.inf else int(requested)
            delay = float(policy.get("delay_seconds", 0.0))
            factor = float(policy.get("backoff_factor", 1.0))
        except (TypeError, ValueError, OverflowError):
            return cls(1, 0.0, 1.0)
        return cls(max(1, min(attempts, limits.max_attempts)), max(0.0, delay), max(0.0, factor))

    def delay(self, failures: int) -> float:
        """Return the retry delay in seconds after a number of failures, without limit or jitter."""
        try:
            return self.delay_seconds * self.backoff_factor ** max(0, failures - 1)
        except OverflowError:
            return math.inf


def declared_policy(cls: type[Any]) -> dict[str, Any]:
    """Return the retry policy that a class declares, or ``{}`` if the policy is invalid.

    An invalid policy raises no error, because that error would hide the failure that is being
    handled.
    """
    try:
        policy = cls.get_retry_policy()
    except Exception as exc:
        get_logger("framework", "retry").error(
            "get_retry_policy of %s raised %r; the step is not retried", cls.__name__, exc
        )
        return {}
    return to_plain(policy, lenient=True) if isinstance(policy, Mapping) else {}


class RetryBehavior:
    """Retry rule that replaces the retry policy of a capability.

    Attempts and delays are stored with the turn, so that a restart does not reset them. Each attempt
    passes rate limits, circuit breakers, and guardrails again. A completed effect is never
    repeated. A capability with ``effect="once"`` is retried only after failures that its error
    class marks as transient.

    Args:
        max_retries: Maximum number of attempts after the first.
        base_delay: Delay before the second attempt in seconds.
        backoff_factor: Factor by which each further delay grows.
        max_delay: Maximum delay in seconds.
        exceptions_to_retry: Exception types, or their names, that are retried. Causes of the
            exception are checked too. A failure that is classified as permanent is retried only if
            its own type is listed; ``Exception`` is not enough.

    Raises:
        ValueError: A number is out of range.

    >>> rule = RetryBehavior(max_retries=5, base_delay=1, backoff_factor=2, max_delay=5)
    >>> [rule.delay(failures) for failures in (1, 2, 3, 4)]
    [1.0, 2.0, 4.0, 5.0]
    """

    stage = "retry"

    @validate_arguments
    def __init__(
        self,
        max_retries: int = 3,
        base_delay: float = 1,
        backoff_factor: float = 2,
        max_delay: float = 60,
        exceptions_to_retry: Sequence[type[BaseException] | str] | type[BaseException] | str = (
            Exception,
        ),
    ) -> None:
        check_number("max_retries", max_retries, integer=True)
        check_number("base_delay", base_delay)
        check_number("backoff_factor", backoff_factor)
        check_number("max_delay", max_delay)
        if isinstance(exceptions_to_retry, (str, type)):
            exceptions_to_retry = (exceptions_to_retry,)
        self.max_retries: int = int(max_retries)
        self.base_delay: float = float(base_delay)
        self.backoff_factor: float = float(backoff_factor)
        self.max_delay: float = float(max_delay)
        self.exceptions_to_retry: tuple[type[BaseException] | str, ...] = tuple(exceptions_to_retry)
        for kind in self.exceptions_to_retry:
            if not isinstance(kind, str) and not (
                isinstance(kind, type) and issubclass(kind, BaseException)
            ):
                raise ValueError(
                    f"Invalid exceptions_to_retry {kind!r} of {self!r}: expected an exception type."
                    " Fix: pass exception types or their names."
                )

    def __repr__(self) -> str:
        return f"RetryBehavior(max_retries={getattr(self, 'max_retries', '?')})"

    @property
    def max_attempts(self) -> int:
        """Maximum number of attempts, including the first."""
        return self.max_retries + 1

    def applies(self, error: BaseException | None, failure: Failure) -> bool:
        """Return True if this retry rule applies to a failure.

        Args:
            error: Exception, or ``None`` if it is unknown.
            failure: Classified failure.
        """
        is_transient = failure.severity is ErrorSeverity.RETRIABLE
        if error is None:
            return is_transient
        names = {
            name
            for raised in iter_causes(error)
            for kind in type(raised).__mro__
            for name in (kind, kind.__name__)
        }
        matching = names.intersection(self.exceptions_to_retry)
        specific = matching - {Exception, BaseException, "Exception", "BaseException"}
        return bool(specific) or (bool(matching) and (is_transient or failure.unclassified))

    def delay(self, failures: int) -> float:
        """Return the retry delay in seconds after a number of failures, up to ``max_delay``."""
        try:
            wait = self.base_delay * self.backoff_factor ** max(0, failures - 1)
        except OverflowError:
            wait = math.inf
        return min(wait, self.max_delay)

    def policy(self) -> dict[str, Any]:
        """Return this retry rule as a dictionary in the format of ``get_retry_policy``."""
        return {
            "max_attempts": self.max_attempts,
            "delay_seconds": min(self.base_delay, self.max_delay),
            "backoff_factor": self.backoff_factor,
        }


class NextAttempt(NamedTuple):
    """Number and delay of the next attempt after a failure.

    Attributes:
        number: Number of the attempt, starting at 2.
        max_attempts: Maximum number of attempts.
        delay: Delay before the attempt in seconds.
    """

    number: int
    max_attempts: int
    delay: float

    def event(self, name: str, message: str, key: str | None = None) -> telemetry.Retry:
        """Create the event that announces this retry attempt.

        Args:
            name: Name of the capability, node, or role.
            message: Failure message.
            key: Context key of the step.
        """
        return telemetry.Retry(
            name=name,
            context_key=key,
            attempt=self.number,
            max_attempts=self.max_attempts,
            delay=self.delay,
            message=message,
        )


def declared_max_attempts(cls: type[Any], limits: Limits) -> int:
    """Return the maximum number of attempts that a class declares, including the first."""
    return RetryPolicy.from_dict(declared_policy(cls), limits).max_attempts


def has_attempts_left(failure: Failure, limits: Limits, failures: int | None = None) -> bool:
    """Return True if a failure is transient and its retry policy allows further attempts.

    Args:
        failure: Classified failure.
        limits: Run limits.
        failures: Number of failed attempts. Defaults to ``failure.attempts``.
    """
    bound = RetryPolicy.from_dict(failure.retry_policy, limits).max_attempts
    used = failure.attempts if failures is None else failures
    return failure.severity is ErrorSeverity.RETRIABLE and used < bound


def is_retriable(failure: Failure, rule: RetryRule | None, error: BaseException | None) -> bool:
    """Return True if a failure may be retried under its class's policy or a retry rule.

    Args:
        failure: Classified failure.
        rule: Retry rule that replaces the class's retry policy.
        error: Exception, or ``None`` if it is unknown.
    """
    if rule is None:
        return failure.severity is ErrorSeverity.RETRIABLE
    return failure.severity is not ErrorSeverity.FATAL and rule.applies(error, failure)


def apply_retry_rule(failure: Failure, rule: RetryRule | None, error: Exception) -> Failure:
    """Set the severity and the retry policy of a node's failure according to a retry rule.

    Args:
        failure: Classified failure of the node.
        rule: Retry rule, or ``None`` to leave the failure unchanged.
        error: Exception of the node.
    """
    if rule is None or failure.severity is ErrorSeverity.FATAL:
        return failure
    severity = failure.severity
    if is_retriable(failure, rule, error):
        severity = ErrorSeverity.RETRIABLE
    elif severity is ErrorSeverity.RETRIABLE:
        severity = ErrorSeverity.CRITICAL
    return replace(failure, severity=severity, retry_policy=rule.policy())


def next_attempt(
    failure: Failure,
    failures: int,
    limits: Limits | None = None,
    rule: RetryRule | None = None,
    max_attempts: int | None = None,
) -> NextAttempt | None:
    """Return the next attempt after a transient failure, or ``None`` if none are left.

    Args:
        failure: Classified failure.
        failures: Number of failed attempts.
        limits: Run limits, or ``None`` for a call outside a run.
        rule: Retry rule that replaces the class's retry policy.
        max_attempts: Maximum number of attempts, overriding the rule or policy.
    """
    bounds = limits or Limits(max_retry_delay_seconds=sys.float_info.max)
    policy = rule or RetryPolicy.from_dict(failure.retry_policy, bounds)
    attempt_limit = policy.max_attempts if max_attempts is None else max_attempts
    if limits is not None:
        attempt_limit = min(attempt_limit, limits.max_attempts)
    if failures >= attempt_limit:
        return None
    retry_after = failure.metadata.get("retry_after_seconds")
    jitter = JITTER if rule is None else 0.0
    delay = retry_delay_seconds(policy, failures, bounds, retry_after=retry_after, jitter=jitter)
    return NextAttempt(failures + 1, attempt_limit, delay)


_JITTERS = ("none", "full", "equal", "decorrelated")


def backoff_delay(
    attempt: int,
    base: float = 2,
    jitter: str | bool = "decorrelated",
    cap: float = 60,
    prev_delay: float = 0,
    *,
    rng: random.Random | None = None,
) -> float:
    """Return the delay before the next attempt in seconds, with random jitter.

    Args:
        attempt: Number of the failed attempt. The delay without jitter is ``base ** attempt``.
        base: Base of the exponential growth, and minimum delay for ``decorrelated``.
        jitter: ``none``, ``full`` (from zero to the delay), ``equal`` (from half of the delay to
            the delay), or ``decorrelated`` (from ``base`` to three times the previous delay).
            ``True`` means ``full``, and ``False`` means ``none``.
        cap: Maximum delay, in seconds.
        prev_delay: Previous delay in seconds, for ``decorrelated``.
        rng: Random number generator for reproducible delays.

    Raises:
        ValueError: The jitter name is unknown.

    >>> backoff_delay(3, jitter="none")
    8.0
    >>> 2 <= backoff_delay(1, prev_delay=0.1) <= 60
    True
    """
    name = {True: "full", False: "none"}[jitter] if isinstance(jitter, bool) else jitter
    if name not in _JITTERS:
        raise ValueError(
            f"Invalid jitter {jitter!r}: unknown name."
            f" Fix: use one of {', '.join(map(repr, _JITTERS))}."
        )
    uniform = rng.uniform if rng is not None else random.uniform
    if name == "decorrelated":
        return min(float(cap), uniform(base, max(base, 3 * (prev_delay or base))))
    try:
        delay = min(float(cap), float(base) ** attempt)
    except OverflowError:
        delay = float(cap)
    if name == "none":
        return delay
    return uniform(0, delay) if name == "full" else delay / 2 + uniform(0, delay / 2)


def retry_delay_seconds(
    policy: RetryPolicy | RetryRule,
    failures: int,
    limits: Limits,
    *,
    retry_after: float | None = None,
    jitter: float = JITTER,
    rng: random.Random | None = None,
) -> float:
    """Return the delay in seconds before the next attempt, with limits and jitter applied.

    A ``Retry-After`` value from the server is the lower limit. The setting
    ``max_retry_delay_seconds`` is the upper limit. Jitter spreads the retries of clients that
    failed at the same time.

    Args:
        policy: Retry policy or rule.
        failures: Number of failed attempts.
        limits: Run limits.
        retry_after: Delay that the server requested, in seconds.
        jitter: Maximum random increase of the delay, as a fraction of the delay.
        rng: Random number generator for reproducible delays.

    >>> retry_delay_seconds(RetryPolicy(3, 100.0, 1.0), 1, Limits(max_retry_delay_seconds=2.0))
    2.0
    """
    source = rng.random if rng is not None else random.random
    spread = 1.0 + jitter * source()
    delay = policy.delay(failures) * spread
    if retry_after is not None:
        delay = max(delay, retry_after)
    return min(delay, limits.max_retry_delay_seconds)
