"""Construction of agent graphs, and signals for suspended threads."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.graph.build import build_graph as build_graph
    from capgraph.graph.open import open_graph as open_graph
    from capgraph.graph.signals import signal as signal
    from capgraph.graph.signals import wake as wake

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.graph.build": ("build_graph",),
        "capgraph.graph.open": ("open_graph",),
        "capgraph.graph.signals": ("signal", "wake"),
    },
)
