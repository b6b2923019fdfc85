"""Protocols of agents and of structured model calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:  # langchain_core.messages is slow to import
    from langchain_core.messages import BaseMessage
    from pydantic import BaseModel


class ModelCaller(Protocol):
    """Function that calls a chat model with structured output.

    The call counts toward usage and budgets and emits events. An example is
    ``functools.partial(capgraph.models.structured, role)``.
    """

    async def __call__(self, schema: type[BaseModel], messages: Sequence[BaseMessage]) -> Any:
        """Return an instance of ``schema``.

        Raises:
            ModelError: The model returned no valid instance.
        """


class AgentOutcome(Protocol):
    """Result of an agent. Implementations may have further attributes."""

    @property
    def output(self) -> Any:
        """The output."""

    @property
    def success(self) -> bool:
        """True if the agent completed the task. Reaching a limit counts as a failure."""

    @property
    def error(self) -> str | None:
        """Reason for the failure, or None."""


@runtime_checkable
class Agent(Protocol):
    """Agent that executes a task. An object with ``compile()`` runs as a graph instead."""

    async def execute(self, task: str, context: Any = None) -> AgentOutcome:
        """Execute a task.

        Args:
            task: Text of the task.
            context: Value of ``Runtime.context`` for the agent's tools.
        """
