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


def registration_name(value: type) -> str | None:
    """Return the name of a decorated class or context type, or ``None`` if discovery ignores the class."""
    own = value.__dict__
    spec = own.get("capability_spec") or own.get("infrastructure_spec")
    if spec is not None:
        return str(spec.name)
    return value.CONTEXT_TYPE if issubclass(value, CapabilityContext) else None


def find_adapted_capabilities(value: Any) -> list[Any]:
    """Return the adapted capabilities in a value of a module: the value itself, or items of a collection.

    Adapters create such classes, and so does ``capability_node`` for an imported function. Their
    ``__module__`` does not name the module that contains them, so each module that names them counts.
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
    """Return True if a class is a complete capability or node except for its decorator."""
    if value.__name__.startswith("_") or inspect.isabstract(value):
        return False
    return issubclass(value, (BaseCapability, BaseInfrastructureNode)) and bool(
        value.name and value.description
    )


def required_decorator(item: Any) -> str:
    """Return the decorator that an object lacks."""
    node = isinstance(item, type) and issubclass(item, BaseInfrastructureNode)
    return "@infrastructure_node" if node else "@capability_node"


def registration_error(item: Any, *, inherits: bool) -> RegistryError:
    """Return the error for an object that cannot be registered.

    Args:
        item: The object.
        inherits: True if a base class is decorated.
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
        fix=f"Decorate it with {required_decorator(item)}, or derive it from CapabilityContext.",
    )


def capability_list_fix(item: Any) -> str:
    """Return the fix for a single object in place of a list of capabilities.

    >>> capability_list_fix(3)
    'Pass a list of capabilities, or a Registry.'
    """
    if hasattr(item, "capability_spec"):
        return f"Write [{item.__name__}]."
    if hasattr(item, "ainvoke") or inspect.isroutine(item):
        return f"{registration_error(item, inherits=False).fix} Then pass it in a list."
    return "Pass a list of capabilities, or a Registry."


def check_name(kind: str, name: str) -> None:
    """Raise an error for a name that a node of a graph cannot have.

    Raises:
        RegistryError: The name is reserved by LangGraph, or not printable.
    """
    if not is_valid_node_name(name):
        raise RegistryError(
            f"The {kind} name {name!r} is invalid: LangGraph reserves ':', '|', and names between"
            " '__', and a name must be printable.",
            fix="Use letters, digits, and underscores.",
        )


def check_insertion_point(node: InfrastructureSpec) -> None:
    """Raise an error for an infrastructure node that no edge of the graph would reach.

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
            f"The infrastructure node {node.name!r} cannot be inserted {point} {target!r}.",
            fix=f"Use one of: {', '.join(allowed)}.",
        )
    raise RegistryError(
        f"The infrastructure node {node.name!r} would never run: its name is not a role"
        f" ({', '.join(INFRASTRUCTURE_ROLES)}), and it has no insertion point.",
        fix='Use the name of a role, or set an insertion point: before = "classifier" or'
        ' after = "respond".',
    )


def qualified_name(value: Any) -> str:
    """Return the qualified name of a class or of a declaration's class."""
    cls = getattr(value, "cls", value)
    return f"{cls.__module__}.{cls.__qualname__}"
