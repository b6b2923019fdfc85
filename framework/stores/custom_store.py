"""Key listing for state stores of an application, which have only the five basic methods."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from weakref import WeakKeyDictionary

from capgraph.stores.cross_loop import CrossLoopLock
from capgraph.stores.state_store import BaseStateStore

_INDEX_KEY = "__keys__"
_LOCKS: WeakKeyDictionary[BaseStateStore, CrossLoopLock] = WeakKeyDictionary()
"""Lock of each store, which all of its wrappers share."""


class ListableStore:
    """State store wrapper that keeps a list of keys, so that entries can be found by prefix.

    Concurrent writes in one process do not lose keys. The list is a single value, so processes
    that share such a store must not write at the same time.

    Args:
        store: Store with ``get``, ``set``, ``delete``, ``exists``, and ``clear``.
    """

    def __init__(self, store: BaseStateStore) -> None:
        self._store = store
        self._lock = _LOCKS.setdefault(store, CrossLoopLock())

    async def get(self, key: str) -> Any:
        """Return a stored value, or ``None`` if the key is not set or has expired."""
        return await self._store.get(key)

    async def set(self, key: str, value: Any, ttl: float | None = None) -> None:
        """Store a value and add its key to the key list."""
        async with self._lock:
            keys = await self._list_keys()
            if key not in keys:
                await self._store.set(_INDEX_KEY, [*keys, key])
            await self._store.set(key, value, ttl)

    async def delete(self, key: str) -> None:
        """Delete a value and remove its key from the key list."""
        await self._delete_all([key])

    async def entries(self, prefix: str) -> dict[str, Any]:
        """Return the values whose keys start with a prefix, by key.

        Expired keys are removed from the key list.
        """
        async with self._lock:
            keys = await self._list_keys()
            values = {key: await self._store.get(key) for key in keys if key.startswith(prefix)}
            expired = {key for key, value in values.items() if value is None}
            if expired:
                await self._store.set(_INDEX_KEY, [key for key in keys if key not in expired])
        return {key: values[key] for key in sorted(values.keys() - expired)}

    async def clear(self, prefix: str) -> None:
        """Delete all stored values whose keys start with a prefix."""
        await self._delete_all(await self.entries(prefix))

    async def _delete_all(self, deleted_keys: Collection[str]) -> None:
        async with self._lock:
            for key in deleted_keys:
                await self._store.delete(key)
            keys = [key for key in await self._list_keys() if key not in deleted_keys]
            await self._store.set(_INDEX_KEY, keys)

    async def _list_keys(self) -> list[str]:
        return list(await self._store.get(_INDEX_KEY) or ())


def as_listable_store(store: BaseStateStore) -> BaseStateStore | ListableStore:
    """Return a store that can list its keys, wrapping the given store if necessary.

    Args:
        store: A store of capgraph, or of a subclass that does not call its ``__init__``.
    """
    if hasattr(store, "_values") or type(store).entries is not BaseStateStore.entries:
        return store
    return ListableStore(store)
