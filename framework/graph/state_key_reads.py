"""Check of capabilities that read state keys which other capabilities write."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

from capgraph.planning.graph_algorithms import reachable_from
from capgraph.registry import Registry
from capgraph.state.state_schema import StateSchema


class _StateKeys(NamedTuple):
    """State keys that a capability's ``execute`` method reads and returns."""

    read: frozenset[str]
    returned: frozenset[str]


def find_state_key_warnings(registry: Registry, schema: StateSchema) -> Iterator[str]:
    """Yield a warning, with its fix, for each key that a capability cannot read from the state.

    Only literal keys in the source code are found: ``state["x"]``, ``state.get("x")``, and the
    keys of a returned dictionary.

    Args:
        registry: The capabilities.
        schema: The state schema of the graph.
    """
    specs = registry.capabilities
    keys = {name: _state_keys(spec.cls) for name, spec in specs.items()}
    inputs_by_type: dict[str, list[str]] = {}
    for spec in specs.values():
        for kind in spec.provides:
            inputs_by_type.setdefault(kind, []).extend(item.type for item in spec.requires)
    for reader, spec in specs.items():
        read_types = reachable_from((item.type for item in spec.requires), inputs_by_type)
        for key in sorted(keys[reader].read):
            for writer, other in specs.items():
                if writer == reader or key not in keys[writer].returned:
                    continue
                if key in other.provides:
                    yield (
                        f"The capability {reader!r} reads {key!r} from the state, but {writer!r}"
                        " returns it as a context type, which is not a state key. Fix: declare"
                        f" requires = [{key!r}], and read self.inputs[{key!r}] or"
                        f" context[{key!r}]."
                    )
                elif key not in schema.names:
                    yield (
                        f"The capability {reader!r} reads {key!r} from the state, and {writer!r}"
                        " returns it, but it is not a state key. Fix: add the key to the class that"
                        " you pass to build_graph(..., state_schema=...), or declare a context type"
                        f" for the value in 'provides' of {writer!r} and 'requires' of {reader!r}."
                    )
                elif not spec.follows_plan_order and read_types.isdisjoint(other.provides):
                    yield (
                        f"The capability {reader!r} reads the state key {key!r}, which {writer!r}"
                        " returns, but it may run first. Fix: declare a context type for the value"
                        f" in 'provides' of {writer!r} and in 'requires' of {reader!r}, or write"
                        f" {reader!r} with a static execute(state) and without inputs."
                    )


def _state_keys(cls: type[Any]) -> _StateKeys:
    function = inspect.unwrap(getattr(cls, "__wrapped__", cls.execute))
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return _StateKeys(frozenset(), frozenset())  # created at run time, so there is no source
    nodes = list(ast.walk(tree))
    values = [node.value for node in nodes if isinstance(node, ast.Return)]
    names = {value.id for value in values if isinstance(value, ast.Name)}
    values += [
        node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id in names for target in node.targets)
    ]
    dictionaries = [value for value in values if isinstance(value, ast.Dict)]
    return _StateKeys(
        frozenset(text for node in nodes for text in _extract_read_key(node)),
        frozenset(text for one in dictionaries for key in one.keys for text in _text(key)),
    )


def _extract_read_key(node: ast.AST) -> set[str]:
    """Extract the literal key from the expression ``state["x"]`` or ``state.get("x")``.

    Return an empty set for any other expression.
    """
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return _text(node.slice) if _is_state(node.value) else set()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        is_get = node.func.attr == "get" and _is_state(node.func.value)
        return _text(node.args[0]) if is_get else set()
    return set()


def _is_state(node: ast.expr) -> bool:
    """Return True for ``state`` and ``self.state``."""
    return (isinstance(node, ast.Name) and node.id == "state") or (
        isinstance(node, ast.Attribute) and node.attr == "state"
    )


def _text(node: ast.expr | None) -> set[str]:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return {node.value} if is_text else set()  # type: ignore[union-attr]
