"""How nodes run: attempts, retries, effects, the routing decision and the ready queue."""

from framework.execution.routing import Route, route
from framework.execution.services import Services

__all__ = ["Route", "Services", "route"]
