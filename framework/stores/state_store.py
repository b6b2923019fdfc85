"""State stores: JSON values under keys, in memory, SQLite, PostgreSQL, or Redis.

All stores have the same semantics. A value is returned exactly as it was stored; a value that JSON
would change is rejected. Each operation is atomic for one value.
"""

from __future__ import annotations

import asyncio
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

from typing_extensions import TypedDict, Unpack

from capgraph.base.errors import ConfigurationError, ValidationError
from capgraph.configs.logger import mask_secrets
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.clock import Clock, SystemClock, as_clock
from capgraph.helpers.plain_data import to_json_text
from capgraph.stores.atomic_values import FOREVER, AtomicValueStore, MemoryValues, TableValues
from capgraph.stores.database import open_tables, parse_url

T = TypeVar("T")


class _Sentinel:
    """Sentinel value with a readable name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


MISSING: Final = _Sentinel("MISSING")
"""Expected value of a key that is not set. ``None`` is a value, and differs from ``MISSING``."""

_UNCHANGED: Final = _Sentinel("SAME")
_KEY_PREFIX = "state:"
_MAX_KEY_BYTES = 2000  # bytes; PostgreSQL does not index longer names
_TextChange = Callable[[str | None], tuple[str | _Sentinel | None, T]]
"""Function of the current text. It returns the new text (``None`` to delete) and the result."""


class _Options(TypedDict, total=False):
    """Options that all stores accept."""

    key_prefix: str
    clock: Clock | Callable[[], float] | None


class BaseStateStore(ABC):
    """Base class of key-value state stores.

    A custom store may override only ``get``, ``set``, ``delete``, ``exists``, and ``clear``,
    and need not call this ``__init__``. ``Blackboard`` and ``CheckpointManager`` accept such a
    store. All other operations require a storage backend.

    Args:
        values: Storage backend.
        key_prefix: Prefix for the stored keys. Stores that share a database but have different
            prefixes are independent.
        clock: Clock to use in tests. Defaults to the clock of the database or machine.

    Raises:
        ConfigurationError: The prefix is empty.
    """

    @abstractmethod
    @validate_arguments
    def __init__(
        self,
        values: AtomicValueStore,
        *,
        key_prefix: str = _KEY_PREFIX,
        clock: Clock | Callable[[], float] | None = None,
    ) -> None:
        if not key_prefix:
            raise ConfigurationError(
                "key_prefix must not be empty because clear() would delete the values of other "
                "stores.",
                fix="Pass key_prefix='my_app:', or omit it.",
            )
        self._values, self._prefix = values, key_prefix
        self._clock = SystemClock() if clock is None else as_clock(clock)

    async def get(self, key: str, default: Any = None) -> Any:
        """Return a copy of the value stored under a key, or a default.

        Args:
            key: Key to look up.
            default: Value to return if the key is not set or has expired.
        """
        text = await self._change(key, lambda text: (_UNCHANGED, text))
        return default if text is None else json.loads(text)

    async def exists(self, key: str) -> bool:
        """Return True if a key is set, even if its value is ``None``."""
        return await self._change(key, lambda text: (_UNCHANGED, text is not None))

    async def set(self, key: str, value: Any, ttl: float | None = None) -> None:
        """Set the value of a key, replacing any previous value.

        Args:
            key: Key to set.
            value: A JSON value: dictionaries with string keys, lists, strings, finite numbers,
                booleans, or ``None``.
            ttl: Time to live in seconds. ``None`` means no expiry. With 0 or less, the value
                expires immediately.

        Raises:
            ValidationError: The value is not JSON, or the key or the TTL is invalid.
        """
        text = to_json_text(value, key)
        await self._change(key, lambda _: (text, None), ttl, reset_ttl=True)

    async def delete(self, key: str) -> None:
        """Delete the value of a key. Deleting a missing key has no effect."""
        await self._change(key, lambda _: (None, None))

    async def compare_and_set(
        self, key: str, expected: Any, value: Any, ttl: float | None = None
    ) -> bool:
        """Set a value only if the current value equals ``expected``.

        Args:
            key: Key to set.
            expected: Value that ``get`` returned. ``None`` also matches a missing key; ``MISSING``
                matches only a missing key.
            value: New value to store.
            ttl: Time to live in seconds; ``None`` to keep the current expiry.

        Returns:
            True if the value was set.
        """
        text = to_json_text(value, key)

        def swap(current_text: str | None) -> tuple[str | _Sentinel, bool]:
            current = MISSING if current_text is None else json.loads(current_text)
            if current is MISSING or expected is MISSING:
                is_equal = current is MISSING and expected in (MISSING, None)
            else:
                is_equal = _canonical(current) == _canonical(expected)
            return (text, True) if is_equal else (_UNCHANGED, False)

        return await self._change(key, swap, ttl)

    async def append(self, key: str, item: Any) -> int:
        """Append an item to the list stored under a key.

        A missing key starts a new list. A value that is not a list becomes the first item of a new
        list.

        Returns:
            The new length of the list.
        """
        to_json_text(item, key)

        def add(text: str | None) -> tuple[str, int]:
            current = [] if text is None else json.loads(text)
            items = [*current, item] if isinstance(current, list) else [current, item]
            return to_json_text(items, key), len(items)

        return await self._change(key, add)

    async def increment(self, key: str, by: float = 1) -> int | float:
        """Add to the number stored under a key. A missing key counts as 0.

        Returns:
            The new value.

        Raises:
            ValidationError: The value is not a number, or the sum is not finite.
        """
        if type(by) not in (int, float):
            raise ValidationError(f"by is {by!r}: it must be a number.", fix="Pass a number.")

        def add(text: str | None) -> tuple[str, int | float]:
            current = 0 if text is None else json.loads(text)
            if type(current) not in (int, float):
                raise ValidationError(
                    f"The value of {key!r} is of type {type(current).__name__}: it must be a"
                    " number.",
                    fix="Use a separate key for the number.",
                )
            total: int | float = current + by
            return to_json_text(total, key), total

        return await self._change(key, add)

    async def entries(self, prefix: str = "") -> dict[str, Any]:
        """Return copies of all values whose keys start with a prefix, mapped by key."""
        cells, now = await self._values.aread(self._name(prefix), self._clock)
        return {
            name.removeprefix(self._prefix): json.loads(text)
            for name, (text, until) in sorted(cells.items())
            if until is None or until > now
        }

    async def clear(self, prefix: str = "") -> None:
        """Delete all values of this store whose keys start with a prefix."""
        await self._values.aclear(self._name(prefix))

    async def setup(self) -> None:
        """Connect to the database in advance.

        Calling this method is optional, because the first operation also connects.

        Raises:
            PersistenceError: The database is unavailable.
        """
        await self.exists("")

    async def close(self) -> None:
        """Close all open database connections. The next operation reopens them."""
        await asyncio.to_thread(self._values.close)

    async def __aenter__(self) -> Self:
        await self.setup()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _change(
        self,
        key: str,
        compute: _TextChange[T],
        ttl: float | None = None,
        *,
        reset_ttl: bool = False,
    ) -> T:
        """Atomically change the serialized value of a key and update its expiry."""
        if ttl is not None and (type(ttl) not in (int, float) or not math.isfinite(ttl)):
            raise ValidationError(
                f"ttl is {ttl!r}: it must be a finite number of seconds, or None.",
                fix="Pass seconds, or None for no expiry.",
            )

        def change(entry: Any, now: float) -> tuple[Any, float, T]:
            text, until = entry or (None, None)
            if until is not None and until <= now:
                text = until = None
            new_text, result = compute(text)
            if new_text is not _UNCHANGED:
                text = new_text
                if reset_ttl or ttl is not None:
                    until = None if ttl is None else now + ttl
            ttl_left = FOREVER if until is None else until - now
            return (None if text is None else [text, until]), ttl_left, result

        return await self._values.achange(self._name(key), change, self._clock)

    def _name(self, key: str) -> str:
        name = self._prefix + key if isinstance(key, str) else ""
        if not name or "\0" in name or len(name.encode(errors="replace")) > _MAX_KEY_BYTES:
            raise ValidationError(
                f"The key {key!r:.80} is invalid: it must be text without NUL of at most"
                f" {_MAX_KEY_BYTES} bytes.",
                fix="Use a shorter text without NUL characters.",
            )
        to_json_text(key, "key")
        return name


def _canonical(value: Any) -> str:
    return json.dumps(json.loads(to_json_text(value, "expected")), sort_keys=True)


class InMemoryStateStore(BaseStateStore):
    """State store in the memory of this process. Expired values are removed automatically.

    Args:
        key_prefix: Prefix of the stored keys.
        clock: Clock for tests.

    >>> async def main():
    ...     store = InMemoryStateStore()
    ...     await store.set("tank", {"level": 2.5}, ttl=60)
    ...     await store.increment("visits")
    ...     return await store.get("tank"), await store.increment("visits", by=2)
    >>> asyncio.run(main())
    ({'level': 2.5}, 3)
    """

    def __init__(self, **options: Unpack[_Options]) -> None:
        super().__init__(MemoryValues(), **options)


class SqliteStateStore(BaseStateStore):
    """State store in a SQLite file, which several processes can share.

    Args:
        path: Path of the file. It is created on first use.
        key_prefix: Prefix of the stored keys.
        clock: Clock for tests.
    """

    @validate_arguments
    def __init__(self, path: str | Path, **options: Unpack[_Options]) -> None:
        target = str(path)
        url = target if "://" in target else f"sqlite:///{quote(target)}"
        super().__init__(TableValues(open_tables(url)), **options)


class PostgresStateStore(BaseStateStore):
    """State store in a PostgreSQL database.

    Args:
        url: ``postgresql://user@host/database``.
        key_prefix: Prefix of the stored keys.
        clock: Clock for tests.

    Raises:
        ConfigurationError: The URL is not a PostgreSQL URL.
        MissingExtraError: The extra ``postgres`` is not installed.
    """

    @validate_arguments
    def __init__(self, url: str, **options: Unpack[_Options]) -> None:
        if parse_url(url).kind != "postgres":
            raise ConfigurationError(
                f"{mask_secrets(url)!r} is not a PostgreSQL URL.",
                fix="Use postgresql://user@host/database.",
            )
        super().__init__(TableValues(open_tables(url)), **options)


class RedisStateStore(BaseStateStore):
    """State store in a Redis server.

    Args:
        url: ``redis://…``, ``rediss://…``, or ``unix://…``.
        key_prefix: Prefix of the keys on the server.
        clock: Clock for tests.

    Raises:
        ConfigurationError: The URL is not a Redis URL.
        MissingExtraError: The extra ``redis`` is not installed.
    """

    @validate_arguments
    def __init__(self, url: str, **options: Unpack[_Options]) -> None:
        from capgraph.stores.redis_values import RedisValues

        options.setdefault("key_prefix", f"capgraph:{_KEY_PREFIX}")
        super().__init__(RedisValues(url, ""), **options)


_BACKENDS: dict[str, Callable[..., BaseStateStore]] = {
    "memory": InMemoryStateStore,
    "sqlite": SqliteStateStore,
    "redis": RedisStateStore,
    "postgres": PostgresStateStore,
}


class StateStoreFactory:
    """Factory that creates state stores by the name of their storage backend."""

    @staticmethod
    @validate_arguments
    def create(backend: str = "memory", **kw: Any) -> BaseStateStore:
        """Create a state store for a storage backend.

        Args:
            backend: ``memory``, ``sqlite``, ``redis``, or ``postgres``.
            **kw: Arguments for the constructor of the store's class.

        Raises:
            ConfigurationError: The backend is unknown. The error is also a ``ValueError``.
            TypeError: An argument is unknown or missing.

        >>> type(StateStoreFactory.create("memory")).__name__
        'InMemoryStateStore'
        """
        if backend not in _BACKENDS:
            raise ConfigurationError(
                f"The state store backend {backend!r} is unknown.",
                fix=f"Use {', '.join(_BACKENDS)}.",
            )
        return _BACKENDS[backend](**kw)
