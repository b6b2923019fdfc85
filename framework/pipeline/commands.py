"""Support for capabilities that return LangGraph's ``Command(update=…)``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from langchain_core.messages import BaseMessage, RemoveMessage
from langgraph.types import Command

from capgraph.base.errors import CapabilityError
from capgraph.base.spec import CapabilitySpec
from capgraph.base.value_context import ValueContext
from capgraph.configs.suggestions import suggest_name
from capgraph.state import STATE_KEYS, ContextTypes

COMMAND_KEY = "__command__"
"""Key of a command in a serialized result, which the effect ledger can store."""


def serialize_command(result: Any) -> Any:
    """Convert LangGraph ``Command`` objects in a result to plain data, without validation.

    >>> serialize_command(Command(update={"seat": "4A"}, goto="pay"))
    {'__command__': {'update': {'seat': '4A'}, 'more': ['goto'], 'said': []}}
    """
    if isinstance(result, (list, tuple)) and any(isinstance(item, Command) for item in result):
        return [serialize_command(item) for item in result]
    if not isinstance(result, Command):
        return result
    unsupported = [
        name for name in ("goto", "resume", "graph") if getattr(result, name) not in (None, ())
    ]
    if not isinstance(result.update, Mapping):
        return {COMMAND_KEY: {"update": {}, "more": unsupported or ["no named update"], "said": []}}
    update = dict(result.update)
    message_input = update.pop("messages", [])
    messages = message_input if isinstance(message_input, (list, tuple)) else [message_input]
    if any(isinstance(item, RemoveMessage) for item in messages):
        unsupported.append("a removal of messages")
    texts = [_message_text(item) for item in messages]
    return {COMMAND_KEY: {"update": update, "more": unsupported, "said": texts}}


def _message_text(message: Any) -> str:
    """Return the text of a message in any format that LangChain accepts."""
    if isinstance(message, BaseMessage):
        return str(message.text)
    is_pair = isinstance(message, (list, tuple)) and len(message) == 2
    content = message.get("content") if isinstance(message, Mapping) else message
    return str(message[1] if is_pair else content)


def read_command(
    value: Any, spec: CapabilitySpec, state_keys: Collection[str], types: ContextTypes
) -> Any:
    """Read the state and context values that a serialized LangGraph ``Command`` writes.

    The text of the command's messages becomes the plain value that the capability provides.

    Args:
        value: Part of a result. Any value other than a command is returned unchanged.
        spec: Declarations of the capability.
        state_keys: Keys of the graph's state.
        types: Registered context types.

    Raises:
        CapabilityError: The command contains an unsupported part such as ``goto``, a state key
            of the framework, or messages although the capability provides no plain value.
    """
    if not isinstance(value, Mapping) or COMMAND_KEY not in value:
        return value
    command = value[COMMAND_KEY]
    if command["more"]:
        raise CapabilityError(
            f"The Command of {spec.name!r} has unsupported parts ({' and '.join(command['more'])}), "
            "because the plan decides what runs next.",
            fix="return Command(update={…}), or use the tool in an agent and plan the agent.",
        )
    application_keys = set(state_keys) - STATE_KEYS
    for name in command["update"]:
        if name in application_keys or name in spec.provides:
            continue
        if name in STATE_KEYS:
            cause, fix = "the framework owns it", "use keys of your own state_schema."
        else:
            suggestion = suggest_name(name, application_keys)
            fix = (
                f"use {suggestion!r}."
                if suggestion
                else f"declare {name!r} in the graph's state_schema."
            )
            cause = "it is not a state key"
        raise CapabilityError(
            f"The Command of {spec.name!r} cannot write {name!r}: {cause}.", fix=fix
        )
    text = "\n".join(command["said"]) or None
    kinds = [kind for kind in spec.provides if kind not in command["update"]]
    if len(kinds) == 1 and issubclass(types.get(kinds[0], ValueContext), ValueContext):
        return {**command["update"], kinds[0]: {"value": text}}
    if text is not None:
        raise CapabilityError(
            f"The Command of {spec.name!r} must not contain messages, because the capability "
            "provides no plain value for their text.",
            fix="annotate the return type as Command, or remove the messages.",
        )
    return dict(command["update"])
