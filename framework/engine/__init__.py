"""How nodes run: attempts, retries, effects, the routing decision and the ready queue."""

from framework.engine.routing import Route, route
from framework.engine.services import Services

__all__ = ["Route", "Services", "route"]
