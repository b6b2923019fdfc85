"""What a user subclasses, writes or receives: capabilities, nodes, plans, context, errors."""

from typing import TYPE_CHECKING

from configs.lazy import contents
from framework.base.approval_policy import ApprovalPolicy as ApprovalPolicy
from framework.base.capability import BaseCapability as BaseCapability
from framework.base.classify import ErrorClassification as ErrorClassification
from framework.base.context import CapabilityContext as CapabilityContext
from framework.base.decorators import capability_node as capability_node
from framework.base.decorators import infrastructure_node as infrastructure_node
from framework.base.errors import AskAgain as AskAgain
from framework.base.errors import CapabilityError as CapabilityError
from framework.base.errors import CapgraphError as CapgraphError
from framework.base.errors import ConfigurationError as ConfigurationError
from framework.base.errors import ErrorSeverity as ErrorSeverity
from framework.base.errors import FatalExecutionError as FatalExecutionError
from framework.base.errors import InfrastructureError as InfrastructureError
from framework.base.errors import LimitError as LimitError
from framework.base.errors import MissingExtraError as MissingExtraError
from framework.base.errors import ModelError as ModelError
from framework.base.errors import PersistenceError as PersistenceError
from framework.base.errors import PlanError as PlanError
from framework.base.errors import PolicyError as PolicyError
from framework.base.errors import RegistryError as RegistryError
from framework.base.errors import StoppedError as StoppedError
from framework.base.errors import ThreadBusyError as ThreadBusyError
from framework.base.errors import ValidationError as ValidationError
from framework.base.errors import require_extra as require_extra
from framework.base.guides import BaseExample as BaseExample
from framework.base.guides import ClassifierActions as ClassifierActions
from framework.base.guides import ClassifierExample as ClassifierExample
from framework.base.guides import OrchestratorExample as OrchestratorExample
from framework.base.guides import OrchestratorGuide as OrchestratorGuide
from framework.base.guides import TaskClassifierGuide as TaskClassifierGuide
from framework.base.infrastructure import BaseInfrastructureNode as BaseInfrastructureNode
from framework.base.injected import AttemptNumber as AttemptNumber
from framework.base.injected import IdempotencyKey as IdempotencyKey
from framework.base.injected import Progress as Progress
from framework.base.injected import StepSettings as StepSettings
from framework.base.plan import ExecutionPlan as ExecutionPlan
from framework.base.plan import PlannedStep as PlannedStep
from framework.base.plan import load_execution_plan_from_file as load_execution_plan_from_file
from framework.base.plan import save_execution_plan_to_file as save_execution_plan_to_file
from framework.base.spec import CapabilitySpec as CapabilitySpec
from framework.base.spec import Declarations as Declarations
from framework.base.spec import Effect as Effect
from framework.base.spec import InfrastructureSpec as InfrastructureSpec
from framework.base.spec import OnUnknown as OnUnknown
from framework.base.spec import Requirement as Requirement
from framework.base.step_context import StepContext as StepContext
from framework.base.undo import DoneStep as DoneStep
from framework.base.undo import Undo as Undo

if TYPE_CHECKING:
    from framework.base.results import CapabilityMatch as CapabilityMatch
    from framework.base.results import ExecutionError as ExecutionError
    from framework.base.results import ExecutionRecord as ExecutionRecord
    from framework.base.results import ExecutionResult as ExecutionResult

__getattr__, __dir__ = contents(__name__)
