"""Classes that authors subclass, write, or receive: capabilities, nodes, plans, contexts, and errors."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.base.approval_policy import ApprovalPolicy as ApprovalPolicy
    from capgraph.base.argument_injection import AttemptNumber as AttemptNumber
    from capgraph.base.argument_injection import IdempotencyKey as IdempotencyKey
    from capgraph.base.argument_injection import Progress as Progress
    from capgraph.base.argument_injection import StepSettings as StepSettings
    from capgraph.base.capability import BaseCapability as BaseCapability
    from capgraph.base.context import CapabilityContext as CapabilityContext
    from capgraph.base.context import ResultFile as ResultFile
    from capgraph.base.decorators import capability_node as capability_node
    from capgraph.base.decorators import infrastructure_node as infrastructure_node
    from capgraph.base.error_classification import ErrorClassification as ErrorClassification
    from capgraph.base.errors import AskAgain as AskAgain
    from capgraph.base.errors import CapabilityError as CapabilityError
    from capgraph.base.errors import CapgraphError as CapgraphError
    from capgraph.base.errors import ConfigurationError as ConfigurationError
    from capgraph.base.errors import ErrorSeverity as ErrorSeverity
    from capgraph.base.errors import FatalExecutionError as FatalExecutionError
    from capgraph.base.errors import InfrastructureError as InfrastructureError
    from capgraph.base.errors import LimitError as LimitError
    from capgraph.base.errors import MissingExtraError as MissingExtraError
    from capgraph.base.errors import ModelError as ModelError
    from capgraph.base.errors import PersistenceError as PersistenceError
    from capgraph.base.errors import PlanError as PlanError
    from capgraph.base.errors import PolicyError as PolicyError
    from capgraph.base.errors import RegistryError as RegistryError
    from capgraph.base.errors import StoppedError as StoppedError
    from capgraph.base.errors import ThreadBusyError as ThreadBusyError
    from capgraph.base.errors import ValidationError as ValidationError
    from capgraph.base.errors import require_extra as require_extra
    from capgraph.base.guides import BaseExample as BaseExample
    from capgraph.base.guides import ClassifierActions as ClassifierActions
    from capgraph.base.guides import ClassifierExample as ClassifierExample
    from capgraph.base.guides import OrchestratorExample as OrchestratorExample
    from capgraph.base.guides import OrchestratorGuide as OrchestratorGuide
    from capgraph.base.guides import TaskClassifierGuide as TaskClassifierGuide
    from capgraph.base.infrastructure import BaseInfrastructureNode as BaseInfrastructureNode
    from capgraph.base.plan import ExecutionPlan as ExecutionPlan
    from capgraph.base.plan import PlannedStep as PlannedStep
    from capgraph.base.plan import load_execution_plan_from_file as load_execution_plan_from_file
    from capgraph.base.plan import save_execution_plan_to_file as save_execution_plan_to_file
    from capgraph.base.ports import Caller as Caller
    from capgraph.base.ports import Verdict as Verdict
    from capgraph.base.results import CapabilityMatch as CapabilityMatch
    from capgraph.base.results import ExecutionError as ExecutionError
    from capgraph.base.results import ExecutionRecord as ExecutionRecord
    from capgraph.base.results import ExecutionResult as ExecutionResult
    from capgraph.base.spec import CapabilitySpec as CapabilitySpec
    from capgraph.base.spec import Declarations as Declarations
    from capgraph.base.spec import Effect as Effect
    from capgraph.base.spec import InfrastructureSpec as InfrastructureSpec
    from capgraph.base.spec import OnUnknown as OnUnknown
    from capgraph.base.spec import Requirement as Requirement
    from capgraph.base.step_context import StepContext as StepContext
    from capgraph.base.undo import DoneStep as DoneStep
    from capgraph.base.undo import Undo as Undo

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.base.approval_policy": ("ApprovalPolicy",),
        "capgraph.base.capability": ("BaseCapability",),
        "capgraph.base.error_classification": ("ErrorClassification",),
        "capgraph.base.context": ("CapabilityContext", "ResultFile"),
        "capgraph.base.decorators": ("capability_node", "infrastructure_node"),
        "capgraph.base.errors": (
            "AskAgain",
            "CapabilityError",
            "CapgraphError",
            "ConfigurationError",
            "ErrorSeverity",
            "FatalExecutionError",
            "InfrastructureError",
            "LimitError",
            "MissingExtraError",
            "ModelError",
            "PersistenceError",
            "PlanError",
            "PolicyError",
            "RegistryError",
            "StoppedError",
            "ThreadBusyError",
            "ValidationError",
            "require_extra",
        ),
        "capgraph.base.guides": (
            "BaseExample",
            "ClassifierActions",
            "ClassifierExample",
            "OrchestratorExample",
            "OrchestratorGuide",
            "TaskClassifierGuide",
        ),
        "capgraph.base.infrastructure": ("BaseInfrastructureNode",),
        "capgraph.base.argument_injection": (
            "AttemptNumber",
            "IdempotencyKey",
            "Progress",
            "StepSettings",
        ),
        "capgraph.base.plan": (
            "ExecutionPlan",
            "PlannedStep",
            "load_execution_plan_from_file",
            "save_execution_plan_to_file",
        ),
        "capgraph.base.ports": ("Caller", "Verdict"),
        "capgraph.base.results": (
            "CapabilityMatch",
            "ExecutionError",
            "ExecutionRecord",
            "ExecutionResult",
        ),
        "capgraph.base.spec": (
            "CapabilitySpec",
            "Declarations",
            "Effect",
            "InfrastructureSpec",
            "OnUnknown",
            "Requirement",
        ),
        "capgraph.base.step_context": ("StepContext",),
        "capgraph.base.undo": ("DoneStep", "Undo"),
    },
)
