"""The class behind the nodes that extract, select, plan, route and answer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from capgraph.base.declarations import DeclarationMeta
from capgraph.base.error_classification import ErrorClassification, classify_exception

if TYPE_CHECKING:
    from capgraph.base.graph_node import GraphNode
    from capgraph.base.spec import InfrastructureSpec


class BaseInfrastructureNode(metaclass=DeclarationMeta):
    """Base of every infrastructure node.

    A subclass sets ``name`` and ``description`` and writes a static coroutine
    ``execute(state, **kwargs)`` that returns state updates. ``@infrastructure_node`` checks it
    and makes it a graph node.

    Attributes:
        name: Name of the node (required, checked by the decorator).
        description: What it does (required, checked by the decorator).
        behaviors: What stands around it: see ``capgraph.behaviors``.
        quiet: True if its start and end are kept out of the log.
        before: For a node that has no role of its own: the node that runs after it.
        after: For a node that has no role of its own: the node that runs before it.
    """

    name: str = None  # type: ignore[assignment]
    description: str = None  # type: ignore[assignment]
    behaviors: Sequence[Any] = ()
    quiet: bool = False
    before: str | None = None
    after: str | None = None

    if TYPE_CHECKING:  # the decorator sets them
        infrastructure_spec: ClassVar[InfrastructureSpec]
        langgraph_node: ClassVar[GraphNode]

    if TYPE_CHECKING:
        # To a type checker any signature may override it: a node names what it needs.
        @staticmethod
        async def execute(*args: Any, **kwargs: Any) -> Any: ...  # noqa: D102

    else:

        @staticmethod
        @abstractmethod
        async def execute(state: Any, **kwargs: Any) -> Any:
            """Do the node's work and return state updates.

            Args:
                state: The graph's state.
                **kwargs: What the signature asks for: ``logger``, ``streamer``, ``runtime``,
                    ``services``.

            Raises:
                ValidationError: State that is needed is missing or wrong.
                InfrastructureError: The work could not be done.
                NotImplementedError: It was called on the base class.
            """
            raise NotImplementedError("execute is abstract. Fix: write it in the subclass.")

    @staticmethod
    def classify_error(exc: Exception, context: dict[str, Any]) -> ErrorClassification | None:
        """Say what a failure means; override for errors that can pass.

        Args:
            exc: What ``execute`` raised.
            context: ``infrastructure_node``, ``execution_time`` and ``current_state``.

        Returns:
            The classification, or ``None`` for the default.
        """
        name = context.get("infrastructure_node", "unknown_node")
        return classify_exception(exc, f"Infrastructure error in {name}")

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Return ``max_attempts`` (total tries), ``delay_seconds`` and ``backoff_factor``."""
        return {"max_attempts": 2, "delay_seconds": 0.2, "backoff_factor": 1.2}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"
