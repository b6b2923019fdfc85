"""One attempt at one step, whoever asks for it: the runner and its stages, one file each."""

from framework.pipeline.capacity import Capacity
from framework.pipeline.runner import StepRunner

__all__ = ["Capacity", "StepRunner"]
