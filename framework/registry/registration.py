"""Rules for registration: which objects can be registered, and errors for those that cannot."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping, Set
from typing import Any

from capgraph.base.capability import BaseCapability
from capgraph.base.context import CapabilityContext
from capgraph.base.errors import RegistryError
from capgraph.base.infrastructure import BaseInfrastructureNode
from capgraph.base.spec import (
    INFRASTRUCTURE_ROLES,
    INSERTION_POINTS,
    CapabilitySpec,
    InfrastructureSpec,
    is_valid_node_name,
)


def find_registration_name(value: type) -> str | None:
    """Return the name to register a discovered class under, or ``None`` to ignore the class."""
    own = value.__dict__
    spec = own.get("capability_spec") or own.get("infrastructure_spec")
    if spec is not None:
        return str(spec.name)
    return value.CONTEXT_TYPE if issubclass(value, CapabilityContext) else None


def find_adapted_capabilities(value: Any) -> list[Any]:
    """Find the adapter-created capabilities in a module attribute or a collection.

    ``capability_node`` also creates such classes for imported functions. Their ``__module__``
    is not the module that contains them, so they are registered from every module that refers
    to them.
    """
    items: Iterable[Any] = (value,)
    if isinstance(value, Mapping):
        items = list(value.values())
    elif isinstance(value, (list, tuple, Set)):
        items = list(value)
    found = [item for item in items if isinstance(item, type) and _is_adapted(item)]
    # The order of a set differs between processes.
    return sorted(found, key=lambda one: one.name) if isinstance(value, Set) else found


def _is_adapted(item: type) -> bool:
    if not isinstance(item.__dict__.get("capability_spec"), CapabilitySpec):
        return False
    owner: Any = sys.modules.get(item.__module__)
    for part in item.__qualname__.split("."):
        owner = getattr(owner, part, None)
    return owner is not item


def lacks_decorator(value: type) -> bool:
    """Return True if a class defines a capability or node but has no decorator."""
    if value.__name__.startswith("_") or inspect.isabstract(value):
        return False
    return issubclass(value, (BaseCapability, BaseInfrastructureNode)) and bool(
        value.name and value.description
    )


def find_required_decorator(item: Any) -> str:
    """Return the name of the decorator that an undecorated class or function needs."""
    node = isinstance(item, type) and issubclass(item, BaseInfrastructureNode)
    return "@infrastructure_node" if node else "@capability_node"


def create_registration_error(item: Any, *, inherits: bool) -> RegistryError:
    """Create an error that explains why an object cannot be registered.

    Args:
        item: Object that was passed to ``Registry.register``.
        inherits: Whether only a base class of the object is decorated.
    """
    name = getattr(item, "name", None) or type(item).__name__
    if hasattr(item, "args_schema") and hasattr(item, "ainvoke"):
        return RegistryError(
            f"{name!r} is a LangChain tool, not a capability.",
            fix=f"Convert it with capgraph.adapters.tool_capability({name}).",
        )
    if hasattr(item, "get_graph") and hasattr(item, "ainvoke"):
        return RegistryError(
            f"{name!r} is a LangGraph graph or another Runnable, not a capability.",
            fix="Convert it with capgraph.adapters.graph_capability(graph, Input, Output).",
        )
    if inspect.isroutine(item):
        return RegistryError(
            f"{item.__name__!r} is a function without a decorator.",
            fix="Decorate it with @capability_node.",
        )
    return RegistryError(
        f"{item!r} is not a decorated capability, a decorated infrastructure node, or a context"
        " type" + (": only its base class is decorated." if inherits else "."),
        fix=f"Decorate it with {find_required_decorator(item)}, or derive it from CapabilityContext.",
    )


def suggest_capability_list(item: Any) -> str:
    """Suggest how to correct an argument that is not a list of capabilities.

    The suggestion is the fix in an error message.

    >>> suggest_capability_list(3)
    'Pass a list of capabilities, or a Registry.'
    """
    if hasattr(item, "capability_spec"):
        return f"Write [{item.__name__}]."
    if hasattr(item, "ainvoke") or inspect.isroutine(item):
        return f"{create_registration_error(item, inherits=False).fix} Then pass it in a list."
    return "Pass a list of capabilities, or a Registry."


def check_name(kind: str, name: str) -> None:
    """Validate the name of a graph node.

    Args:
        kind: Kind of node, for the error message.
        name: Name to check.

    Raises:
        RegistryError: The name is reserved by LangGraph, or not printable.
    """
    if not is_valid_node_name(name):
        raise RegistryError(
            f"The {kind} name {name!r} is invalid: names must be printable, and LangGraph "
            "reserves ':', '|', and names enclosed in '__'.",
            fix="Use letters, digits, and underscores.",
        )


def check_insertion_point(node: InfrastructureSpec) -> None:
    """Check that an infrastructure node has a position in the graph.

    Raises:
        RegistryError: The node has neither a role nor a valid insertion point.
    """
    if node.name in INFRASTRUCTURE_ROLES:
        return
    for point, allowed in INSERTION_POINTS.items():
        target = getattr(node, point)
        if target is None:
            continue
        if target in allowed:
            return
        raise RegistryError(
            f"The infrastructure node {node.name!r} cannot be inserted {point} {target!r}, "
            "because that is not a valid insertion point.",
            fix=f"Set {point} to one of: {', '.join(allowed)}.",
        )
    raise RegistryError(
        f"The infrastructure node {node.name!r} would never run, because its name is not a role "
        f"({', '.join(INFRASTRUCTURE_ROLES)}) and it declares no insertion point.",
        fix='Use the name of a role, or set an insertion point: before = "classifier" or'
        ' after = "respond".',
    )


def qualified_name(value: Any) -> str:
    """Return the fully qualified name of a class, or of the class behind a specification."""
    cls = getattr(value, "cls", value)
    return f"{cls.__module__}.{cls.__qualname__}"
