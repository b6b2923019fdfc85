"""What a function asks for by annotation besides inputs and parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NewType, Protocol, get_origin

from capgraph.base.step_context import StepContext
from capgraph.configs.logger import ComponentLogger


class Progress(Protocol):
    """Streams how far the step is: ``progress("half done", 0.5)``."""

    def __call__(self, message: str, fraction: float | None = None, /) -> None:
        """Say what is being done, and how far it is between 0 and 1."""


IdempotencyKey = NewType("IdempotencyKey", str)
"""Key to hand to an outside system: the same over retries, restarts and replays of a step."""

AttemptNumber = NewType("AttemptNumber", int)
"""1 for the first try of a step."""

StepSettings = NewType("StepSettings", Mapping[str, Any])
"""The settings section of the capability."""

Getter = Callable[[StepContext], Any]

_GETTERS: dict[Any, Getter] = {
    StepContext: lambda step: step,
    Progress: lambda step: _progress(step),
    IdempotencyKey: lambda step: step.idempotency_key,
    AttemptNumber: lambda step: step.attempt,
    StepSettings: lambda step: step.config,
    ComponentLogger: lambda step: step.logger,
}


def injected(annotation: Any) -> Getter | None:
    """Return what fills an argument of an annotation at run time; ``None`` for a plain type."""
    origin = get_origin(annotation) or annotation
    # By name, since contracts import nothing of LangGraph.
    if getattr(origin, "__module__", "") == "langgraph.runtime" and origin.__name__ == "Runtime":
        return lambda step: step.runtime
    try:
        return _GETTERS.get(annotation)
    except TypeError:  # Annotated with something that has no hash
        return None


def _progress(step: StepContext) -> Progress:
    def notify(message: str, fraction: float | None = None, /) -> None:
        step.notify(message, fraction)

    return notify
