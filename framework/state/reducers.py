"""How parallel writes to one state key come together."""

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

_MESSAGES = uuid.UUID("7d0f7f0e-5d1c-5b6e-9f55-6a1f3c7b2e10")
ContextData = dict[str, dict[str, dict[str, Any]]]


def merge_context_data(
    current: ContextData | None, updates: Sequence[ContextData | None]
) -> ContextData:
    """Merge updates of context data by type and key; a key that comes again replaces its entry.

    ``None`` removes an entry.

    Only the two levels that change are copied, so a merge costs the number of entries of the
    touched types and never the size of the data.

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
    """Add messages as LangGraph's ``add_messages`` does, many updates at once.

    A message with a known id takes the place of that message, ``RemoveMessage`` takes one away. A
    message without an id is given one that follows from its place and what it says: a thread is
    rebuilt from what was written to it, and must come out the same every time.

    Raises:
        ValidationError: A message that is not there is to be removed.

    >>> [m.content for m in merge_messages([], [[("user", "Hello")], ("ai", "Hi")])]
    ['Hello', 'Hi']
    >>> one, two = (merge_messages([], [("user", "Hello")])[0].id for _ in range(2))
    >>> one == two
    True
    """
    merged: list[Any] = list(current or ())
    places: dict[str, int] = {message.id: place for place, message in enumerate(merged)}
    for update in updates:
        gone: set[str] = set()
        for message in _messages(update):
            if isinstance(message, RemoveMessage):
                if message.id == REMOVE_ALL_MESSAGES:
                    merged, places, gone = [], {}, set()
                elif message.id in places:
                    gone.add(message.id)
                else:
                    raise ValidationError(
                        f"The message {message.id!r} cannot be removed: there is none.",
                        fix="Take the id of a message of the state.",
                    )
                continue
            if message.id is None:
                message.id = _id(message, len(merged), places)
            gone.discard(message.id)
            if message.id in places:
                merged[places[message.id]] = message
            else:
                places[message.id] = len(merged)
                merged.append(message)
        if gone:
            merged = [message for message in merged if message.id not in gone]
            places = {message.id: place for place, message in enumerate(merged)}
    return merged


def _messages(update: Any) -> list[Any]:
    given = update if isinstance(update, list) else [update]
    if all(isinstance(one, BaseMessage) and not isinstance(one, BaseMessageChunk) for one in given):
        return given
    return [
        message_chunk_to_message(one) if isinstance(one, BaseMessageChunk) else one
        for one in convert_to_messages(given)
    ]


def _id(message: BaseMessage, place: int, taken: Mapping[str, int]) -> str:
    said = f"{place}\0{message.type}\0{message.content}"
    found = uuid.uuid5(_MESSAGES, said)
    while str(found) in taken:
        found = uuid.uuid5(_MESSAGES, f"{found}\0{said}")
    return str(found)


def merge_by_key(
    current: Mapping[str, Any] | None, update: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Merge two mappings; the newer value of a key wins.

    >>> merge_by_key({"a": 1, "b": 1}, {"b": 2})
    {'a': 1, 'b': 2}
    """
    return {**(current or {}), **(update or {})}


def append_entries(current: list[Any] | None, update: list[Any] | None) -> list[Any]:
    """Append the new entries.

    >>> append_entries([1], [2, 3])
    [1, 2, 3]
    """
    return [*(current or []), *(update or [])]


def last_write_wins(current: Any, update: Any) -> Any:
    """Let the write that comes last count, where several nodes may write at once.

    >>> last_write_wins(1, 2)
    2
    """
    return update


def merge_counters(
    current: Mapping[str, int] | None, update: Mapping[str, int] | None
) -> dict[str, int]:
    """Merge counters that only grow: a smaller number changes nothing.

    >>> merge_counters({"plans": 2}, {"plans": 0, "attempts": 1})
    {'plans': 2, 'attempts': 1}
    """
    merged = dict(current or {})
    for name, count in (update or {}).items():
        merged[name] = max(merged.get(name, 0), count)
    return merged


def append_all(current: list[Any] | None, updates: Sequence[Sequence[Any] | None]) -> list[Any]:
    """Append many updates at once, as :func:`append` does one by one.

    >>> append_all(["a"], [["b"], None, ["c"]])
    ['a', 'b', 'c']
    """
    return [*(current or []), *(item for update in updates for item in update or ())]
