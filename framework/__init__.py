"""capgraph: capability classes become a LangGraph agent that checks its plan before it runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    # The engine takes most of a second to import, which `capgraph --help` or a module that only
    # defines capabilities should not wait for.
    if name == "build_graph":
        from framework.graph import build_graph

        return build_graph
    if name == "Registry":
        from framework.registry import Registry

        return Registry
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
