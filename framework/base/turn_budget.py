"""Counters that limit the work of one turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from capgraph.base.errors import LimitError


@dataclass(slots=True)
class TurnBudget:
    """Counters of one turn. The graph state contains them, so that a restart does not reset them.

    Attributes:
        model_calls: Number of chat model calls, failed ones included.
        plans: Number of plans, failed ones included.
        classifications: Number of capability selections.
        attempts: Number of step attempts.
        routings: Number of routing decisions.
        jumps: Number of attempts at steps outside a plan.
        model_switches: Number of switches to a fallback model by a policy.
        looks: Number of plan reviews.
        context_cuts: Number of times a policy shortened the conversation.
        allowed_attempts: Maximum number of step attempts. 0 means no limit.

    >>> TurnBudget.from_plain({"model_calls": 3}).to_plain()["model_calls"]
    3
    """

    model_calls: int = 0
    plans: int = 0
    classifications: int = 0
    attempts: int = 0
    routings: int = 0
    jumps: int = 0
    model_switches: int = 0
    context_cuts: int = 0
    looks: int = 0
    allowed_attempts: int = 0

    def count_attempt(self) -> None:
        """Count an attempt at a step toward the limit of the turn.

        Raises:
            LimitError: The turn has already used all of its step attempts.
        """
        if self.allowed_attempts and self.attempts >= self.allowed_attempts:
            raise LimitError(
                f"The turn has used all {self.attempts} step attempts that its plans may need.",
                fix="Raise limits.max_turn_attempts, or split the request.",
                facts={"attempts": self.attempts},
            )
        self.attempts += 1

    def uncount_attempt(self) -> None:
        """Undo the counting of an attempt that must not use up the turn's limit."""
        self.attempts -= 1

    def allow_more_attempts(self, count: int) -> None:
        """Increase the turn's limit on step attempts by the given number.

        Without a limit, this method does nothing.
        """
        if self.allowed_attempts:
            self.allowed_attempts += count

    @classmethod
    def from_plain(cls, data: Mapping[str, Any] | None) -> TurnBudget:
        """Create turn counters from the output of :meth:`to_plain`. Missing counters default to 0."""
        known = data or {}
        return cls(**{field.name: int(known.get(field.name, 0)) for field in fields(cls)})

    def to_plain(self) -> dict[str, int]:
        """Return the counters as plain data."""
        return asdict(self)
