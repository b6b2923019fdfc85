"""What a graph's nodes share: made once by ``build_graph``, handed to every node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from configs.limits import Limits
from framework.base.clock import Clock, SystemClock
from framework.pipeline.journal import Journal
from framework.planning.strategies import Answerer, Planner, TaskExtractor
from framework.registry import Registry
from framework.selection import Selector

if TYPE_CHECKING:  # settings bring YAML and environment readers, which only building needs
    from configs.settings import Settings


@dataclass(slots=True)
class Services:
    """Dependencies of the nodes. Holds nothing that belongs to one run.

    Attributes:
        registry: Capabilities, nodes and context types.
        settings: All settings.
        selector: Chooses capabilities.
        extractor: Finds the task.
        planner: Writes plans.
        answerer: Writes the final message.
        chat_model: Role to chat model, or ``None``.
        clock: Time.
        journal: Durable records of attempts and effects of a thread.
        step_tasks: Capability name to the LangGraph task that runs its steps.
    """

    registry: Registry
    settings: Settings
    selector: Selector
    extractor: TaskExtractor
    planner: Planner
    answerer: Answerer
    chat_model: Callable[[str], Any] = lambda _role: None
    clock: Clock = field(default_factory=SystemClock)
    journal: Callable[[], Journal] = Journal
    step_tasks: Mapping[str, Callable[[dict[str, Any]], asyncio.Future[dict[str, Any] | None]]] = (
        field(default_factory=dict)
    )

    @property
    def limits(self) -> Limits:
        """Bounds of a run."""
        return self.settings.limits
