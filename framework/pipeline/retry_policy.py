"""Rules of retries: which failure is worth another try, how many there are, and the wait before each.

Steps, infrastructure nodes, and model calls follow the same rules. :mod:`capgraph.pipeline.retry` runs
the tries.
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
from capgraph.configs.logger import get_logger
from capgraph.configs.settings_model import Limits
from capgraph.helpers.number_validation import check_number
from capgraph.helpers.plain_data import to_plain

JITTER = 0.1


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long.

    Attributes:
        max_attempts: Total tries, the first included.
        delay_seconds: Wait before the second try, in seconds.
        backoff_factor: Each further wait is this many times the one before.

    >>> RetryPolicy(3, 0.5, 2.0).delay(2)
    1.0
    """

    max_attempts: int = 3
    delay_seconds: float = 0.5
    backoff_factor: float = 1.5

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None, limits: Limits) -> RetryPolicy:
        """Read what ``get_retry_policy`` returned; nonsense falls back to one try."""
        given = values or {}
        try:
            wanted = float(given.get("max_attempts", 1))
            attempts = limits.max_attempts if wanted == math.inf else int(wanted)
            delay = float(given.get("delay_seconds", 0.0))
            factor = float(given.get("backoff_factor", 1.0))
        except (TypeError, ValueError, OverflowError):
            return cls(1, 0.0, 1.0)
        return cls(max(1, min(attempts, limits.max_attempts)), max(0.0, delay), max(0.0, factor))

    def delay(self, failures: int) -> float:
        """Return the wait in seconds after this many failures, before cap and jitter."""
        try:
            return self.delay_seconds * self.backoff_factor ** max(0, failures - 1)
        except OverflowError:
            return math.inf


def declared_policy(cls: type[Any]) -> dict[str, Any]:
    """Return what a class says about its retries, as plain data; ``{}`` when it says nonsense.

    The failure that is being reported must not be hidden by a second one, in the policy.
    """
    try:
        policy = cls.get_retry_policy()
    except Exception as exc:
        get_logger("framework", "retry").error(
            "get_retry_policy of %s raised %r; it is not tried again", cls.__name__, exc
        )
        return {}
    return to_plain(policy, lenient=True) if isinstance(policy, Mapping) else {}


class RetryBehavior:
    """Tries again what failed, in place of the capability's own policy.

    It counts nothing itself: tries and waits stand in the turn's records, outlive a restart, and
    each one passes rate limits, breakers and guards again. What acted is never repeated, and of a
    capability that acts once only what says of itself that it may pass is tried again.

    Args:
        max_retries: Tries after the first.
        base_delay: Seconds before the second try.
        backoff_factor: Each further wait is this many times the one before.
        max_delay: Longest wait.
        exceptions_to_retry: Types, or names of types, of what is tried again, here or along its
            causes. What was classified as something else than passing is tried again only if its
            own type, and not just ``Exception``, is among them.

    Raises:
        ValueError: A number is out of range.

    >>> rule = RetryBehavior(max_retries=5, base_delay=1, backoff_factor=2, max_delay=5)
    >>> [rule.delay(failures) for failures in (1, 2, 3, 4)]
    [1.0, 2.0, 4.0, 5.0]
    """

    stage = "retry"

    def __init__(
        self,
        max_retries: int = 3,
        base_delay: float = 1,
        backoff_factor: float = 2,
        max_delay: float = 60,
        exceptions_to_retry: Sequence[type[BaseException] | str] = (Exception,),
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
                    f"exceptions_to_retry of {self!r} holds {kind!r}. Fix: give types of exceptions."
                )

    def __repr__(self) -> str:
        return f"RetryBehavior(max_retries={getattr(self, 'max_retries', '?')})"

    @property
    def max_attempts(self) -> int:
        """Tries in all, the first included."""
        return self.max_retries + 1

    def applies(self, error: BaseException | None, failure: Failure) -> bool:
        """Tell whether a failure is worth another try.

        Args:
            error: What was raised; ``None`` when nobody knows.
            failure: What it was read as.
        """
        passing = failure.severity is ErrorSeverity.RETRIABLE
        if error is None:
            return passing
        names = {
            name
            for raised in iter_causes(error)
            for kind in type(raised).__mro__
            for name in (kind, kind.__name__)
        }
        listed = names.intersection(self.exceptions_to_retry)
        own = listed - {Exception, BaseException, "Exception", "BaseException"}
        return bool(own) or (bool(listed) and (passing or failure.unclassified))

    def delay(self, failures: int) -> float:
        """Return how long to wait after so many failures, in seconds."""
        try:
            wait = self.base_delay * self.backoff_factor ** max(0, failures - 1)
        except OverflowError:
            wait = math.inf
        return min(wait, self.max_delay)

    def policy(self) -> dict[str, Any]:
        """Return the same in the form of ``get_retry_policy``."""
        return {
            "max_attempts": self.max_attempts,
            "delay_seconds": min(self.base_delay, self.max_delay),
            "backoff_factor": self.backoff_factor,
        }


