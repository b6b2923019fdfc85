"""A ``Command(update=…)`` that a capability returns: keys of the application's state, and words."""

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
"""Marks the plain form of a command in a result, which the ledger of effects can keep."""


def serialize_command(result: Any) -> Any:
    """Return a result with its commands in plain form; nothing is checked, since the work is done.

    >>> serialize_command(Command(update={"seat": "4A"}, goto="pay"))
    {'__command__': {'update': {'seat': '4A'}, 'more': ['goto'], 'said': []}}
    """
    if isinstance(result, (list, tuple)) and any(isinstance(one, Command) for one in result):
        return [serialize_command(one) for one in result]
    if not isinstance(result, Command):
        return result
    more = [name for name in ("goto", "resume", "graph") if getattr(result, name) not in (None, ())]
    if not isinstance(result.update, Mapping):
        return {COMMAND_KEY: {"update": {}, "more": more or ["no named update"], "said": []}}
    update = dict(result.update)
    found = update.pop("messages", [])
    messages = found if isinstance(found, (list, tuple)) else [found]
    if any(isinstance(one, RemoveMessage) for one in messages):
        more.append("a removal of messages")
    said = [_message_text(one) for one in messages]
    return {COMMAND_KEY: {"update": update, "more": more, "said": said}}


def _message_text(message: Any) -> str:
    """Return the text of a message in any of the forms that LangChain takes."""
    if isinstance(message, BaseMessage):
        return str(message.text)
    is_pair = isinstance(message, (list, tuple)) and len(message) == 2
    content = message.get("content") if isinstance(message, Mapping) else message
    return str(message[1] if is_pair else content)


def read_command(
    value: Any,
    spec: CapabilitySpec,
    state_keys: Collection[str],
    types: ContextTypes,
) -> Any:
    """Return what a command in plain form writes, by state key and by context type.

    The text of its messages is the plain value that the capability gives.

    Args:
        value: A part of a result; anything but a command comes back as it is.
        spec: The capability.
        state_keys: Keys of the state around it.
        types: The registered context types.

    Raises:
        CapabilityError: It says where the turn goes, names a key that is not the application's, or
            has messages where the capability gives no plain value.
    """
    if not isinstance(value, Mapping) or COMMAND_KEY not in value:
        return value
    found = value[COMMAND_KEY]
    if found["more"]:
        raise CapabilityError(
            f"{spec.name!r} returned a Command with {' and '.join(found['more'])}: the plan says what"
            " runs next.",
            fix="Return Command(update={…}), or put the tool into an agent and make that a step.",
        )
    own = set(state_keys) - STATE_KEYS
    for name in found["update"]:
        if name in own or name in spec.provides:
            continue
        if name in STATE_KEYS:
            is_not, fix = "a key of the framework", "Write keys of your own state_schema."
        else:
            near = suggest_name(name, own)
            fix = f"Write {near!r}." if near else f"Declare {name!r} in the graph's state_schema."
            is_not = "not a key of the state"
        raise CapabilityError(
            f"{spec.name!r} returned a Command that writes {name!r}, which is {is_not}.", fix=fix
        )
    text = "\n".join(found["said"]) or None
    kinds = [kind for kind in spec.provides if kind not in found["update"]]
    if len(kinds) == 1 and issubclass(types.get(kinds[0], ValueContext), ValueContext):
        return {**found["update"], kinds[0]: {"value": text}}
    if text is not None:
        raise CapabilityError(
            f"{spec.name!r} returned a Command with messages, and gives no plain value that could"
            " hold their text.",
            fix="Annotate the return type as Command, or leave the messages out.",
        )
    return dict(found["update"])
