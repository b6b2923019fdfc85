"""What an operator allows: permissions, information flow, policies, budgets, quality gates, recovery."""

from typing import TYPE_CHECKING

from configs.lazy import contents

if TYPE_CHECKING:
    from framework.base.approval_policy import ApprovalPolicy as ApprovalPolicy
    from framework.base.ports import PermissionMode as PermissionMode
    from framework.governance.budget import Budget as Budget
    from framework.governance.budget import BudgetExceededError as BudgetExceededError
    from framework.governance.budget import Reservation as Reservation
    from framework.governance.cedar import CedarPermissions as CedarPermissions
    from framework.governance.estimate import PlanEstimate as PlanEstimate
    from framework.governance.flow import InformationFlow as InformationFlow
    from framework.governance.kill_switch import clear_stop as clear_stop
    from framework.governance.kill_switch import list_stops as list_stops
    from framework.governance.kill_switch import stop as stop
    from framework.governance.permissions import PermissionDeniedError as PermissionDeniedError
    from framework.governance.permissions import PermissionEnforcer as PermissionEnforcer
    from framework.governance.permissions import PermissionOutcome as PermissionOutcome
    from framework.governance.permissions import PermissionPolicy as PermissionPolicy
    from framework.governance.permissions import Permissions as Permissions
    from framework.governance.permissions import RolePermissionConfig as RolePermissionConfig
    from framework.governance.pilot import PilotRuntimeProfile as PilotRuntimeProfile
    from framework.governance.pilot import build_pilot_profile as build_pilot_profile
    from framework.governance.policies import AgentFailed as AgentFailed
    from framework.governance.policies import AllAgentsComplete as AllAgentsComplete
    from framework.governance.policies import And as And
    from framework.governance.policies import CostExceeded as CostExceeded
    from framework.governance.policies import GateBelow as GateBelow
    from framework.governance.policies import Or as Or
    from framework.governance.policies import PhaseCompleted as PhaseCompleted
    from framework.governance.policies import PhaseContext as PhaseContext
    from framework.governance.policies import PolicyAction as PolicyAction
    from framework.governance.policies import PolicyActionData as PolicyActionData
    from framework.governance.policies import PolicyCondition as PolicyCondition
    from framework.governance.policies import PolicyEngine as PolicyEngine
    from framework.governance.policies import PolicyRule as PolicyRule
    from framework.governance.policies import QualityAt as QualityAt
    from framework.governance.policies import RetryExhausted as RetryExhausted
    from framework.governance.policies import TimedOut as TimedOut
    from framework.governance.quality import QualityGate as QualityGate
    from framework.governance.quality import QualityGateError as QualityGateError
    from framework.governance.quality import QualityGateOutcome as QualityGateOutcome
    from framework.governance.quality import QualityLevel as QualityLevel
    from framework.governance.recovery import EscalationPolicy as EscalationPolicy
    from framework.governance.recovery import FailureScenario as FailureScenario
    from framework.governance.recovery import RecoveryContext as RecoveryContext
    from framework.governance.recovery import RecoveryEvent as RecoveryEvent
    from framework.governance.recovery import RecoveryRecipe as RecoveryRecipe
    from framework.governance.recovery import RecoveryResult as RecoveryResult
    from framework.governance.recovery import RecoveryScenario as RecoveryScenario
    from framework.governance.recovery import RecoveryStep as RecoveryStep
    from framework.governance.recovery import aattempt_recovery as aattempt_recovery
    from framework.governance.recovery import attempt_recovery as attempt_recovery
    from framework.governance.recovery import classify_exception as classify_exception
    from framework.governance.recovery import next_provider as next_provider
    from framework.governance.recovery import recipe_for as recipe_for
    from framework.governance.recovery import smaller_context_budget as smaller_context_budget
    from framework.governance.usage_limits import GovernanceBreachError as GovernanceBreachError
    from framework.governance.usage_limits import GovernancePlane as GovernancePlane
    from framework.governance.usage_limits import GovernanceState as GovernanceState
    from framework.governance.usage_limits import LimitOutcome as LimitOutcome
    from framework.governance.usage_limits import MaxBudgetLimit as MaxBudgetLimit
    from framework.governance.usage_limits import (
        MaxConsecutiveFailuresLimit as MaxConsecutiveFailuresLimit,
    )
    from framework.governance.usage_limits import MaxIterationsLimit as MaxIterationsLimit
    from framework.governance.usage_limits import MaxToolCallsLimit as MaxToolCallsLimit
    from framework.governance.usage_limits import UsageLimitExceededError as UsageLimitExceededError
    from framework.governance.usage_limits import UsageLimits as UsageLimits
    from framework.pipeline.retry_policy import backoff_delay as backoff_delay

__getattr__, __dir__ = contents(__name__)
