"""Protocols of agents and of structured model calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:  # langchain_core.messages is slow to import
    from langchain_core.messages import BaseMessage
    from pydantic import BaseModel


class ModelCaller(Protocol):
    """Protocol of functions that call a chat model and return structured output.

    Each call counts toward usage and budgets, and emits events. An example is
    ``functools.partial(capgraph.models.structured, role)``.
    """

    async def __call__(self, schema: type[BaseModel], messages: Sequence[BaseMessage]) -> Any:
        """Call the chat model and return its reply as an instance of ``schema``.

        Raises:
            ModelError: The model did not return a valid instance.
        """


class AgentOutcome(Protocol):
    """Protocol for the result of an agent's task.

    Implementations may have additional attributes.
    """

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
    """Protocol of agents that execute a task.

    An agent with a ``compile()`` method is run as a graph instead.
    """

    async def execute(self, task: str, context: Any = None) -> AgentOutcome:
        """Execute a task and return its outcome.

        Args:
            task: Text of the task.
            context: Value of ``Runtime.context`` for the agent's tools.
        """
