"""What a user subclasses, writes or receives: capabilities, nodes, plans, context, errors."""

from framework.base.approval_policy import ApprovalPolicy
from framework.base.capability import BaseCapability
from framework.base.classify import ErrorClassification
from framework.base.context import CapabilityContext
from framework.base.decorators import capability_node, infrastructure_node
from framework.base.errors import (
    AskAgain,
    CapabilityError,
    CapgraphError,
    ConfigurationError,
    ErrorSeverity,
    FatalExecutionError,
    InfrastructureError,
    LimitError,
    MissingExtraError,
    ModelError,
    PersistenceError,
    PlanError,
    PolicyError,
    RegistryError,
    StoppedError,
    ThreadBusyError,
    ValidationError,
    require_extra,
)
from framework.base.guides import (
    BaseExample,
    ClassifierActions,
    ClassifierExample,
    OrchestratorExample,
    OrchestratorGuide,
    TaskClassifierGuide,
)
from framework.base.infrastructure import BaseInfrastructureNode
from framework.base.injected import AttemptNumber, IdempotencyKey, Progress, StepSettings
from framework.base.plan import (
    ExecutionPlan,
    PlannedStep,
    load_execution_plan_from_file,
    save_execution_plan_to_file,
)
from framework.base.results import CapabilityMatch, ExecutionError, ExecutionRecord, ExecutionResult
from framework.base.spec import (
    CapabilitySpec,
    Declarations,
    Effect,
    InfrastructureSpec,
    OnUnknown,
    Requirement,
)
from framework.base.step_context import StepContext
from framework.base.undo import DoneStep, Undo

__all__ = [
    "ApprovalPolicy",
    "AskAgain",
    "AttemptNumber",
    "BaseCapability",
    "BaseExample",
    "BaseInfrastructureNode",
    "CapabilityContext",
    "CapabilityError",
    "CapabilityMatch",
    "CapabilitySpec",
    "CapgraphError",
    "ClassifierActions",
    "ClassifierExample",
    "ConfigurationError",
    "Declarations",
    "DoneStep",
    "Effect",
    "ErrorClassification",
    "ErrorSeverity",
    "ExecutionError",
    "ExecutionPlan",
    "ExecutionRecord",
    "ExecutionResult",
    "FatalExecutionError",
    "IdempotencyKey",
    "InfrastructureError",
    "InfrastructureSpec",
    "LimitError",
    "MissingExtraError",
    "ModelError",
    "OnUnknown",
    "OrchestratorExample",
    "OrchestratorGuide",
    "PersistenceError",
    "PlanError",
    "PlannedStep",
    "PolicyError",
    "Progress",
    "RegistryError",
    "Requirement",
    "StepContext",
    "StepSettings",
    "StoppedError",
    "TaskClassifierGuide",
    "ThreadBusyError",
    "Undo",
    "ValidationError",
    "capability_node",
    "infrastructure_node",
    "load_execution_plan_from_file",
    "require_extra",
    "save_execution_plan_to_file",
]
