"""One attempt at one step, whoever asks for it: the runner and its stages, one file each."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.pipeline.capacity import Capacity as Capacity
    from capgraph.pipeline.runner import StepRunner as StepRunner

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.pipeline.capacity": ("Capacity",),
        "capgraph.pipeline.runner": ("StepRunner",),
    },
)
