"""Blackboard: values that the members of a team share."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.dict_serialization import DictSerializable
from capgraph.stores.custom_store import as_listable_store
from capgraph.stores.state_store import BaseStateStore


@dataclass
class BlackboardEntry(DictSerializable):
    """Entry on a blackboard that agents share.

    Attributes:
        key: Key of the entry.
        value: Stored value.
        author: Name of the agent that wrote the entry.
        written_at: Time of the write.
        metadata: Additional details about the entry.
    """

    key: str
    value: Any
    author: str
    written_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    metadata: dict[str, Any] = field(default_factory=dict)


class Blackboard:
    """Shared key-value board for agents, backed by a state store.

    Each entry is stored separately, so concurrent writes do not conflict.

    Args:
        store: State store that holds the board. Processes that share the store share the board.
        namespace: Name of the board.
        ttl: Lifetime of each entry in seconds. By default, entries do not expire.

    >>> import asyncio
    >>> from capgraph.stores import InMemoryStateStore
    >>> async def main():
    ...     board = Blackboard(InMemoryStateStore(), "run 7")
    ...     await board.write("level", 2.5, author="gauge", unit="m")
    ...     entry = await board.read_entry("level")
    ...     return await board.read("level"), entry.author, entry.metadata
    >>> asyncio.run(main())
    (2.5, 'gauge', {'unit': 'm'})
    """

    @validate_arguments
    def __init__(
        self, store: BaseStateStore, namespace: str = "default", ttl: float | None = None
    ) -> None:
        self._store, self._ttl = as_listable_store(store), ttl
        self._prefix = f"blackboard/{quote(namespace, safe='')}/"

    @validate_arguments
    async def write(self, key: str, value: Any, author: str, **metadata: Any) -> None:
        """Write a value to the blackboard, replacing any existing value of the key.

        Raises:
            ValidationError: The value is not plain data. The error message names the location of
                the invalid data.
        """
        entry = BlackboardEntry(key, value, author, metadata=metadata)
        await self._store.set(self._prefix + key, entry.to_dict(), self._ttl)

    @validate_arguments
    async def read(self, key: str) -> Any:
        """Return the value stored under a key, or None if the key does not exist."""
        entry = await self.read_entry(key)
        return None if entry is None else entry.value

    @validate_arguments
    async def read_entry(self, key: str) -> BlackboardEntry | None:
        """Return the blackboard entry for a key, including its author, time, and metadata.

        Return None if the key does not exist.
        """
        data = await self._store.get(self._prefix + key)
        return None if data is None else BlackboardEntry.from_dict(data)

    async def list_entries(self) -> dict[str, BlackboardEntry]:
        """Return all blackboard entries by key, oldest first."""
        values = (await self._store.entries(self._prefix)).values()
        entries = sorted(map(BlackboardEntry.from_dict, values), key=lambda e: e.written_at)
        return {entry.key: entry for entry in entries}

    async def keys(self) -> list[str]:
        """Return the keys of all blackboard entries, oldest entry first."""
        return list(await self.list_entries())

    @validate_arguments
    async def delete(self, key: str) -> None:
        """Delete an entry if it exists."""
        await self._store.delete(self._prefix + key)

    async def clear(self) -> None:
        """Delete all entries of this board."""
        await self._store.clear(self._prefix)
