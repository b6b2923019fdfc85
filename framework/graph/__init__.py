"""From a registry to a compiled graph."""

from framework.graph.build import build_graph
from framework.graph.open import open_graph
from framework.graph.signals import signal, wake

__all__ = ["build_graph", "open_graph", "signal", "wake"]
