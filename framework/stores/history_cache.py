"""Cache of the delta channels of long threads, so that a turn reads only recent writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

from capgraph.langgraph_compat import copy_message_fields, restore_message

MAX_BYTES = 32 * 2**20
"""Maximum bytes cached per saver; the oldest entry is evicted first."""
_MESSAGE_BYTES = 2_000
"""Approximate size of a message without its content."""


class CachedMessages:
    """In-memory cache of the messages of a thread.

    The messages are not serialized, because serialization takes longer than a turn. Callers
    receive the cached message objects. A message that a caller modified is restored from a copy
    of its fields before the next caller receives it.

    Args:
        entries: Each message with a copy of its fields.
    """

    def __init__(self, entries: list[tuple[BaseMessage, dict[str, Any]]]) -> None:
        self._entries = entries

    @classmethod
    def of(cls, value: Any, earlier: object = None) -> CachedMessages | None:
        """Cache the messages of a channel.

        Args:
            value: Value of the channel.
            earlier: Cached value from an earlier checkpoint. Its copies of messages are reused.

        Returns:
            ``None`` if the value is not a list of LangChain messages.
        """
        if not isinstance(value, list):
            return None
        known = earlier._entries if isinstance(earlier, CachedMessages) else []
        entries: list[tuple[BaseMessage, dict[str, Any]]] = []
        for position, message in enumerate(value):
            if position < len(known) and known[position][0] is message:
                fields: dict[str, Any] | None = known[position][1]
            else:
                fields = copy_message_fields(message)
            if fields is None:
                return None
            entries.append((message, fields))
        return cls(entries)

    def read(self) -> list[BaseMessage]:
        """Return the messages as they were cached."""
        for position, (message, fields) in enumerate(self._entries):
            if vars(message) != fields:
                self._entries[position] = restore_message(message, fields), fields
        return [message for message, _ in self._entries]

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return sum(_MESSAGE_BYTES + len(str(fields["content"])) for _, fields in self._entries)


class CachedHistory(NamedTuple):
    """Values of a thread's delta channels at one checkpoint.

    Attributes:
        checkpoint_id: ID of the checkpoint.
        counters: For each channel, the number of updates and the number of checkpoints since
            its last snapshot.
        values: For each channel, the serialized value or the cached messages. Callers may
            modify the values that they read.
        size: Approximate size of the values in bytes.
    """

    checkpoint_id: str
    counters: Mapping[str, Sequence[int]]
    values: Mapping[str, tuple[str, bytes] | CachedMessages]
    size: int

    def advance(
        self,
        checkpoint_id: str,
        counters: Mapping[str, Sequence[int]],
        values: Mapping[str, Any],
        serde: SerializerProtocol,
    ) -> CachedHistory:
        """Return the cached history advanced to a later checkpoint.

        Args:
            checkpoint_id: ID of the later checkpoint.
            counters: Counters of the channels at the later checkpoint.
            values: Values of the channels at the later checkpoint.
            serde: Serializer of the saver.
        """
        cached: dict[str, tuple[str, bytes] | CachedMessages] = {}
        size = 0
        for name, value in values.items():
            messages = CachedMessages.of(value, self.values.get(name))
            if messages is None:
                cached[name] = serialized = serde.dumps_typed(value)
                size += len(serialized[1])
            else:
                cached[name] = messages
                size += messages.size
        return CachedHistory(checkpoint_id, counters, cached, size)

    def read(self, name: str, serde: SerializerProtocol) -> Any:
        """Return the cached value of a channel, deserialized if necessary."""
        value = self.values[name]
        return value.read() if isinstance(value, CachedMessages) else serde.loads_typed(value)


EMPTY_HISTORY = CachedHistory("", {}, {}, 0)
"""Entry for a thread that is not cached."""


class HistoryCache(dict[str, CachedHistory]):
    """Size-bounded cache of histories by thread ID."""

    def __setitem__(self, thread: str, history: CachedHistory) -> None:
        """Cache the history of a thread, and evict the oldest entries if the cache is too large."""
        self.pop(thread, None)
        super().__setitem__(thread, history)
        size = sum(entry.size for entry in [*self.values()])
        for oldest in [*self]:
            if size > MAX_BYTES and (evicted := self.pop(oldest, None)):
                size -= evicted.size
