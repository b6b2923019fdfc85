"""What can be registered, and what looks as if it could."""

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


def registration_name(value: type) -> str | None:
    """Return the name of what discovery registers: a class decorated itself, or a context type."""
    own = value.__dict__
    spec = own.get("capability_spec") or own.get("infrastructure_spec")
    if spec is not None:
        return str(spec.name)
    return value.CONTEXT_TYPE if issubclass(value, CapabilityContext) else None


def find_adapted_capabilities(value: Any) -> list[Any]:
    """Return the capabilities that no module defines: a module's value, or those in a collection.

    The adapters make such classes, and so does ``capability_node`` of an imported function. Their
    ``__module__`` does not say where they belong, so they belong to each module that names them.
    """
    items: Iterable[Any] = (value,)
    if isinstance(value, Mapping):
        items = list(value.values())
    elif isinstance(value, (list, tuple, Set)):
        items = list(value)
    found = [item for item in items if isinstance(item, type) and _is_adapted(item)]
    # A set has no order of its own, and each process would have another one.
    return sorted(found, key=lambda one: one.name) if isinstance(value, Set) else found


def _is_adapted(item: type) -> bool:
    if not isinstance(item.__dict__.get("capability_spec"), CapabilitySpec):
        return False
    home: Any = sys.modules.get(item.__module__)
    for part in item.__qualname__.split("."):
        home = getattr(home, part, None)
    return home is not item


def lacks_decorator(value: type) -> bool:
    """Tell whether a class is written as a capability or node, but for its decorator."""
    if value.__name__.startswith("_") or inspect.isabstract(value):
        return False
    return issubclass(value, (BaseCapability, BaseInfrastructureNode)) and bool(
        value.name and value.description
    )


def required_decorator(item: Any) -> str:
    """Name the decorator that an object lacks."""
    node = isinstance(item, type) and issubclass(item, BaseInfrastructureNode)
    return "@infrastructure_node" if node else "@capability_node"


def registration_error(item: Any, *, inherits: bool) -> RegistryError:
    """Say why something cannot be registered, and what it would have to be.

    Args:
        item: What was given.
        inherits: Whether its parent is decorated.
    """
    called = getattr(item, "name", None) or type(item).__name__
    if hasattr(item, "args_schema") and hasattr(item, "ainvoke"):
        return RegistryError(
            f"{called!r} is a LangChain tool, which is no capability yet.",
            fix=f"Make it one: capgraph.adapters.tool_capability({called}).",
        )
    if hasattr(item, "get_graph") and hasattr(item, "ainvoke"):
        return RegistryError(
            f"{called!r} is a LangGraph graph or another Runnable, which is no capability yet.",
            fix="Make it one: capgraph.adapters.graph_capability(graph, Input, Output).",
        )
    if inspect.isroutine(item):
        return RegistryError(
            f"{item.__name__!r} is a function without its decorator.",
            fix="Put @capability_node above it.",
        )
    return RegistryError(
        f"{item!r} is neither a decorated capability, a decorated infrastructure node nor a"
        " context type" + (": its parent is decorated, it is not." if inherits else "."),
        fix=f"Decorate it with {required_decorator(item)}, or derive it from CapabilityContext.",
    )


def capability_list_fix(item: Any) -> str:
    """Return the fix for a single object in the place of a list of capabilities.

    >>> capability_list_fix(3)
    'Give a list of capabilities, or a Registry.'
    """
    if hasattr(item, "capability_spec"):
        return f"Write [{item.__name__}]."
    if hasattr(item, "ainvoke") or inspect.isroutine(item):
        return f"{registration_error(item, inherits=False).fix} Then give a list of it."
    return "Give a list of capabilities, or a Registry."


def check_name(kind: str, name: str) -> None:
    """Refuse a name that no node of a graph can have.

    Raises:
        RegistryError: It is LangGraph's, or cannot be printed.
    """
    if not is_valid_node_name(name):
        raise RegistryError(
            f"The {kind} name {name!r} stands between '__', holds ':' or '|', which LangGraph"
            " reserves, or cannot be printed.",
            fix="Use letters, digits and underscores.",
        )


def check_insertion_point(node: InfrastructureSpec) -> None:
    """Refuse an infrastructure node that no edge of the graph would reach.

    Raises:
        RegistryError: It has neither a role nor a place beside one.
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
            f"The infrastructure node {node.name!r} cannot stand {point} {target!r}.",
            fix=f"Use one of: {', '.join(allowed)}.",
        )
    raise RegistryError(
        f"The infrastructure node {node.name!r} has no role and no place, so it would never run;"
        f" roles are {', '.join(INFRASTRUCTURE_ROLES)}.",
        fix='Name it like the role that it takes, or say where it stands: before = "classifier"'
        ' or after = "respond".',
    )


def qualified_name(value: Any) -> str:
    """Say where a class stands, for messages."""
    cls = getattr(value, "cls", value)
    return f"{cls.__module__}.{cls.__qualname__}"
