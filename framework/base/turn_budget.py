"""What a turn has used up of the bounds that no node can reset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from capgraph.base.errors import LimitError


@dataclass(slots=True)
class TurnBudget:
    """Counters of one turn; they go through the state, so that they outlive a restart.

    Attributes:
        model_calls: Calls of chat models, those that failed included.
        plans: Plans made, those whose making failed included.
        classifications: Times the capabilities were chosen.
        attempts: Tries of steps.
        routings: Decisions of the router.
        jumps: Tries of steps that no plan holds.
        model_switches: How often a policy had the turn go on with its next model.
        looks: How often the rest of a plan was looked at again.
        context_cuts: How often a policy had the turn go on with a shorter conversation.
        allowed_attempts: How many of these the accepted plans can need; 0 for no bound yet.

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
        """Take one try of a step.

        Raises:
            LimitError: The turn has made all tries that its plans can need.
        """
        if self.allowed_attempts and self.attempts >= self.allowed_attempts:
            raise LimitError(
                f"The turn has made {self.attempts} tries of steps, which is all that its plans can"
                " need.",
                fix="Raise limits.max_turn_attempts, or ask for less at once.",
            )
        self.attempts += 1

    def uncount_attempt(self) -> None:
        """Give back a try that did not count."""
        self.attempts -= 1

    def allow_more_attempts(self, more: int) -> None:
        """Allow tries beyond those that the plans can need; without a bound nothing changes."""
        if self.allowed_attempts:
            self.allowed_attempts += more

    @classmethod
    def from_plain(cls, data: Mapping[str, Any] | None) -> TurnBudget:
        """Read counters from the state; what is not there is 0."""
        known = data or {}
        return cls(**{field.name: int(known.get(field.name, 0)) for field in fields(cls)})

    def to_plain(self) -> dict[str, int]:
        """Return the counters for the state."""
        return asdict(self)
