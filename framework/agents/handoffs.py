"""Handoffs of a conversation to another agent of the same graph or to another capability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from langchain_core.tools import StructuredTool
from langgraph.types import Command

from capgraph.adapters.request import collect_labels
from capgraph.base.errors import ConfigurationError
from capgraph.engine.dialogues import HandoffRequest
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.langgraph_compat import running_graph_messages


@validate_arguments
def handoff(
    to: str, update: Mapping[str, Any] | None = None, *, parent: bool = False
) -> Command[Any]:
    """Return a LangGraph ``Command`` that hands control to a different node.

    Args:
        to: Name of the node that takes over.
        update: Update to the graph's state.
        parent: True if the node belongs to the parent graph.

    Raises:
        ConfigurationError: ``to`` is empty, which LangGraph would treat as the end of the run.

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


class HandoffTool(StructuredTool):
    """Tool that ends an agent's run and hands over to another capability or the planner."""


@validate_arguments
def handoff_tool(to: str = "", description: str | None = None) -> HandoffTool:
    """Return a tool that hands a request over to another capability or to the planner.

    The agent must be part of an :func:`~capgraph.adapters.graphs.agent_capability` with
    ``keeps_dialogue=True``. The tool ends the agent's run and its dialogue:

    - ``transfer_to_<name>(task)`` proposes a plan in which the capability performs the task. The
      plan is validated like any other plan.
    - ``hand_back(task)`` passes the agent's reason to the planner, which continues the turn.

    Args:
        to: Name of the capability. Defaults to the planner.
        description: Description for the agent's model.

    >>> handoff_tool("lodging", "Books rooms.").name, handoff_tool().name
    ('transfer_to_lodging', 'hand_back')
    """

    async def hand_over(task: str = "") -> str:
        labels = collect_labels({"messages": running_graph_messages()})
        raise HandoffRequest(to, task, labels)

    if to:
        name = f"transfer_to_{to}"
        about = f"Hand the user over to {to}, with the task for it. {description or ''}".strip()
    else:
        name = "hand_back"
        about = description or (
            "End this conversation and hand the user back, with what they want now. Use it if they"
            " want something that your tools cannot do, or want to talk to somebody else."
        )
    tool: Any = HandoffTool.from_function(coroutine=hand_over, name=name, description=about)
    return cast("HandoffTool", tool)
