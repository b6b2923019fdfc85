"""What an operator allows: permissions, policies, budgets, quality gates, recovery."""

from framework.base.approval_policy import ApprovalPolicy
from framework.base.ports import PermissionMode
from framework.governance.budget import Budget, BudgetExceededError, Reservation
from framework.governance.cedar import CedarPermissions
from framework.governance.flow import InformationFlow
from framework.governance.permissions import (
    PermissionDeniedError,
    PermissionEnforcer,
    PermissionOutcome,
    PermissionPolicy,
    Permissions,
    RolePermissionConfig,
)
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
    "ApprovalPolicy",
    "Budget",
    "BudgetExceededError",
    "CedarPermissions",
    "GovernanceBreachError",
    "GovernancePlane",
    "GovernanceState",
    "InformationFlow",
    "LimitOutcome",
    "MaxBudgetLimit",
    "MaxConsecutiveFailuresLimit",
    "MaxIterationsLimit",
    "MaxToolCallsLimit",
    "PermissionDeniedError",
    "PermissionEnforcer",
    "PermissionMode",
    "PermissionOutcome",
    "PermissionPolicy",
    "Permissions",
    "Reservation",
    "RolePermissionConfig",
    "UsageLimitExceededError",
    "UsageLimits",
]
