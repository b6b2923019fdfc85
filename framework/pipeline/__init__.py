"""One attempt at one step, whoever asks for it: the runner and its stages, one file each."""

from configs.lazy import contents
from framework.pipeline.capacity import Capacity as Capacity
from framework.pipeline.runner import StepRunner as StepRunner

__getattr__, __dir__ = contents(__name__)
