"""Lazy exports of packages: a name is imported from its module on first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_exports(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Create ``__getattr__`` and ``__dir__`` for a package that imports its exports on first use.

    Lazy imports keep startup fast, because a graph needs only a few of the exported modules.
    The table of exports is explicit so that it works without source files and with import
    hooks.

    Args:
        package: Package name, usually ``__name__``.
        modules: Exported names by module name.

    >>> get, names = lazy_exports("capgraph.graph", {"capgraph.graph.signals": ["signal"]})
    >>> names()
    ['signal']
    >>> get("signal").__module__
    'capgraph.graph.signals'
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def names() -> list[str]:
        return sorted(module_of)

    def get(name: str) -> Any:
        if name == "__all__":
            # A star import must not replace a module of the standard library, such as signal.
            return [name for name in names() if name not in sys.stdlib_module_names]
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, names
