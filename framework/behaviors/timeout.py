"""Time limits of tries, which take the place of a capability's own."""

from __future__ import annotations

from capgraph.helpers.number_validation import check_number


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
