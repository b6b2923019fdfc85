"""State of one's own under keys: in memory, in SQLite, in PostgreSQL or in Redis, with one meaning.

What is kept is JSON and comes back as exactly what was given: what JSON would change is refused.
Every operation changes one value as a whole, whoever else is at it.
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
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.clock import Clock, SystemClock, as_clock
from capgraph.helpers.plain_data import to_json_text
from capgraph.stores.atomic_values import FOREVER, AtomicValueStore, MemoryValues, TableValues
from capgraph.stores.database import open_tables, parse_url

T = TypeVar("T")


class _Word:
    """A value like no other, with a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


MISSING: Final = _Word("ABSENT")
"""What is expected of a key that is not there, not even with the value ``None``."""

_SAME: Final = _Word("SAME")
_PREFIX = "state:"
_LONGEST = 2000  # bytes; PostgreSQL finds no longer ones
_Work = Callable[[str | None], tuple[str | _Word | None, T]]
"""Takes the text of a value, gives the new one (``None`` for no value) and what the caller gets."""


class _Options(TypedDict, total=False):
    """What every store takes beside the place of its values."""

    key_prefix: str
    clock: Clock | Callable[[], float] | None


class BaseStateStore(ABC):
    """Values under keys, each changed as a whole.

    Args:
        values: Where they lie.
        key_prefix: What the names of the keys begin with where they lie. Stores of one database
            whose prefixes differ know nothing of each other.
        clock: Tells the time, in tests; the database's own, or the machine's, when not given.

    Raises:
        ConfigurationError: The prefix is empty.
    """

    @abstractmethod
    @validate_arguments
    def __init__(
        self,
        values: AtomicValueStore,
        *,
        key_prefix: str = _PREFIX,
        clock: Clock | Callable[[], float] | None = None,
    ) -> None:
        if not key_prefix:
            raise ConfigurationError(
                "A state store without a prefix would clear what is not its own.",
                fix="Give key_prefix='my_app:', or leave it out.",
            )
        self._cells, self._prefix = values, key_prefix
        self._clock = SystemClock() if clock is None else as_clock(clock)

    async def get(self, key: str, default: Any = None) -> Any:
        """Return a copy of a value.

        Args:
            key: The key.
            default: What to return when there is none, or its time is over.
        """
        text = await self._change(key, lambda text: (_SAME, text))
        return default if text is None else json.loads(text)

    async def exists(self, key: str) -> bool:
        """Tell whether there is a value, which may be ``None``."""
        return await self._change(key, lambda text: (_SAME, text is not None))

    async def set(self, key: str, value: Any, ttl: float | None = None) -> None:
        """Keep a value in place of whatever there was.

        Args:
            key: The key.
            value: Dictionaries with names of text, lists, text, finite numbers, booleans, ``None``.
            ttl: For how many seconds; ``None`` for ever. After 0 seconds or less it is gone at once.

        Raises:
            ValidationError: The value is none of these, or the key or the time cannot be used.
        """
        text = to_json_text(value, key)
        await self._change(key, lambda _: (text, None), ttl, anew=True)

    async def delete(self, key: str) -> None:
        """Take a value away; nothing happens when there is none."""
        await self._change(key, lambda _: (None, None))

    async def compare_and_set(
        self, key: str, expected: Any, value: Any, ttl: float | None = None
    ) -> bool:
        """Set a value only if nobody has changed it.

        Args:
            key: The key.
            expected: What ``get`` gave. ``None`` also stands for a key that is not there;
                ``MISSING`` stands for nothing else.
            value: The new value.
            ttl: For how many seconds from now; when not given, it ends when the old one would.

        Returns:
            Whether it was set.
        """
        text = to_json_text(value, key)

        def swap(found: str | None) -> tuple[str | _Word, bool]:
            there = MISSING if found is None else json.loads(found)
            if there is MISSING or expected is MISSING:
                same = there is MISSING and expected in (MISSING, None)
            else:
                same = _sorted(there) == _sorted(expected)
            return (text, True) if same else (_SAME, False)

        return await self._change(key, swap, ttl)

    async def append(self, key: str, item: Any) -> int:
        """Add an item to a list; what is no list becomes the first item of one.

        Returns:
            How many items there are now.
        """
        to_json_text(item, key)

        def add(found: str | None) -> tuple[str, int]:
            there = [] if found is None else json.loads(found)
            items = [*there, item] if isinstance(there, list) else [there, item]
            return to_json_text(items, key), len(items)

        return await self._change(key, add)

    async def increment(self, key: str, by: float = 1) -> int | float:
        """Add to a number, which is 0 when there is none.

        Returns:
            The sum.

        Raises:
            ValidationError: There is something else than a number, or the sum is none.
        """
        if type(by) not in (int, float):
            raise ValidationError(f"{by!r} cannot be added.", fix="Give a number.")

        def add(found: str | None) -> tuple[str, int | float]:
            there = 0 if found is None else json.loads(found)
            if type(there) not in (int, float):
                raise ValidationError(
                    f"{key!r} holds {type(there).__name__}, to which nothing can be added.",
                    fix="Use a key of its own for a number.",
                )
            total: int | float = there + by
            return to_json_text(total, key), total

        return await self._change(key, add)

    async def entries(self, prefix: str = "") -> dict[str, Any]:
        """Return copies of all values whose keys begin with a prefix, by key."""
        cells, now = await self._cells.aread(self._name(prefix), self._clock)
        return {
            name.removeprefix(self._prefix): json.loads(text)
            for name, (text, until) in sorted(cells.items())
            if until is None or until > now
        }

    async def clear(self, prefix: str = "") -> None:
        """Take away the values whose keys begin with a prefix: all of this store, and no others."""
        await self._cells.aclear(self._name(prefix))

    async def setup(self) -> None:
        """Make sure that the database can be used; the first operation does so too.

        Raises:
            PersistenceError: It cannot.
        """
        await self.exists("")

    async def close(self) -> None:
        """Let go of what is held open; it is opened again when it is needed."""
        await asyncio.to_thread(self._cells.close)

    async def __aenter__(self) -> Self:
        await self.setup()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _change(
        self, key: str, work: _Work[T], ttl: float | None = None, *, anew: bool = False
    ) -> T:
        """Change the text of a value, and how long it stays."""
        if ttl is not None and (type(ttl) not in (int, float) or not math.isfinite(ttl)):
            raise ValidationError(f"ttl is {ttl!r}.", fix="Give seconds, or None for ever.")

        def change(cell: Any, now: float) -> tuple[Any, float, T]:
            text, until = cell or (None, None)
            if until is not None and until <= now:
                text = until = None
            new, result = work(text)
            if new is not _SAME:
                text = new
                if anew or ttl is not None:
                    until = None if ttl is None else now + ttl
            left = FOREVER if until is None else until - now
            return (None if text is None else [text, until]), left, result

        return await self._cells.achange(self._name(key), change, self._clock)

    def _name(self, key: str) -> str:
        name = self._prefix + key if isinstance(key, str) else ""
        if not name or "\0" in name or len(name.encode(errors="replace")) > _LONGEST:
            raise ValidationError(
                f"{key!r:.80} is no key.",
                fix=f"Give text of at most {_LONGEST} bytes without the character of code 0.",
            )
        to_json_text(key, "key")
        return name


