"""Limits that end a session."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from capgraph.base.errors import LimitError, ValidationError
from capgraph.helpers.number_validation import check_number


class GovernanceBreachError(LimitError):
    """Raised if a session exceeds a limit that permanently ends the session.

    Attributes:
        limit_name: Name of the limit.
        observed: Amount counted.
        ceiling: Value of the limit.
        scope: Scope of the limit, which is always ``session``.
    """

    limit_name: str = ""
    observed: float = 0
    ceiling: float = 0
    scope: str = "session"


@dataclass(slots=True)
class GovernanceState:
    """Counters for the turns, tool calls, failures, and cost of a session.

    Attributes:
        turns: Number of started turns.
        tool_calls: Number of tool calls.
        consecutive_failures: Number of failures since the last success.
        cost_usd: Cost in US dollars; infinite if a cost is unknown.
    """

    turns: int = 0
    tool_calls: int = 0
    consecutive_failures: int = 0
    cost_usd: float = 0.0

    def record_turn_start(self) -> None:
        """Count the start of a turn."""
        self.turns += 1

    def record_tool_call(self) -> None:
        """Count a tool call."""
        self.tool_calls += 1

    def record_failure(self) -> None:
        """Count a failure."""
        self.consecutive_failures += 1

    def record_success(self) -> None:
        """Reset the count of consecutive failures."""
        self.consecutive_failures = 0

    def record_cost(self, cost_usd: float | None) -> None:
        """Add a cost in US dollars to the session total, or ``None`` for an unknown cost."""
        self.cost_usd += math.inf if cost_usd is None else cost_usd


@dataclass(frozen=True, slots=True)
class SessionLimit:
    """Limit on a counter of a session, which is breached if the counter exceeds ``value``.

    Attributes:
        value: Maximum of the counter.
        scope: Scope of the limit, which is always ``session``.
        on_breach: ``terminate`` ends the session, ``alert`` only emits an event.
        name: Name of the limit.

    Raises:
        ValidationError: The value is negative or not a number, or another field is invalid.
    """

    value: float
    scope: Literal["session"] = "session"
    on_breach: Literal["terminate", "alert"] = "terminate"
    name: str = ""
    counter: ClassVar[str] = ""
    default_name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.default_name)
        check_number(self.name, self.value)
        if self.scope != "session":
            raise ValidationError(
                f"The scope {self.scope!r} is not supported.",
                fix="Use 'session', or a Budget for other scopes.",
            )
        if self.on_breach not in ("terminate", "alert"):
            raise ValidationError(
                f"on_breach is {self.on_breach!r}, which is not supported.",
                fix="Use 'terminate' or 'alert'.",
            )


class MaxIterationsLimit(SessionLimit):
    """Limit on the number of turns in a session."""

    counter: ClassVar[str] = "turns"
    default_name: ClassVar[str] = "max_iterations"


class MaxBudgetLimit(SessionLimit):
    """Limit on the cost of a session in US dollars."""

    counter: ClassVar[str] = "cost_usd"
    default_name: ClassVar[str] = "max_budget_usd"


class MaxConsecutiveFailuresLimit(SessionLimit):
    """Limit on the number of consecutive failures in a session."""

    counter: ClassVar[str] = "consecutive_failures"
    default_name: ClassVar[str] = "max_consecutive_failures"


class MaxToolCallsLimit(SessionLimit):
    """Limit on the number of tool calls in a session."""

    counter: ClassVar[str] = "tool_calls"
    default_name: ClassVar[str] = "max_tool_calls"


@dataclass(frozen=True, slots=True)
class LimitOutcome:
    """Result of comparing a session counter with its limit.

    Attributes:
        breached: True if the count exceeds the limit.
        limit_name: Name of the limit.
        observed: Value of the counter.
        ceiling: Value of the limit.
        scope: Scope of the limit.
        on_breach: Reaction to a breach.
    """

    breached: bool
    limit_name: str
    observed: float
    ceiling: float
    scope: str
    on_breach: str


@dataclass(slots=True)
class GovernancePlane:
    """Limits and usage counters of a session.

    Use :meth:`for_session` to count each session separately.

    Attributes:
        limits: Limits to enforce.
        state: Counters of the session.

    >>> plane = GovernancePlane([MaxToolCallsLimit(1)]).for_session()
    >>> plane.state.record_tool_call()
    >>> [outcome.breached for outcome in plane.enforce()]
    [False]
    """

    limits: Iterable[SessionLimit]
    state: GovernanceState = field(default_factory=GovernanceState)

    def __post_init__(self) -> None:
        self.limits = tuple(self.limits)

    def for_session(self) -> GovernancePlane:
        """Return a copy with the same session limits and with all counters reset."""
        return GovernancePlane(self.limits)

    def evaluate(self) -> list[LimitOutcome]:
        """Compare each session counter with its limit and return the results."""
        return [
            LimitOutcome(
                breached=(observed := getattr(self.state, limit.counter)) > limit.value,
                limit_name=limit.name,
                observed=observed,
                ceiling=limit.value,
                scope=limit.scope,
                on_breach=limit.on_breach,
            )
            for limit in self.limits
        ]

    def enforce(self) -> list[LimitOutcome]:
        """Compare each session counter with its limit, raising an error if the session must end.

        Return the results of all comparisons. A breached limit that only alerts does not raise an
        error.

        Raises:
            GovernanceBreachError: A limit that ends the session was breached.
        """
        found = self.evaluate()
        for outcome in found:
            if outcome.breached and outcome.on_breach == "terminate":
                raise GovernanceBreachError(
                    f"The session counter reached {outcome.observed:g}, which exceeds the limit "
                    f"{outcome.limit_name}={outcome.ceiling:g}.",
                    fix="Start a new session, or raise the limit.",
                    limit_name=outcome.limit_name,
                    observed=outcome.observed,
                    ceiling=outcome.ceiling,
                )
        return found
