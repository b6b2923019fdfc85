"""Rooms' tables of contents: written once, as imports, and followed when a name is asked for."""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any


def contents(room: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a room, which follow its ``import X as X`` lines.

    Type checkers read the same lines. Below ``if TYPE_CHECKING:`` a part is imported when one of its
    names is asked for: a graph needs few of them. ``__all__`` is the whole table.

    >>> get, names = contents("framework.graph")
    >>> names()
    ['build_graph', 'open_graph', 'signal', 'wake']
    >>> get("signal").__module__
    'framework.graph.signals'
    """

    @functools.cache
    def table() -> dict[str, str]:
        loader: Any = sys.modules[room].__loader__
        nodes = ast.walk(ast.parse(loader.get_source(room)))
        lines = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        return {a.name: str(line.module) for line in lines for a in line.names if a.asname}

    def names() -> list[str]:
        return sorted(table())

    def get(name: str) -> Any:
        if name == "__all__":
            return names()
        if name.startswith("__") or name not in table():
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(table()[name]), name)
        setattr(sys.modules[room], name, value)
        return value

    return get, names
