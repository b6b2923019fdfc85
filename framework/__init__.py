"""capgraph: capability classes become a LangGraph agent that checks its plan before it runs it."""

from typing import TYPE_CHECKING

from framework import neighbours

neighbours.check_neighbour("configs")

# ruff: noqa: E402  a foreign 'configs' would fail in here without a word
from configs.lazy import contents
from framework.base import AskAgain as AskAgain
from framework.base import BaseCapability as BaseCapability
from framework.base import BaseInfrastructureNode as BaseInfrastructureNode
from framework.base import CapabilityContext as CapabilityContext
from framework.base import ErrorClassification as ErrorClassification
from framework.base import ErrorSeverity as ErrorSeverity
from framework.base import ExecutionPlan as ExecutionPlan
from framework.base import PlannedStep as PlannedStep
from framework.base import capability_node as capability_node
from framework.base import infrastructure_node as infrastructure_node
from framework.base.ports import Verdict as Verdict

if TYPE_CHECKING:
    # The engine takes most of a second to import, which `capgraph --help` or a module that only
    # defines capabilities should not wait for.
    from framework.engine.bind import bind as bind
    from framework.graph import build_graph as build_graph
    from framework.graph import open_graph as open_graph
    from framework.graph import signal as signal
    from framework.planning import Recipe as Recipe
    from framework.registry import Registry as Registry

__getattr__, __dir__ = contents(__name__)
