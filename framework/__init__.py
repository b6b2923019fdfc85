"""capgraph: capability classes become a LangGraph agent that checks its plan before it runs it."""

from framework.base import (
    BaseCapability,
    BaseInfrastructureNode,
    CapabilityContext,
    ErrorClassification,
    ErrorSeverity,
    ExecutionPlan,
    PlannedStep,
    capability_node,
    infrastructure_node,
)
from framework.graph import build_graph
from framework.registry import Registry

__all__ = [
    "BaseCapability",
    "BaseInfrastructureNode",
    "CapabilityContext",
    "ErrorClassification",
    "ErrorSeverity",
    "ExecutionPlan",
    "PlannedStep",
    "Registry",
    "build_graph",
    "capability_node",
    "infrastructure_node",
]
