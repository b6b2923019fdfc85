"""Graph nodes of decorated classes.

A node looks up the function that runs it by name, so that ``base`` does not import the engine.
"""

from __future__ import annotations

import importlib
from typing import Any

from capgraph.base.spec import CapabilitySpec, InfrastructureSpec

_RUNNERS = {
    CapabilitySpec: ("capgraph.engine.capability_node", "run_capability_node"),
    InfrastructureSpec: ("capgraph.engine.infrastructure_node", "run_infrastructure_node"),
}


class GraphNode:
    """LangGraph node that runs a decorated capability or infrastructure class.

    Args:
        spec: Declarations of the decorated class.
        services: Services for the node. ``build_graph`` sets the services of the graph.
        options: Additional keyword arguments for the function that runs the node.

    Attributes:
        name: Name of the capability or infrastructure node.
        description: What the node does.
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
        """Run the graph node and return its state updates.

        Args:
            state: State of the graph.
            **kwargs: ``services`` and additional arguments from the caller.
        """
        module, name = _RUNNERS[type(self.spec)]
        run = getattr(importlib.import_module(module), name)
        kwargs.setdefault("services", self._services)
        return await run(self.spec, state, **self._options, **kwargs)

    def with_services(self, services: Any, **options: Any) -> GraphNode:
        """Return a copy of the graph node that runs with different services.

        Args:
            services: Services with which the node runs.
            **options: Additional keyword arguments for the function that runs the node.
        """
        return GraphNode(self.spec, services, **options)

    def __repr__(self) -> str:
        return f"<langgraph_node of {self.name!r}>"


class NodeDescriptor:
    """Descriptor that provides the graph node of a decorated class.

    Access from an undecorated subclass is an error, because the inherited node would run the
    parent class.
    """

    def __init__(self, node: GraphNode) -> None:
        self._node = node

    def __get__(self, instance: Any, owner: type) -> GraphNode:
        """Return the graph node of the decorated class.

        Raises:
            AttributeError: The class is a subclass that is not decorated.
        """
        if owner is self._node.original_class:
            return self._node
        parent = self._node.original_class.__name__
        raise AttributeError(
            f"{owner.__name__} is not decorated: the node that it inherits would run {parent}."
            f" Fix: decorate {owner.__name__}, too."
        )
