"""Data and functions that one attempt at a step provides to its capability."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from capgraph.base.context import CapabilityContext
from capgraph.base.errors import ValidationError
from capgraph.base.plan import PlannedStep
from capgraph.configs.logger import ComponentLogger, get_logger
from capgraph.configs.streaming import get_streamer
from capgraph.helpers.async_calls import maybe_await
from capgraph.helpers.plain_data import copy_plain


async def _call_directly(_key: str, call: Callable[[], Any]) -> Any:
    return await maybe_await(call())


class StepInputs(dict[str, Any]):
    """Input data of a step by type or role, passed to a static ``execute`` as ``context``.

    Attributes:
        once: Function that runs part of the step at most once, as in ``await
            context.once("key", call)``.
    """

    once: Callable[[str, Callable[[], Any]], Awaitable[Any]]

    def __missing__(self, name: str) -> Any:
        raise ValidationError(
            f"The input {name!r} is missing: the step has {sorted(self) or 'no inputs'}.",
            fix="Plan a step that provides it, or send it as capability_context_data.",
        )


@dataclass(slots=True)
class StepContext:
    """Data and functions of one attempt at a step.

    Attributes:
        capability: Name of the capability.
        planned_step: The step in the plan. Use ``step``, which is a copy.
        step_index: Index of the step in the plan, from 0.
        total_steps: Number of steps in the plan.
        state: State of the graph when the step started. Read-only.
        inputs: Validated inputs by context type: an object, a list (``many``), or None.
        parameters: Validated parameters: a model instance or a dictionary.
        task: Objective of the step, or the task of the turn.
        attempt: Number of the attempt, from 1.
        idempotency_key: Key that stays the same in retries, restarts, and replays of the step.
        config: Settings section of the capability.
        runtime: LangGraph's ``Runtime``. None outside a run.
        model: Function that returns the chat model of a role, or None if none is configured.
        notify: Function that emits a progress event.
        once: Function that runs a part of the step at most once: ``await once("key", call)``.
        stored_outputs: Outputs that ``store`` added.
    """

    capability: str
    planned_step: PlannedStep
    step_index: int = 0
    total_steps: int = 0
    state: Mapping[str, Any] = field(default_factory=dict)
    inputs: StepInputs = field(default_factory=StepInputs)
    parameters: Any = field(default_factory=dict)
    task: str = ""
    attempt: int = 1
    idempotency_key: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    runtime: Any = None
    model: Callable[[str], Any] = lambda _role: None
    notify: Callable[[str, float | None], None] = lambda _message, _fraction: None
    once: Callable[[str, Callable[[], Any]], Awaitable[Any]] = _call_directly
    stored_outputs: list[CapabilityContext] = field(default_factory=list)
    _step: PlannedStep | None = field(default=None, init=False, repr=False)

    @property
    def step(self) -> PlannedStep:
        """Copy of the planned step, which the capability may modify."""
        if self._step is None:
            self._step = copy_plain(self.planned_step)
        return self._step

    @property
    def logger(self) -> ComponentLogger:
        """Logger of the capability."""
        return get_logger("capability", self.capability)


def _create_inputs(context: StepContext) -> StepInputs:
    inputs = StepInputs(context.inputs)
    inputs.once = context.once
    return inputs


EXECUTE_ARGUMENTS: Mapping[str, Callable[[StepContext], Any]] = {
    "step": attrgetter("step"),
    "context": _create_inputs,
    "runtime": attrgetter("runtime"),
    "logger": attrgetter("logger"),
    "streamer": lambda context: get_streamer("capability", context.capability),
}
"""Values that a static ``execute`` may take besides the state, by argument name."""
