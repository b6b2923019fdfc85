"""From a registry to a compiled graph."""

from framework.graph.build import build_graph

__all__ = ["build_graph"]
