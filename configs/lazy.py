"""Rooms whose parts are imported when they are asked for: a graph needs few of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any


def found_in(
    room: str, parts: Sequence[str], names: Collection[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a room that imports its parts one by one.

    Args:
        room: Its name.
        parts: Its modules, in the order in which a name is looked for: the light ones first. A name
            with a dot stands in another room.
        names: What the room gives.

    >>> get, _ = found_in("framework.governance", ["estimate"], ["PlanEstimate"])
    >>> get("PlanEstimate").__name__
    'PlanEstimate'
    """

    def get(name: str) -> Any:
        if name in names:
            for part in parts:
                module = importlib.import_module(part if "." in part else f"{room}.{part}")
                if name in vars(module):
                    setattr(sys.modules[room], name, vars(module)[name])
                    return vars(module)[name]
        raise AttributeError(f"module {room!r} has no attribute {name!r}")

    return get, lambda: sorted(names)
