"""Governance: permissions, information flow, policies, budgets, quality gates, and recovery."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.base.approval_policy import ApprovalPolicy as ApprovalPolicy
    from capgraph.base.ports import PermissionMode as PermissionMode
    from capgraph.governance.budget import Budget as Budget
    from capgraph.governance.budget import BudgetExceededError as BudgetExceededError
    from capgraph.governance.budget import Reservation as Reservation
    from capgraph.governance.cedar import CedarPermissions as CedarPermissions
    from capgraph.governance.information_flow import InformationFlow as InformationFlow
    from capgraph.governance.kill_switch import clear_stop as clear_stop
    from capgraph.governance.kill_switch import list_stops as list_stops
    from capgraph.governance.kill_switch import stop as stop
    from capgraph.governance.permissions import PermissionDeniedError as PermissionDeniedError
    from capgraph.governance.permissions import PermissionEnforcer as PermissionEnforcer
    from capgraph.governance.permissions import PermissionOutcome as PermissionOutcome
    from capgraph.governance.permissions import PermissionPolicy as PermissionPolicy
    from capgraph.governance.permissions import Permissions as Permissions
    from capgraph.governance.permissions import RolePermissionConfig as RolePermissionConfig
    from capgraph.governance.plan_estimate import PlanEstimate as PlanEstimate
    from capgraph.governance.policies import AgentFailed as AgentFailed
    from capgraph.governance.policies import AllAgentsComplete as AllAgentsComplete
    from capgraph.governance.policies import And as And
    from capgraph.governance.policies import CostExceeded as CostExceeded
    from capgraph.governance.policies import GateBelow as GateBelow
    from capgraph.governance.policies import Or as Or
    from capgraph.governance.policies import PhaseCompleted as PhaseCompleted
    from capgraph.governance.policies import PhaseContext as PhaseContext
    from capgraph.governance.policies import PolicyAction as PolicyAction
    from capgraph.governance.policies import PolicyActionData as PolicyActionData
    from capgraph.governance.policies import PolicyCondition as PolicyCondition
    from capgraph.governance.policies import PolicyEngine as PolicyEngine
    from capgraph.governance.policies import PolicyRule as PolicyRule
    from capgraph.governance.policies import QualityAt as QualityAt
    from capgraph.governance.policies import RetryExhausted as RetryExhausted
    from capgraph.governance.policies import TimedOut as TimedOut
    from capgraph.governance.quality_gate import QualityGate as QualityGate
    from capgraph.governance.quality_gate import QualityGateError as QualityGateError
    from capgraph.governance.quality_gate import QualityGateOutcome as QualityGateOutcome
    from capgraph.governance.quality_gate import QualityLevel as QualityLevel
    from capgraph.governance.recovery import EscalationPolicy as EscalationPolicy
    from capgraph.governance.recovery import FailureScenario as FailureScenario
    from capgraph.governance.recovery import RecoveryContext as RecoveryContext
    from capgraph.governance.recovery import RecoveryEvent as RecoveryEvent
    from capgraph.governance.recovery import RecoveryRecipe as RecoveryRecipe
    from capgraph.governance.recovery import RecoveryResult as RecoveryResult
    from capgraph.governance.recovery import RecoveryStep as RecoveryStep
    from capgraph.governance.recovery import aattempt_recovery as aattempt_recovery
    from capgraph.governance.recovery import attempt_recovery as attempt_recovery
    from capgraph.governance.recovery import classify_exception as classify_exception
    from capgraph.governance.recovery import next_provider as next_provider
    from capgraph.governance.recovery import recipe_for as recipe_for
    from capgraph.governance.recovery import smaller_context_budget as smaller_context_budget
    from capgraph.pipeline.retry_policy import backoff_delay as backoff_delay

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.base.approval_policy": ("ApprovalPolicy",),
        "capgraph.base.ports": ("PermissionMode",),
        "capgraph.governance.budget": ("Budget", "BudgetExceededError", "Reservation"),
        "capgraph.governance.cedar": ("CedarPermissions",),
        "capgraph.governance.plan_estimate": ("PlanEstimate",),
        "capgraph.governance.information_flow": ("InformationFlow",),
        "capgraph.governance.kill_switch": ("clear_stop", "list_stops", "stop"),
        "capgraph.governance.permissions": (
            "PermissionDeniedError",
            "PermissionEnforcer",
            "PermissionOutcome",
            "PermissionPolicy",
            "Permissions",
            "RolePermissionConfig",
        ),
        "capgraph.governance.policies": (
            "AgentFailed",
            "AllAgentsComplete",
            "And",
            "CostExceeded",
            "GateBelow",
            "Or",
            "PhaseCompleted",
            "PhaseContext",
            "PolicyAction",
            "PolicyActionData",
            "PolicyCondition",
            "PolicyEngine",
            "PolicyRule",
            "QualityAt",
            "RetryExhausted",
            "TimedOut",
        ),
        "capgraph.governance.quality_gate": (
            "QualityGate",
            "QualityGateError",
            "QualityGateOutcome",
            "QualityLevel",
        ),
        "capgraph.governance.recovery": (
            "EscalationPolicy",
            "FailureScenario",
            "RecoveryContext",
            "RecoveryEvent",
            "RecoveryRecipe",
            "RecoveryResult",
            "RecoveryStep",
            "aattempt_recovery",
            "attempt_recovery",
            "classify_exception",
            "next_provider",
            "recipe_for",
            "smaller_context_budget",
        ),
        "capgraph.pipeline.retry_policy": ("backoff_delay",),
    },
)
