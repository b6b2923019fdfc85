"""The same graph on many workers: orders, the engines that carry them, and what takes them."""

from __future__ import annotations

from configs.lazy import contents
from framework.scale.engine import Engine as Engine
from framework.scale.engine import Handler as Handler
from framework.scale.order import StepOrder as StepOrder
from framework.scale.order import TurnOrder as TurnOrder

__getattr__, __dir__ = contents(__name__)
