"""What one execution of a step may see: handed to the capability, never shared between runs."""

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


async def _simply(_key: str, call: Callable[[], Any]) -> Any:
    return await maybe_await(call())


class StepInputs(dict[str, Any]):
    """The inputs by type or role; the static form gets them in ``context``.

    Attributes:
        once: Runs an effect inside the step at most once: ``await context.once("key", call)``.
    """

    once: Callable[[str, Callable[[], Any]], Awaitable[Any]]

    def __missing__(self, name: str) -> Any:
        raise ValidationError(
            f"The input {name!r} is not there; the step was given {sorted(self) or 'none'}.",
            fix="Run what gives it before, or hand it in as capability_context_data.",
        )


@dataclass(slots=True)
class StepContext:
    """Everything that belongs to one attempt at one step.

    Attributes:
        capability: Name of the capability.
        planned_step: The step as the plan has it; read ``step``.
        step_index: Its place in the plan.
        total_steps: How many steps the plan has.
        state: The graph's state when the step began; read it, never change it.
        inputs: Context type to validated object, list of objects (``many``) or ``None``.
        parameters: Validated parameters model, or the step's plain dictionary.
        task: The step's objective, else the task of the turn.
        attempt: 1 for the first try.
        idempotency_key: Stable over retries, restarts and replays of this step.
        config: Settings section of this capability.
        runtime: LangGraph's ``Runtime`` inside a run, else ``None``.
        model: Returns the chat model of a role, or ``None`` when none is configured.
        once: Runs an effect inside the step at most once: ``await once("key", call)``.
        stored_outputs: Outputs handed over with ``store``.
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
    once: Callable[[str, Callable[[], Any]], Awaitable[Any]] = _simply
    stored_outputs: list[CapabilityContext] = field(default_factory=list)
    _step: PlannedStep | None = field(default=None, init=False, repr=False)

    @property
    def step(self) -> PlannedStep:
        """The planned step: a copy of the capability's own, made when it is first read."""
        if self._step is None:
            self._step = copy_plain(self.planned_step)
        return self._step

    @property
    def logger(self) -> ComponentLogger:
        """Logger of the capability."""
        return get_logger("capability", self.capability)


def _inputs(context: StepContext) -> StepInputs:
    inputs = StepInputs(context.inputs)
    inputs.once = context.once
    return inputs


EXECUTE_ARGUMENTS: Mapping[str, Callable[[StepContext], Any]] = {
    "step": attrgetter("step"),
    "context": _inputs,
    "runtime": attrgetter("runtime"),
    "logger": attrgetter("logger"),
    "streamer": lambda context: get_streamer("capability", context.capability),
}
"""What a static ``execute`` may ask for besides the state, by the name of its argument."""
