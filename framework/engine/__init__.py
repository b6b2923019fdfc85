"""Execution of a turn: input validation, plan acceptance, routing, and the ready queue."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.engine.routing import Route as Route
    from capgraph.engine.routing import route as route
    from capgraph.engine.services import Services as Services

__getattr__, __dir__ = lazy_exports(
    __name__,
    {"capgraph.engine.routing": ("Route", "route"), "capgraph.engine.services": ("Services",)},
)
