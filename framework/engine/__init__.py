"""One turn: the ready queue, routing, the gate of plans, and what its nodes share."""

from framework.engine.bind import bind
from framework.engine.routing import Route, route
from framework.engine.services import Services

__all__ = ["Route", "Services", "bind", "route"]
