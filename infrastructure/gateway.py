"""Input handling for front ends: messages, answers to questions, and ``/`` commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command

from capgraph.base import ValidationError
from capgraph.engine.graph_input import check_switches
from capgraph.planning.waits import is_wait_interrupt

SWITCHES = {
    "/task": ("task_extraction_bypass_enabled", True),
    "/caps": ("capability_selection_bypass_enabled", True),
    "/approval": ("approval_disabled", True),
    "/planning": ("planning_mode_enabled", False),
}
"""Command to its key in ``agent_control`` and whether ``off`` sets that key to True."""

HELP = {
    "/help": "show the commands",
    "/clear": "start a new thread",
    "/exit": "leave",
    "/status": "show the switches and the contents of the thread",
    "/capabilities": "list the capabilities",
    "/task:off": "use messages unchanged (':on' to interpret them with the history)",
    "/caps:off": "use every capability (':on' to select)",
    "/approval:off": "do not ask before risky steps (':on' to ask)",
    "/planning:on": "show every plan before it runs (':off' to run it)",
}


@dataclass(frozen=True, slots=True)
class PreparedInput:
    """Line typed by a user, converted to input for a graph.

    Attributes:
        input: Input for the graph, or ``None`` if the graph does not need to run.
        commands: Commands for the user interface to execute (``help``, ``clear``, ``exit``,
            ``status``, ``capabilities``).
        is_resume: True if the input is an answer to an open question.
        switches: Settings that the input changes in ``agent_control``.
    """

    input: Any = None
    commands: tuple[str, ...] = ()
    is_resume: bool = False
    switches: Mapping[str, bool] = field(default_factory=dict)


def parse_commands(text: str) -> tuple[str, tuple[str, ...], dict[str, bool]]:
    """Split a line of user input into a message, commands, and switches.

    Commands are handled by the user interface. Switches change settings of the graph.

    Raises:
        ValidationError: A command is unknown. The error lists the known commands.

    >>> parse_commands("/caps:off what is the mean?")
    ('what is the mean?', (), {'capability_selection_bypass_enabled': True})
    """
    commands: list[str] = []
    switches: dict[str, bool] = {}
    words = text.strip().split(" ")
    while words and words[0].startswith("/"):
        word = words.pop(0)
        name, _, option = word.partition(":")
        if name in SWITCHES and option in {"", "on", "off"}:
            key, inverted = SWITCHES[name]
            switches[key] = (option == "off") == inverted
        elif word in HELP:
            commands.append(word.removeprefix("/"))
        else:
            raise ValidationError(
                f"The command {word!r} is unknown.",
                fix=f"Use one of: {', '.join(HELP)}.",
            )
    return " ".join(words).strip(), tuple(commands), switches


async def prepare_input(
    graph: CompiledStateGraph[Any, Any, Any, Any], text: str, config: RunnableConfig
) -> PreparedInput:
    """Convert a line that a user typed into input for the graph.

    Args:
        graph: Graph returned by ``build_graph``.
        text: Line of text that the user typed.
        config: LangGraph config that contains the thread ID.

    Raises:
        ValidationError: A command is unknown, callers are not allowed to set a switch, or a
            switch is set while a turn is unfinished.
    """
    message, commands, switches = parse_commands(text)
    services = getattr(graph, "services", None)
    if switches and services is not None:
        check_switches(switches, services.settings)
    pending = await pending_questions(graph, config)
    if switches and (pending or (not message and (await graph.aget_state(config)).tasks)):
        raise ValidationError(
            "The setting cannot be changed: the thread has an unfinished turn, which would be lost.",
            fix="Resume the turn or answer its question first.",
        )
    if pending and message:
        answer: Command[Any] = Command(resume=dict.fromkeys(pending, message))
        return PreparedInput(answer, commands, is_resume=True)
    if not message and not switches:
        return PreparedInput(None, commands)
    graph_input: dict[str, Any] = {}
    if switches:
        graph_input["agent_control"] = switches
    if message:
        graph_input["messages"] = [HumanMessage(content=message)]
        return PreparedInput(graph_input, commands, switches=switches)
    # Update as a node that ends a turn; after any other node the thread looks unfinished.
    await graph.aupdate_state(config, graph_input, as_node="error")
    return PreparedInput(None, commands, switches=switches)


async def pending_questions(
    graph: CompiledStateGraph[Any, Any, Any, Any], config: RunnableConfig
) -> dict[str, Any]:
    """Return the unanswered questions of a thread, mapped by interrupt ID."""
    if graph.checkpointer is None:
        return {}
    snapshot = await graph.aget_state(config)
    return {
        item.id: item.value for item in snapshot.interrupts if not is_wait_interrupt(item.value)
    }
