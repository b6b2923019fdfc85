"""Handoff of a conversation to another agent of the same graph."""

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
    """Return a ``Command`` that hands control to another node.

    Args:
        to: Name of the node that continues.
        update: Update of the graph's state.
        parent: True if the node belongs to the parent graph.

    Raises:
        ConfigurationError: ``to`` is empty. LangGraph would end the run without an error.

    >>> handoff("support").goto
    'support'
    """
    if not to:
        raise ConfigurationError(
            "Invalid handoff target '': expected the name of a node.",
            fix="Pass the name of the node that continues.",
        )
    graph = Command.PARENT if parent else None
    return Command(goto=to, update=dict(update) if update else None, graph=graph)
