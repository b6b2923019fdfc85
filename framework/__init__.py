"""capgraph turns capability classes into a LangGraph agent that checks its plans before they run."""

import importlib
from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.base import AskAgain as AskAgain
    from capgraph.base import BaseCapability as BaseCapability
    from capgraph.base import BaseInfrastructureNode as BaseInfrastructureNode
    from capgraph.base import CapabilityContext as CapabilityContext
    from capgraph.base import ErrorClassification as ErrorClassification
    from capgraph.base import ErrorSeverity as ErrorSeverity
    from capgraph.base import ExecutionPlan as ExecutionPlan
    from capgraph.base import PlannedStep as PlannedStep
    from capgraph.base import capability_node as capability_node
    from capgraph.base import infrastructure_node as infrastructure_node
    from capgraph.base.ports import Verdict as Verdict
    from capgraph.engine.bind import bind as bind
    from capgraph.graph import build_graph as build_graph
    from capgraph.graph import open_graph as open_graph
    from capgraph.graph import signal as signal
    from capgraph.planning import Recipe as Recipe
    from capgraph.registry import Registry as Registry

if __name__ == "framework":  # imported as a top-level package, as in a checkout
    importlib.import_module("capgraph.compat.framework_alias").install_framework_alias("framework")

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.base": (
            "AskAgain",
            "BaseCapability",
            "BaseInfrastructureNode",
            "CapabilityContext",
            "ErrorClassification",
            "ErrorSeverity",
            "ExecutionPlan",
            "PlannedStep",
            "capability_node",
            "infrastructure_node",
        ),
        "capgraph.base.ports": ("Verdict",),
        "capgraph.engine.bind": ("bind",),
        "capgraph.graph": ("build_graph", "open_graph", "signal"),
        "capgraph.planning": ("Recipe",),
        "capgraph.registry": ("Registry",),
    },
)
