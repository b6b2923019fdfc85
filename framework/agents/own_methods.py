"""Methods that a subclass of an agent writes: the work of its graph, which every call runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capgraph.configs.run_context import run_context


@dataclass(frozen=True, slots=True)
class OwnCall:
    """A running method that a subclass wrote.

    Attributes:
        agent: The agent.
        method: Name of the method.
        task: The task that it works on.
    """

    agent: Any
    method: str
    task: str


def own_call() -> OwnCall | None:
    """Return the innermost running method that a subclass wrote."""
    call: OwnCall | None = run_context().own_method
    return call


def runs_own_method(agent: Any) -> bool:
    """Return whether a method that an agent's subclass wrote is running."""
    running = own_call()
    return running is not None and running.agent is agent


def through_the_door(door: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that runs a subclass's own one as the work of its graph.

    Inside that work it runs the own method directly in two cases: a subclass calls ``super()``, or
    another method delegates the same task to it. Any other nested call is a run of its own.
    """
    name = own.__name__

    @functools.wraps(own)
    def method(self: Any, task: str, context: Any = None) -> Any:
        running = own_call()
        if running is not None and running.agent is self:
            is_super_call = getattr(type(self), name) is not method
            if is_super_call or (running.method != name and running.task == task):
                return own(self, task, context)
        return door(self, task, context)

    method.own = own  # type: ignore[attr-defined]
    return method
