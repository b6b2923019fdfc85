"""Behavior that sets the time limit of an attempt."""

from __future__ import annotations

from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.number_validation import check_number


class TimeoutBehavior:
    """Behavior that overrides the attempt timeout of a capability or model call.

    For a capability, it overrides ``timeout_seconds``; for a model call, it overrides
    ``limits.step_timeout_seconds``.

    Args:
        seconds: Time limit of one attempt.

    Raises:
        ValueError: ``seconds`` is not a positive number.

    >>> TimeoutBehavior(2.5).time_limit
    2.5
    """

    stage = "timeout"

    @validate_arguments
    def __init__(self, seconds: float) -> None:
        check_number("seconds", seconds, above=0)
        self.time_limit: float = float(seconds)

    def __repr__(self) -> str:
        return f"TimeoutBehavior({getattr(self, 'time_limit', '?')})"
