"""What an operator allows: permissions, policies, budgets, quality gates, recovery."""

from framework.base.approval_policy import ApprovalPolicy
from framework.base.ports import PermissionMode
from framework.governance.budget import Budget, BudgetExceededError, Reservation
from framework.governance.cedar import CedarPermissions
from framework.governance.flow import InformationFlow
from framework.governance.kill_switch import clear_stop, list_stops, stop
from framework.governance.permissions import (
    PermissionDeniedError,
    PermissionEnforcer,
    PermissionOutcome,
    PermissionPolicy,
    Permissions,
    RolePermissionConfig,
)
from framework.governance.quality import (
    QualityGate,
    QualityGateError,
    QualityGateOutcome,
    QualityLevel,
)
from framework.governance.recovery import (
    EscalationPolicy,
    FailureScenario,
    RecoveryContext,
    RecoveryEvent,
    RecoveryRecipe,
    RecoveryResult,
    RecoveryScenario,
    RecoveryStep,
    aattempt_recovery,
    attempt_recovery,
    classify_exception,
    next_provider,
    recipe_for,
    smaller_context_budget,
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
from framework.pipeline.retry_policy import backoff_delay

__all__ = [
    "ApprovalPolicy",
    "Budget",
    "BudgetExceededError",
    "CedarPermissions",
    "EscalationPolicy",
    "FailureScenario",
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
    "QualityGate",
    "QualityGateError",
    "QualityGateOutcome",
    "QualityLevel",
    "RecoveryContext",
    "RecoveryEvent",
    "RecoveryRecipe",
    "RecoveryResult",
    "RecoveryScenario",
    "RecoveryStep",
    "Reservation",
    "RolePermissionConfig",
    "UsageLimitExceededError",
    "UsageLimits",
    "aattempt_recovery",
    "attempt_recovery",
    "backoff_delay",
    "classify_exception",
    "clear_stop",
    "list_stops",
    "next_provider",
    "recipe_for",
    "smaller_context_budget",
    "stop",
]
