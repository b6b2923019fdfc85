"""Data types and protocols that the packages share, so that they need not import each other."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.base.ports.agents import Agent as Agent
    from capgraph.base.ports.agents import AgentOutcome as AgentOutcome
    from capgraph.base.ports.agents import ModelCaller as ModelCaller
    from capgraph.base.ports.callers import Caller as Caller
    from capgraph.base.ports.callers import normalize_user_id as normalize_user_id
    from capgraph.base.ports.middleware import AnyBehavior as AnyBehavior
    from capgraph.base.ports.middleware import AvailabilityProvider as AvailabilityProvider
    from capgraph.base.ports.middleware import Behavior as Behavior
    from capgraph.base.ports.middleware import BehaviorContext as BehaviorContext
    from capgraph.base.ports.middleware import CallNext as CallNext
    from capgraph.base.ports.middleware import Middleware as Middleware
    from capgraph.base.ports.middleware import ModelCallMiddleware as ModelCallMiddleware
    from capgraph.base.ports.middleware import RetryRule as RetryRule
    from capgraph.base.ports.middleware import TimeLimit as TimeLimit
    from capgraph.base.ports.middleware import TurnGuardrail as TurnGuardrail
    from capgraph.base.ports.policies import FlowPolicy as FlowPolicy
    from capgraph.base.ports.policies import GateResult as GateResult
    from capgraph.base.ports.policies import PermissionMode as PermissionMode
    from capgraph.base.ports.policies import PlanPolicy as PlanPolicy
    from capgraph.base.ports.policies import ResultGate as ResultGate
    from capgraph.base.ports.policies import StepPolicy as StepPolicy
    from capgraph.base.ports.policies import TurnSnapshot as TurnSnapshot
    from capgraph.base.ports.policies import Verdict as Verdict
    from capgraph.base.ports.services import KeyValueStore as KeyValueStore
    from capgraph.base.ports.services import Sink as Sink
    from capgraph.base.ports.services import SqlExecutor as SqlExecutor
    from capgraph.base.ports.services import StepDispatcher as StepDispatcher
    from capgraph.base.ports.steps import STAGES as STAGES
    from capgraph.base.ports.steps import ApprovalRequest as ApprovalRequest
    from capgraph.base.ports.steps import Attempt as Attempt
    from capgraph.base.ports.steps import Failure as Failure
    from capgraph.base.ports.steps import ForEachElement as ForEachElement
    from capgraph.base.ports.steps import ShortCircuit as ShortCircuit
    from capgraph.base.ports.steps import Source as Source
    from capgraph.base.ports.steps import StepRecord as StepRecord

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.base.ports.agents": ("Agent", "AgentOutcome", "ModelCaller"),
        "capgraph.base.ports.callers": ("Caller", "normalize_user_id"),
        "capgraph.base.ports.middleware": (
            "AnyBehavior",
            "AvailabilityProvider",
            "Behavior",
            "BehaviorContext",
            "CallNext",
            "Middleware",
            "ModelCallMiddleware",
            "RetryRule",
            "TimeLimit",
            "TurnGuardrail",
        ),
        "capgraph.base.ports.policies": (
            "FlowPolicy",
            "GateResult",
            "PermissionMode",
            "PlanPolicy",
            "ResultGate",
            "StepPolicy",
            "TurnSnapshot",
            "Verdict",
        ),
        "capgraph.base.ports.services": ("KeyValueStore", "Sink", "SqlExecutor", "StepDispatcher"),
        "capgraph.base.ports.steps": (
            "ApprovalRequest",
            "Attempt",
            "Failure",
            "ForEachElement",
            "STAGES",
            "ShortCircuit",
            "Source",
            "StepRecord",
        ),
    },
)
