"""Support for ``execute`` and ``stream_execute`` methods that a subclass of an agent overrides."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capgraph.configs.run_context import run_context


@dataclass(frozen=True, slots=True)
class OverrideCall:
    """Call of an overridden agent method that is currently running.

    Attributes:
        agent: Agent whose method is called.
        method: Name of the overridden method.
        task: Task that was passed to the method.
    """

    agent: Any
    method: str
    task: str


def current_override() -> OverrideCall | None:
    """Return the innermost running call of an overridden agent method, or None if there is none."""
    call: OverrideCall | None = run_context().running_method
    return call


def is_running_override(agent: Any) -> bool:
    """Return True if an overridden method of the given agent is currently running."""
    running = current_override()
    return running is not None and running.agent is agent


def run_through_graph(
    entry_point: Callable[..., Any], override: Callable[..., Any]
) -> Callable[..., Any]:
    """Wrap an overridden agent method so that calls of it run through the agent's graph.

    The wrapper calls the method directly if a subclass calls ``super()``, or if a different
    overridden method delegates the same task. Any other nested call is a separate run.
    """
    name = override.__name__

    @functools.wraps(override)
    def method(self: Any, task: str, context: Any = None) -> Any:
        running = current_override()
        if running is not None and running.agent is self:
            is_super_call = getattr(type(self), name) is not method
            if is_super_call or (running.method != name and running.task == task):
                return override(self, task, context)
        return entry_point(self, task, context)

    method.override = override  # type: ignore[attr-defined]
    return method
