"""The object behind ``langgraph_node``: it holds what a class declares, and looks up who runs it."""

from __future__ import annotations

import importlib
from typing import Any

from capgraph.base.spec import CapabilitySpec, InfrastructureSpec

_RUNNERS = {
    CapabilitySpec: ("capgraph.engine.capability_node", "run_capability_node"),
    InfrastructureSpec: ("capgraph.engine.infrastructure_node", "run_infrastructure_node"),
}


class GraphNode:
    """An async ``(state, **kwargs)`` that LangGraph takes as a node.

    The contract does not depend on the engine: who runs a node is looked up when it first runs.

    Args:
        spec: What the class declares.
        services: What the node runs with; the graph's own when ``build_graph`` enters it.
        options: Further keywords for what runs the node.

    Attributes:
        name: Name of the capability or the node.
        description: What it does.
        error_classifier: ``classify_error`` of the class.
        original_class: The decorated class.
    """

    def __init__(
        self, spec: CapabilitySpec | InfrastructureSpec, services: Any = None, **options: Any
    ) -> None:
        self.spec = spec
        self._options = options
        self.name: str = spec.name
        self.description: str = spec.description
        self.error_classifier: Any = spec.cls.classify_error
        self.original_class: type[Any] = spec.cls
        self._services = services
        self.__name__: str = spec.name if services is not None else "langgraph_node"
        self.__qualname__ = f"{spec.cls.__qualname__}.langgraph_node"
        self.__module__ = spec.cls.__module__
        self.__doc__ = f"Graph node of {spec.name!r}: {spec.description}"
        if isinstance(spec, CapabilitySpec):
            self.capability_name: str = spec.name

    async def __call__(self, state: Any, **kwargs: Any) -> Any:
        """Run the node.

        Args:
            state: The graph's state.
            **kwargs: ``services``, and what the node is handed besides.
        """
        module, name = _RUNNERS[type(self.spec)]
        run = getattr(importlib.import_module(module), name)
        kwargs.setdefault("services", self._services)
        return await run(self.spec, state, **self._options, **kwargs)

    def with_services(self, services: Any, **options: Any) -> GraphNode:
        """Return the same node with services of its own.

        Args:
            services: What the node runs with.
            **options: Further keywords for what runs the node.
        """
        return GraphNode(self.spec, services, **options)

    def __repr__(self) -> str:
        return f"<langgraph_node of {self.name!r}>"


class NodeDescriptor:
    """A class's own node: a subclass that is not decorated would run its parent's steps."""

    def __init__(self, node: GraphNode) -> None:
        self._node = node

    def __get__(self, instance: Any, owner: type) -> GraphNode:
        """Return the node of the class that was decorated, and of no subclass.

        Raises:
            AttributeError: The class is a subclass that is not decorated.
        """
        if owner is self._node.original_class:
            return self._node
        parent = self._node.original_class.__name__
        raise AttributeError(
            f"{owner.__name__} is not decorated, and the node of {parent} would run {parent}."
            f" Fix: put the decorator above {owner.__name__} too."
        )
