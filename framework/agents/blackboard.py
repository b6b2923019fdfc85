"""A board that the members of a team write on and read from."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.dict_serialization import DictSerializable
from capgraph.stores.state_store import BaseStateStore


@dataclass
class BlackboardEntry(DictSerializable):
    """What stands on a board under one key.

    Attributes:
        key: The key.
        value: The value.
        author: Who wrote it.
        written_at: When.
        metadata: What else is known of it.
    """

    key: str
    value: Any
    author: str
    written_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    metadata: dict[str, Any] = field(default_factory=dict)


class Blackboard:
    """A board in a state store; each entry is a value of its own, so no write takes another one away.

    Args:
        store: Where it lies. Processes that share it share the board.
        namespace: Names the board.
        ttl: For how many seconds an entry stands; for ever when not given.

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
        self._store, self._ttl = store, ttl
        self._prefix = f"blackboard/{quote(namespace, safe='')}/"

    @validate_arguments
    async def write(self, key: str, value: Any, author: str, **metadata: Any) -> None:
        """Write a value, in place of what stood under the key.

        Raises:
            ValidationError: It is no plain data; names the place.
        """
        entry = BlackboardEntry(key, value, author, metadata=metadata)
        await self._store.set(self._prefix + key, entry.to_dict(), self._ttl)

    @validate_arguments
    async def read(self, key: str) -> Any:
        """Return a value; ``None`` when there is none."""
        entry = await self.read_entry(key)
        return None if entry is None else entry.value

    @validate_arguments
    async def read_entry(self, key: str) -> BlackboardEntry | None:
        """Return a value with its author, moment and metadata."""
        found = await self._store.get(self._prefix + key)
        return None if found is None else BlackboardEntry.from_dict(found)

    async def list_entries(self) -> dict[str, BlackboardEntry]:
        """Return all entries by key, the oldest first."""
        found = (await self._store.entries(self._prefix)).values()
        entries = sorted(map(BlackboardEntry.from_dict, found), key=lambda e: e.written_at)
        return {entry.key: entry for entry in entries}

    async def keys(self) -> list[str]:
        """Return the keys, the oldest entry's first."""
        return list(await self.list_entries())

    @validate_arguments
    async def delete(self, key: str) -> None:
        """Take an entry away; nothing happens when there is none."""
        await self._store.delete(self._prefix + key)

    async def clear(self) -> None:
        """Take all entries of this board away."""
        await self._store.clear(self._prefix)
