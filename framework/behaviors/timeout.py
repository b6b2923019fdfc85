"""Behavior that sets the time limit of an attempt."""

from __future__ import annotations

from capgraph.helpers.number_validation import check_number


class TimeoutBehavior:
    """Behavior that replaces a capability's ``timeout_seconds``.

    For a model call, it replaces ``limits.step_timeout_seconds``.

    Args:
        seconds: Time limit of one attempt.

    Raises:
        ValueError: ``seconds`` is not a positive number.

    >>> TimeoutBehavior(2.5).time_limit
    2.5
    """

    stage = "timeout"

    def __init__(self, seconds: float) -> None:
        check_number("seconds", seconds, above=0)
        self.time_limit: float = float(seconds)

    def __repr__(self) -> str:
        return f"TimeoutBehavior({getattr(self, 'time_limit', '?')})"
