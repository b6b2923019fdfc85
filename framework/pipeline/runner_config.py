"""Configuration of the step runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from capgraph.base.ports import FlowPolicy, StepDispatcher, StepPolicy
from capgraph.configs.limits import Limits
from capgraph.helpers.clock import Clock, SystemClock
from capgraph.pipeline.capacity import Capacity
from capgraph.registry import Registry
from capgraph.state import AgentState, StateSchema
from capgraph.stores.atomic_values import MemoryValues
from capgraph.stores.stored_labels import StoredLabels

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings

_MAX_FILES = 10_000
"""Maximum number of files whose labels a graph without a saver stores."""


class RunnerConfig:
    """Configuration that all attempts of a graph share, without data about a specific run.

    Args:
        registry: Capabilities and context types.
        settings: All settings.
        clock: Clock of the graph.
        capacity: Concurrency slots of the process.
        chat_model: Function that returns the chat model for a role, or ``None``.
        step_policies: Policies that are evaluated before a step starts.
        flow: Policy for data labels, or ``None`` if no capability declares labels.
        schema: Keys of the graph's state.

    Attributes:
        dispatcher: Dispatcher of steps to other workers, or ``None`` in a process without
            workers.
        file_labels: Labels of files for runs without a saver.
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
        self.schema: StateSchema = schema or StateSchema.from_class(AgentState)
        self.dispatcher: StepDispatcher | None = None
        self.file_labels: StoredLabels = StoredLabels(MemoryValues(_MAX_FILES), "file/")

    @property
    def limits(self) -> Limits:
        """Limits of a run."""
        return self.settings.limits
