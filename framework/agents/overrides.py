"""Methods that a subclass of an agent writes: the work of its graph, which every call runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capgraph.configs.run_context import run_context


@dataclass(frozen=True, slots=True)
class OverrideCall:
    """A running method that a subclass wrote.

    Attributes:
        agent: The agent.
        method: Name of the method.
        task: The task that it works on.
    """

    agent: Any
    method: str
    task: str


def current_override() -> OverrideCall | None:
    """Return the innermost running method that a subclass wrote."""
    call: OverrideCall | None = run_context().running_method
    return call


def is_running_override(agent: Any) -> bool:
    """Return whether a method that an agent's subclass wrote is running."""
    running = current_override()
    return running is not None and running.agent is agent


def run_through_graph(
    entry_point: Callable[..., Any], override: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a method that runs a subclass's own one as the work of its graph.

    Inside that work it runs the own method directly in two cases: a subclass calls ``super()``, or
    another method delegates the same task to it. Any other nested call is a run of its own.
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

    method.own = override  # type: ignore[attr-defined]
    return method
