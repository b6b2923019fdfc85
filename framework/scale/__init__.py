"""The same graph on many workers: orders, the engines that carry them, and what takes them."""

from __future__ import annotations

from framework.scale.engine import Engine, Handler
from framework.scale.order import StepOrder, TurnOrder

__all__ = ["Engine", "Handler", "StepOrder", "TurnOrder"]