class NextAttempt(NamedTuple):
    """A further try.

    Attributes:
        number: Its number, from 2.
        max_attempts: The most tries there are.
        delay: Seconds before it.
    """

    number: int
    max_attempts: int
    delay: float

    def event(self, name: str, message: str, key: str | None = None) -> telemetry.Retry:
        """Return the event that announces the try.

        Args:
            name: The capability, node, or role that is tried again.
            message: Message of the failure.
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
    """Return how many tries a class declares, the first included."""
    return RetryPolicy.from_dict(declared_policy(cls), limits).max_attempts


def has_attempts_left(failure: Failure, limits: Limits, failures: int | None = None) -> bool:
    """Return whether a failure may pass and its class declares further tries.

    Args:
        failure: The failure.
        limits: Bounds of a run.
        failures: Failed tries so far; those of the failure when not given.
    """
    bound = RetryPolicy.from_dict(failure.retry_policy, limits).max_attempts
    used = failure.attempts if failures is None else failures
    return failure.severity is ErrorSeverity.RETRIABLE and used < bound


def is_retriable(failure: Failure, rule: RetryRule | None, error: BaseException | None) -> bool:
    """Return whether a failure may pass, by its class or by a rule in place of that.

    Args:
        failure: The failure.
        rule: Rule in place of the class's own policy.
        error: The exception; ``None`` when nobody knows.
    """
    if rule is None:
        return failure.severity is ErrorSeverity.RETRIABLE
    return failure.severity is not ErrorSeverity.FATAL and rule.applies(error, failure)


def apply_retry_rule(failure: Failure, rule: RetryRule | None, error: Exception) -> Failure:
    """Return a failure of a node with the severity and the policy that a rule gives it."""
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
    """Return the next try after a failure that may pass; ``None`` when there is none.

    Args:
        failure: The failure.
        failures: Failed tries so far.
        limits: Bounds of a run; ``None`` for a call that no run bounds.
        rule: Rule in place of the class's own policy.
        max_attempts: The most tries, in place of those of the rule or the policy.
    """
    bounds = limits or Limits(max_retry_delay_seconds=sys.float_info.max)
    policy = rule or RetryPolicy.from_dict(failure.retry_policy, bounds)
    most = policy.max_attempts if max_attempts is None else max_attempts
    if limits is not None:
        most = min(most, limits.max_attempts)
    if failures >= most:
        return None
    asked = failure.metadata.get("retry_after_seconds")
    jitter = JITTER if rule is None else 0.0
    delay = retry_delay_seconds(policy, failures, bounds, retry_after=asked, jitter=jitter)
    return NextAttempt(failures + 1, most, delay)


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
    """Return how long to wait before a further try, in seconds, spread by chance.

    Args:
        attempt: Which try failed; the wait without jitter is ``base ** attempt``.
        base: Growth of the wait; of ``decorrelated`` its least.
        jitter: ``none``, ``full`` (up to the wait), ``equal`` (from half of it up) or
            ``decorrelated`` (between ``base`` and three times the last wait); ``True`` is ``full``
            and ``False`` is ``none``.
        cap: Upper bound.
        prev_delay: The last wait, for ``decorrelated``.
        rng: Source of chance.

    Raises:
        ValueError: The jitter is none of these.

    >>> backoff_delay(3, jitter="none")
    8.0
    >>> 2 <= backoff_delay(1, prev_delay=0.1) <= 60
    True
    """
    name = {True: "full", False: "none"}[jitter] if isinstance(jitter, bool) else jitter
    if name not in _JITTERS:
        raise ValueError(
            f"{jitter!r} is no jitter. Fix: use one of {', '.join(map(repr, _JITTERS))}."
        )
    uniform = rng.uniform if rng is not None else random.uniform
    if name == "decorrelated":
        return min(float(cap), uniform(base, max(base, 3 * (prev_delay or base))))
    try:
        whole = min(float(cap), float(base) ** attempt)
    except OverflowError:
        whole = float(cap)
    if name == "none":
        return whole
    return uniform(0, whole) if name == "full" else whole / 2 + uniform(0, whole / 2)


def retry_delay_seconds(
    policy: RetryPolicy | RetryRule,
    failures: int,
    limits: Limits,
    *,
    retry_after: float | None = None,
    jitter: float = JITTER,
    rng: random.Random | None = None,
) -> float:
    """Return how long to wait before the next try.

    What the other side asked for (``Retry-After``) is a lower bound; the setting
    ``max_retry_delay_seconds`` is the upper one. Jitter spreads clients that failed together.

    >>> retry_delay_seconds(RetryPolicy(3, 100.0, 1.0), 1, Limits(max_retry_delay_seconds=2.0))
    2.0
    """
    source = rng.random if rng is not None else random.random
    spread = 1.0 + jitter * source()
    delay = policy.delay(failures) * spread
    if retry_after is not None:
        delay = max(delay, retry_after)
    return min(delay, limits.max_retry_delay_seconds)
