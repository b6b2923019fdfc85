"""What an operator allows: permissions, information flow, policies, budgets, quality gates, recovery."""

from typing import TYPE_CHECKING

from configs.lazy import found_in

if TYPE_CHECKING:
    from framework.base.approval_policy import ApprovalPolicy
    from framework.base.ports import PermissionMode
    from framework.governance.budget import Budget, BudgetExceededError, Reservation
    from framework.governance.cedar import CedarPermissions
    from framework.governance.estimate import PlanEstimate
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
    from framework.governance.pilot import PilotRuntimeProfile, build_pilot_profile
    from framework.governance.policies import (
        AgentFailed,
        AllAgentsComplete,
        And,
        CostExceeded,
        GateBelow,
        Or,
        PhaseCompleted,
        PhaseContext,
        PolicyAction,
        PolicyActionData,
        PolicyCondition,
        PolicyEngine,
        PolicyRule,
        QualityAt,
        RetryExhausted,
        TimedOut,
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
    "AgentFailed",
    "AllAgentsComplete",
    "And",
    "ApprovalPolicy",
    "Budget",
    "BudgetExceededError",
    "CedarPermissions",
    "CostExceeded",
    "EscalationPolicy",
    "FailureScenario",
    "GateBelow",
    "GovernanceBreachError",
    "GovernancePlane",
    "GovernanceState",
    "InformationFlow",
    "LimitOutcome",
    "MaxBudgetLimit",
    "MaxConsecutiveFailuresLimit",
    "MaxIterationsLimit",
    "MaxToolCallsLimit",
    "Or",
    "PermissionDeniedError",
    "PermissionEnforcer",
    "PermissionMode",
    "PermissionOutcome",
    "PermissionPolicy",
    "Permissions",
    "PhaseCompleted",
    "PhaseContext",
    "PilotRuntimeProfile",
    "PlanEstimate",
    "PolicyAction",
    "PolicyActionData",
    "PolicyCondition",
    "PolicyEngine",
    "PolicyRule",
    "QualityAt",
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
    "RetryExhausted",
    "RolePermissionConfig",
    "TimedOut",
    "UsageLimitExceededError",
    "UsageLimits",
    "aattempt_recovery",
    "attempt_recovery",
    "backoff_delay",
    "build_pilot_profile",
    "classify_exception",
    "clear_stop",
    "list_stops",
    "next_provider",
    "recipe_for",
    "smaller_context_budget",
    "stop",
]

_PARTS = (
    "framework.base.ports",
    "framework.base.approval_policy",
    "framework.pipeline.retry_policy",
    "estimate",
    "permissions",
    "quality",
    "budget",
    "policies",
    "flow",
    "kill_switch",
    "recovery",
    "usage_limits",
    "cedar",
    "pilot",
)
__getattr__, __dir__ = found_in(__name__, _PARTS, __all__)
