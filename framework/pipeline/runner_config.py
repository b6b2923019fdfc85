"""What an operator decided that the stages of an attempt go by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from capgraph.base.ports import FlowPolicy, StepDispatcher, StepPolicy
from capgraph.configs.settings_model import Limits
from capgraph.helpers.clock import Clock, SystemClock
from capgraph.pipeline.capacity import Capacity
from capgraph.registry import Registry
from capgraph.state import AgentState, StateSchema

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings


class RunnerConfig:
    """What every attempt of a process finds; it holds nothing of a run.

    Args:
        registry: Capabilities and context types.
        settings: All settings.
        clock: Time.
        capacity: Slots of the process.
        chat_model: Role to chat model, or ``None``.
        step_policies: What is asked before a step starts.
        flow: Knows the labels of data; ``None`` where nothing declares one.
        schema: Keys of the graph's state.

    Attributes:
        dispatcher: Has steps run on other workers, where this process is one of several.
    """

    def __init__(
        self,
        registry: Registry,
        settings: Settings,
        *,
        clock: Clock | None = None,
        capacity: Capacity | None = None,
        chat_model: Callable[[str], Any] = lambda _role: None,
        step_policies: Sequence[StepPolicy] = (),
        flow: FlowPolicy | None = None,
        schema: StateSchema | None = None,
    ) -> None:
        self.registry = registry
        self.settings = settings
        self.clock: Clock | SystemClock = clock or SystemClock()
        self.capacity: Capacity = capacity or Capacity.of_process()
        self.chat_model = chat_model
        self.step_policies: tuple[StepPolicy, ...] = tuple(step_policies)
        self.flow = flow
        self.schema: StateSchema = schema or StateSchema.of(AgentState)
        self.dispatcher: StepDispatcher | None = None

    @property
    def limits(self) -> Limits:
        """Bounds of a run."""
        return self.settings.limits
