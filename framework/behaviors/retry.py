"""How often and how long something is tried: rules that take the place of a class's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from capgraph.base.classify import cause_chain
from capgraph.base.errors import ErrorSeverity
from capgraph.base.numbers import check_number
from capgraph.base.ports import Failure


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
        check_number("max_retries", max_retries, whole=True)
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
            for raised in cause_chain(error)
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


class TimeoutBehavior:
    """Ends a try that takes too long, in place of the capability's own ``timeout_seconds``.

    Of a model call it is the time of one answer, in place of ``limits.step_timeout_seconds``.

    Args:
        seconds: Time of one try.

    Raises:
        ValueError: It is no positive number.

    >>> TimeoutBehavior(2.5).time_limit
    2.5
    """

    stage = "timeout"

    def __init__(self, seconds: float) -> None:
        check_number("seconds", seconds, above=0)
        self.time_limit: float = float(seconds)

    def __repr__(self) -> str:
        return f"TimeoutBehavior({getattr(self, 'time_limit', '?')})"
