"""One turn: the ready queue, routing, the gate of plans, and what its nodes share."""

from configs.lazy import contents
from framework.engine.bind import bind as bind
from framework.engine.routing import Route as Route
from framework.engine.routing import route as route
from framework.engine.services import Services as Services

__getattr__, __dir__ = contents(__name__)
