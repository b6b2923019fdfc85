"""Base class of the nodes that extract the task, select, plan, route, and answer."""

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
    """Base class of infrastructure nodes.

    A subclass sets ``name`` and ``description`` and implements the static coroutine
    ``execute(state, **kwargs)``, which returns state updates. The decorator ``@infrastructure_node``
    validates the class and makes it a graph node.

    Attributes:
        name: Name of the node (required).
        description: What the node does (required).
        behaviors: Behaviors of the node, from ``capgraph.behaviors``.
        quiet: True if the start and the end of the node are not logged.
        before: Name of the node before which a custom node is inserted.
        after: Name of the node after which a custom node is inserted.
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
        # Lets type checkers accept any signature in subclasses.
        @staticmethod
        async def execute(*args: Any, **kwargs: Any) -> Any: ...  # noqa: D102

    else:

        @staticmethod
        @abstractmethod
        async def execute(state: Any, **kwargs: Any) -> Any:
            """Run the infrastructure node and return updates to the graph state.

            Args:
                state: State of the graph.
                **kwargs: Arguments that the override declares: ``logger``, ``streamer``,
                    ``runtime``, ``services``.

            Raises:
                ValidationError: Required state is missing or invalid.
                InfrastructureError: The node failed.
                NotImplementedError: The method was called on the base class.
            """
            raise NotImplementedError(
                "BaseInfrastructureNode.execute is abstract. Fix: override it in the subclass."
            )

    @staticmethod
    def classify_error(exc: Exception, context: dict[str, Any]) -> ErrorClassification | None:
        """Classify an exception raised by an infrastructure node's ``execute`` method.

        Override this method to classify transient errors.

        Args:
            exc: Exception that ``execute`` raised.
            context: Dictionary with ``infrastructure_node``, ``execution_time``, and
                ``current_state``.

        Returns:
            The classification, or None to use the default classification.
        """
        name = context.get("infrastructure_node", "unknown_node")
        return classify_exception(exc, f"Infrastructure error in {name}")

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Return the retry policy for the infrastructure node.

        Returns:
            A dictionary with ``max_attempts`` (including the first attempt), ``delay_seconds``
            (before the second attempt), and ``backoff_factor`` (by which each further delay is
            multiplied).
        """
        return {"max_attempts": 2, "delay_seconds": 0.2, "backoff_factor": 1.2}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"
