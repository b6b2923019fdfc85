"""Reducers, which merge parallel writes to a state key."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AnyMessage,
    BaseMessage,
    BaseMessageChunk,
    RemoveMessage,
    convert_to_messages,
    message_chunk_to_message,
)
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from capgraph.base.errors import ValidationError

_ID_NAMESPACE = uuid.UUID("7d0f7f0e-5d1c-5b6e-9f55-6a1f3c7b2e10")
ContextData = dict[str, dict[str, dict[str, Any]]]


def merge_context_data(
    current: ContextData | None, updates: Sequence[ContextData | None]
) -> ContextData:
    """Merge updates into the context data, replacing entries with the same type and key.

    ``None`` removes an entry. Only the two changed levels are copied, so the cost depends on
    the number of entries of the changed types and not on the size of the data.

    Args:
        current: Current context data.
        updates: Updates in the order of their writes.

    >>> merge_context_data({"A": {"x": 1}}, [{"A": {"y": 2}}, None, {"B": {"z": 3}}])
    {'A': {'x': 1, 'y': 2}, 'B': {'z': 3}}
    >>> merge_context_data({"A": {"x": 1, "y": 2}}, [{"A": {"x": None}}])
    {'A': {'y': 2}}
    """
    merged: ContextData = dict(current or {})
    copied: set[str] = set()
    for update in updates:
        for kind, entries in (update or {}).items():
            if kind not in copied:
                copied.add(kind)
                merged[kind] = dict(merged.get(kind, {}))
            merged[kind].update(entries)
            for key in [key for key, entry in entries.items() if entry is None]:
                del merged[kind][key]
    return merged


def merge_messages(current: list[AnyMessage] | None, updates: Sequence[Any]) -> list[AnyMessage]:
    """Merge updates into a message list, like LangGraph's ``add_messages`` but in one call.

    A message with a known ID replaces the earlier message, and ``RemoveMessage`` removes a
    message. A message without an ID receives an ID that depends only on its position and
    content, because each replay of the stored writes must produce the same state.

    Args:
        current: Current messages.
        updates: Updates in the order of their writes. Each is a message or a list of messages.

    Raises:
        ValidationError: ``RemoveMessage`` has the ID of an unknown message.

    >>> [m.content for m in merge_messages([], [[("user", "Hello")], ("ai", "Hi")])]
    ['Hello', 'Hi']
    >>> one, two = (merge_messages([], [("user", "Hello")])[0].id for _ in range(2))
    >>> one == two
    True
    """
    merged: list[Any] = list(current or ())
    positions: dict[str, int] = {message.id: position for position, message in enumerate(merged)}
    for update in updates:
        removed: set[str] = set()
        for message in _to_messages(update):
            if isinstance(message, RemoveMessage):
                if message.id == REMOVE_ALL_MESSAGES:
                    merged, positions, removed = [], {}, set()
                elif message.id in positions:
                    removed.add(message.id)
                else:
                    raise ValidationError(
                        f"Cannot remove message {message.id!r}, because no message has this ID.",
                        fix="Use the ID of a message in the state.",
                    )
                continue
            if message.id is None:
                message.id = _create_id(message, len(merged), positions)
            removed.discard(message.id)
            if message.id in positions:
                merged[positions[message.id]] = message
            else:
                positions[message.id] = len(merged)
                merged.append(message)
        if removed:
            merged = [message for message in merged if message.id not in removed]
            positions = {message.id: position for position, message in enumerate(merged)}
    return merged


def _to_messages(update: Any) -> list[Any]:
    items = update if isinstance(update, list) else [update]
    if all(
        isinstance(item, BaseMessage) and not isinstance(item, BaseMessageChunk) for item in items
    ):
        return items
    return [
        message_chunk_to_message(item) if isinstance(item, BaseMessageChunk) else item
        for item in convert_to_messages(items)
    ]


def _create_id(message: BaseMessage, position: int, positions: Mapping[str, int]) -> str:
    content = f"{position}\0{message.type}\0{message.content}"
    message_id = uuid.uuid5(_ID_NAMESPACE, content)
    while str(message_id) in positions:
        message_id = uuid.uuid5(_ID_NAMESPACE, f"{message_id}\0{content}")
    return str(message_id)


def merge_by_key(
    current: Mapping[str, Any] | None, update: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Merge two mappings. Values of the update take precedence over current values.

    >>> merge_by_key({"a": 1, "b": 1}, {"b": 2})
    {'a': 1, 'b': 2}
    """
    return {**(current or {}), **(update or {})}


def append_entries(current: list[Any] | None, update: list[Any] | None) -> list[Any]:
    """Append the entries of an update to the current list, without changing the list.

    >>> append_entries([1], [2, 3])
    [1, 2, 3]
    """
    return [*(current or []), *(update or [])]


def last_write_wins(current: Any, update: Any) -> Any:
    """Replace the current value with the update. Use it for keys that parallel nodes may write.

    >>> last_write_wins(1, 2)
    2
    """
    return update


def merge_counters(
    current: Mapping[str, int] | None, update: Mapping[str, int] | None
) -> dict[str, int]:
    """Merge two mappings of counters, keeping the larger value of each counter.

    >>> merge_counters({"plans": 2}, {"plans": 0, "attempts": 1})
    {'plans': 2, 'attempts': 1}
    """
    merged = dict(current or {})
    for name, count in (update or {}).items():
        merged[name] = max(merged.get(name, 0), count)
    return merged


def append_all(current: list[Any] | None, updates: Sequence[Sequence[Any] | None]) -> list[Any]:
    """Append the entries of several updates to a list, as required by ``DeltaChannel``.

    >>> append_all(["a"], [["b"], None, ["c"]])
    ['a', 'b', 'c']
    """
    return [*(current or []), *(item for update in updates for item in update or ())]
