"""Limits of one session: what it may use, and when it must end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from capgraph.base.errors import LimitError, ValidationError
from capgraph.helpers.number_validation import check_number
from capgraph.telemetry.usage import UsageTracker


class UsageLimitExceededError(LimitError):
    """A session used more than it may.

    Attributes:
        limit_name: Name of the limit.
        observed: What was used; ``None`` for a cost that nobody knows.
        ceiling: What the limit allows.
    """

    limit_name: str = ""
    observed: float | None = None
    ceiling: float = 0


class GovernanceBreachError(LimitError):
    """A limit of a session was passed; the session ends, and nothing recovers it.

    Attributes:
        limit_name: Name of the limit.
        observed: What was counted.
        ceiling: What the limit allows.
    """

    limit_name: str = ""
    observed: float = 0
    ceiling: float = 0


@dataclass(frozen=True, slots=True)
class UsageLimits:
    """What a session may use; what is ``None`` has no limit.

    Attributes:
        request_tokens_max: Tokens of all prompts.
        response_tokens_max: Tokens of all answers.
        total_tokens_max: Both together.
        tool_calls_max: Calls of tools.
        cost_usd_max: US dollars; a cost that nobody knows counts as past it.

    Raises:
        ValidationError: A limit is negative or no number.

    >>> from capgraph.telemetry import UsageSnapshot, UsageTracker
    >>> tracker = UsageTracker()
    >>> tracker.record_turn("m", UsageSnapshot(input_tokens=5))
    >>> UsageLimits(total_tokens_max=5).check(tracker)
    """

    request_tokens_max: int | None = None
    response_tokens_max: int | None = None
    total_tokens_max: int | None = None
    tool_calls_max: int | None = None
    cost_usd_max: float | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if (value := getattr(self, name)) is not None:
                check_number(name, value)

    def check(self, tracker: UsageTracker) -> None:
        """Compare with what a session used.

        Raises:
            UsageLimitExceededError: It is past a limit.
        """
        prompts, answers = tracker.total_input_tokens, tracker.total_output_tokens
        seen: dict[str, float | None] = {
            "request_tokens_max": prompts,
            "response_tokens_max": answers,
            "total_tokens_max": prompts + answers,
            "tool_calls_max": tracker.total_tool_calls,
        }
        if self.cost_usd_max is not None:
            seen["cost_usd_max"] = tracker.total_cost()
        for name, observed in seen.items():
            ceiling = getattr(self, name)
            if ceiling is None or (observed is not None and observed <= ceiling):
                continue
            told = "a cost that nobody knows" if observed is None else f"{observed:g}"
            raise UsageLimitExceededError(
                f"The session used {told}, and {name} is {ceiling:g}.",
                fix=f"Raise {name}, or register_pricing(…) for its models."
                if observed is None
                else f"Raise {name}, or ask for less.",
                limit_name=name,
                observed=observed,
                ceiling=ceiling,
            )


@dataclass(slots=True)
class GovernanceState:
    """What a session has come to.

    Attributes:
        turns: Turns begun.
        tool_calls: Tools called.
        consecutive_failures: Failures since the last success.
        cost_usd: What it cost; a cost that nobody knows makes it endless.
    """

    turns: int = 0
    tool_calls: int = 0
    consecutive_failures: int = 0
    cost_usd: float = 0.0

    def record_turn_start(self) -> None:
        """Count a turn."""
        self.turns += 1

    def record_tool_call(self) -> None:
        """Count a call of a tool."""
        self.tool_calls += 1

    def record_failure(self) -> None:
        """Count a failure."""
        self.consecutive_failures += 1

    def record_success(self) -> None:
        """Begin to count failures anew."""
        self.consecutive_failures = 0

    def record_cost(self, cost_usd: float | None) -> None:
        """Add a cost; ``None`` for one that nobody knows."""
        self.cost_usd += math.inf if cost_usd is None else cost_usd


@dataclass(frozen=True, slots=True)
class SessionLimit:
    """A limit of a session; passed when more than ``value`` was counted.

    Attributes:
        value: The most that is allowed.
        scope: Of what; there is only the session.
        on_breach: ``terminate`` ends the session, ``alert`` only tells.
        name: What it is called.

    Raises:
        ValidationError: The value is negative or no number, or a word is unknown.
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
                f"scope is {self.scope!r}.", fix="Use 'session', or a Budget for other scopes."
            )
        if self.on_breach not in ("terminate", "alert"):
            raise ValidationError(
                f"on_breach is {self.on_breach!r}.", fix="Use 'terminate' or 'alert'."
            )


class MaxIterationsLimit(SessionLimit):
    """The most turns of a session."""

    counter: ClassVar[str] = "turns"
    default_name: ClassVar[str] = "max_iterations"


class MaxBudgetLimit(SessionLimit):
    """The most that a session may cost, in US dollars."""

    counter: ClassVar[str] = "cost_usd"
    default_name: ClassVar[str] = "max_budget_usd"


class MaxConsecutiveFailuresLimit(SessionLimit):
    """The most failures in a row."""

    counter: ClassVar[str] = "consecutive_failures"
    default_name: ClassVar[str] = "max_consecutive_failures"


class MaxToolCallsLimit(SessionLimit):
    """The most calls of tools."""

    counter: ClassVar[str] = "tool_calls"
    default_name: ClassVar[str] = "max_tool_calls"


@dataclass(frozen=True, slots=True)
class LimitOutcome:
    """How a session stands to a limit.

    Attributes:
        breached: Whether it was passed.
        limit_name: Name of the limit.
        observed: What was counted.
        ceiling: What the limit allows.
        scope: Of what it is a limit.
        on_breach: What then happens.
    """

    breached: bool
    limit_name: str
    observed: float
    ceiling: float
    scope: str
    on_breach: str


@dataclass(slots=True)
class GovernancePlane:
    """Limits of sessions. Each session counts for itself: :meth:`for_session`.

    Attributes:
        limits: The limits.
        state: What the session has come to.

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
        """Return the same limits with nothing counted."""
        return GovernancePlane(self.limits)

    def evaluate(self) -> list[LimitOutcome]:
        """Return how the session stands to each limit."""
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
        """Return how the session stands to each limit, those passed that only tell included.

        Raises:
            GovernanceBreachError: One was passed that ends the session.
        """
        found = self.evaluate()
        for outcome in found:
            if outcome.breached and outcome.on_breach == "terminate":
                raise GovernanceBreachError(
                    f"The session came to {outcome.observed:g}, and {outcome.limit_name} is"
                    f" {outcome.ceiling:g}.",
                    fix="Begin a new session, or raise the limit.",
                    limit_name=outcome.limit_name,
                    observed=outcome.observed,
                    ceiling=outcome.ceiling,
                )
        return found
