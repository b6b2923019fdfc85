"""Execution of a single step: the step runner and its stages, one module per stage."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.pipeline.capacity import Capacity as Capacity
    from capgraph.pipeline.runner import StepRunner as StepRunner

__getattr__, __dir__ = lazy_exports(
    __name__,
    {"capgraph.pipeline.capacity": ("Capacity",), "capgraph.pipeline.runner": ("StepRunner",)},
)