def _sorted(value: Any) -> str:
    return json.dumps(json.loads(to_json_text(value, "expected")), sort_keys=True)


class InMemoryStateStore(BaseStateStore):
    """State of this process. What nobody reads goes too when its time is over.

    Args:
        key_prefix: What the names of its keys begin with.
        clock: Tells the time, in tests.

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
    """State in a SQLite file that processes may share.

    Args:
        path: The file; it is made when it is first used.
        key_prefix: What the names of its keys begin with.
        clock: Tells the time, in tests.
    """

    @validate_arguments
    def __init__(self, path: str | Path, **options: Unpack[_Options]) -> None:
        target = str(path)
        url = target if "://" in target else f"sqlite:///{quote(target)}"
        super().__init__(TableValues(open_tables(url)), **options)


class PostgresStateStore(BaseStateStore):
    """State in a PostgreSQL database.

    Args:
        url: ``postgresql://user@host/database``.
        key_prefix: What the names of its keys begin with.
        clock: Tells the time, in tests.

    Raises:
        ConfigurationError: It is no such URL.
        MissingExtraError: The extra ``postgres`` is not installed.
    """

    @validate_arguments
    def __init__(self, url: str, **options: Unpack[_Options]) -> None:
        if parse_url(url).kind != "postgres":
            raise ConfigurationError(
                f"{url!r} is no PostgreSQL.", fix="Write postgresql://user@host/database."
            )
        super().__init__(TableValues(open_tables(url)), **options)


class RedisStateStore(BaseStateStore):
    """State in a Redis server.

    Args:
        url: ``redis://…``, ``rediss://…`` or ``unix://…``.
        key_prefix: What its keys begin with on the server.
        clock: Tells the time, in tests.

    Raises:
        ConfigurationError: It is no such URL.
        MissingExtraError: The extra ``redis`` is not installed.
    """

    @validate_arguments
    def __init__(self, url: str, **options: Unpack[_Options]) -> None:
        from capgraph.stores.redis_values import RedisValues

        options.setdefault("key_prefix", f"capgraph:{_PREFIX}")
        super().__init__(RedisValues(url, ""), **options)


_BACKENDS: dict[str, Callable[..., BaseStateStore]] = {
    "memory": InMemoryStateStore,
    "sqlite": SqliteStateStore,
    "redis": RedisStateStore,
    "postgres": PostgresStateStore,
}


class StateStoreFactory:
    """Makes state stores by the name of what they lie in."""

    @staticmethod
    @validate_arguments
    def create(backend: str = "memory", **kw: Any) -> BaseStateStore:
        """Make a store.

        Args:
            backend: ``memory``, ``sqlite``, ``redis`` or ``postgres``.
            **kw: Arguments of its class.

        Raises:
            ConfigurationError: There is no such backend; it is a ``ValueError``.
            TypeError: The class takes no such argument, or needs another one.

        >>> type(StateStoreFactory.create("memory")).__name__
        'InMemoryStateStore'
        """
        if backend not in _BACKENDS:
            raise ConfigurationError(
                f"There is no state store {backend!r}.", fix=f"Use {', '.join(_BACKENDS)}."
            )
        return _BACKENDS[backend](**kw)
