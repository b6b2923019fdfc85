"""From a registry to a compiled graph."""

from typing import TYPE_CHECKING

from configs.lazy import found_in
from framework.graph.build import build_graph
from framework.graph.open import open_graph

if TYPE_CHECKING:
    from framework.graph.signals import signal, wake

__all__ = ["build_graph", "open_graph", "signal", "wake"]

__getattr__, __dir__ = found_in(__name__, ("signals",), __all__)
