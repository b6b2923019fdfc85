"""capgraph: capability classes become a LangGraph agent that checks its plan before it runs it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from framework import neighbours

neighbours.check_neighbour("configs")

from framework.base import (  # noqa: E402  a foreign 'configs' would fail in here without a word
    AskAgain,
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
from framework.base.ports import Verdict  # noqa: E402

if TYPE_CHECKING:
    from framework.engine.bind import bind
    from framework.graph import build_graph, open_graph, signal
    from framework.planning import Recipe
    from framework.registry import Registry

__all__ = [
    "AskAgain",
    "BaseCapability",
    "BaseInfrastructureNode",
    "CapabilityContext",
    "ErrorClassification",
    "ErrorSeverity",
    "ExecutionPlan",
    "PlannedStep",
    "Recipe",
    "Registry",
    "Verdict",
    "bind",
    "build_graph",
    "capability_node",
    "infrastructure_node",
    "open_graph",
    "signal",
]

_ENGINE = {
    "Recipe": "framework.planning",
    "Registry": "framework.registry",
    "bind": "framework.engine",
    "build_graph": "framework.graph",
    "open_graph": "framework.graph",
    "signal": "framework.graph",
}


def __getattr__(name: str) -> Any:
    # The engine takes most of a second to import, which `capgraph --help` or a module that only
    # defines capabilities should not wait for.
    if name in _ENGINE:
        return getattr(importlib.import_module(_ENGINE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
