"""From a registry to a compiled graph."""

from typing import TYPE_CHECKING

from configs.lazy import contents
from framework.graph.build import build_graph as build_graph
from framework.graph.open import open_graph as open_graph

if TYPE_CHECKING:
    from framework.graph.signals import signal as signal
    from framework.graph.signals import wake as wake

__getattr__, __dir__ = contents(__name__)
