"""Handing a conversation over to another agent of the same graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.types import Command

from capgraph.base.errors import ConfigurationError
from capgraph.helpers.argument_validation import validate_arguments


@validate_arguments
def handoff(
    to: str, update: Mapping[str, Any] | None = None, *, parent: bool = False
) -> Command[Any]:
    """Return what a node returns to hand over to another.

    Args:
        to: Name of the node that goes on.
        update: What the state gets besides.
        parent: Whether the node is one of the graph around this one.

    Raises:
        ConfigurationError: The name is empty, by which LangGraph would go nowhere.

    >>> handoff("support").goto
    'support'
    """
    if not to:
        raise ConfigurationError("A handoff to '' goes nowhere.", fix="Name the node that goes on.")
    graph = Command.PARENT if parent else None
    return Command(goto=to, update=dict(update) if update else None, graph=graph)
