"""What an operator allows: permissions, policies, budgets, quality gates, recovery."""

from framework.governance.budget import Budget, BudgetExceededError, Reservation
from framework.governance.usage_limits import (
    GovernanceBreachError,
    GovernancePlane,
    GovernanceState,
    LimitOutcome,
    MaxBudgetLimit,
    MaxConsecutiveFailuresLimit,
    MaxIterationsLimit,
    MaxToolCallsLimit,
    UsageLimitExceededError,
    UsageLimits,
)

__all__ = [
    "Budget",
    "BudgetExceededError",
    "GovernanceBreachError",
    "GovernancePlane",
    "GovernanceState",
    "LimitOutcome",
    "MaxBudgetLimit",
    "MaxConsecutiveFailuresLimit",
    "MaxIterationsLimit",
    "MaxToolCallsLimit",
    "Reservation",
    "UsageLimitExceededError",
    "UsageLimits",
]
