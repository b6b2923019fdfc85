"""Atomic read-modify-write of small JSON values, in memory or in a shared database.

A change is a function of the current value and the current time. Changes of the same value never
overlap. In memory, a lock is held while the function runs. In a database, a change that loses a
race with another one is computed again.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from capgraph.base.errors import PersistenceError
from capgraph.configs.logger import get_logger
from capgraph.helpers.async_calls import shielded
from capgraph.helpers.clock import Clock, SystemClock
from capgraph.stores.database import SqlTables, StatementResult

T = TypeVar("T")

FOREVER = float("inf")
ChangeFunction = Callable[[Any, float], tuple[Any, float, T]]
"""Function of the value (``None`` if not set) and the time in seconds. It returns the new value,
its time to live in seconds, and the result for the caller.
"""

UndoFunction = Callable[[T], ChangeFunction[Any]]
"""Function that takes the result of a change and returns the change that reverts it."""

_Statements = Generator[tuple[str, tuple[Any, ...]], StatementResult, tuple[T, float]]

_READ = (
    "SELECT {now} AS moment, value, stamp FROM (SELECT 1 AS one) AS always"
    " LEFT JOIN capgraph_cells ON name = ?"
)
_LIST = (
    "SELECT {now} AS moment, name, value FROM (SELECT 1 AS one) AS always"
    " LEFT JOIN capgraph_cells ON name >= ? AND name <= ?"
)
_CLEAR = "DELETE FROM capgraph_cells WHERE name >= ? AND name <= ?"
_INSERT = (
    "INSERT INTO capgraph_cells (value, stamp, expires, name) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (name) DO NOTHING"
)
_UPDATE = "UPDATE capgraph_cells SET value = ?, stamp = ?, expires = ? WHERE name = ? AND stamp = ?"
_DELETE = "DELETE FROM capgraph_cells WHERE name = ? AND stamp = ?"
_SWEEP = "DELETE FROM capgraph_cells WHERE expires < ?"
_LAST = "\U0010ffff"  # sorts after all names with the same prefix
_SWEEP_SHARE = 0.005  # share of changes that also delete expired values
_SWEEP_SIZE = 1024


class AtomicValueStore(ABC):
    """Key-value store whose values are changed atomically."""

    @abstractmethod
    def change(self, name: str, change: ChangeFunction[T], clock: Clock) -> T:
        """Change a stored value atomically, blocking the calling thread.

        Args:
            name: Name of the stored value.
            change: Function that computes the new value. It may be called more than once.
            clock: Source of the current time.

        Raises:
            PersistenceError: The database rejected the statement or is unavailable.
        """

    @abstractmethod
    async def achange(
        self,
        name: str,
        change: ChangeFunction[T],
        clock: Clock,
        undo: UndoFunction[T] | None = None,
    ) -> T:
        """Change a stored value atomically without blocking the event loop.

        Args:
            name: Name of the stored value.
            change: Function that computes the new value. It may be called more than once.
            clock: Source of the current time.
            undo: Function that returns the reverting change. It is applied if the caller is
                canceled while the change is being written.

        Raises:
            PersistenceError: The database rejected the statement or is unavailable.
        """

    @abstractmethod
    async def aread(self, prefix: str, clock: Clock) -> tuple[dict[str, Any], float]:
        """Return the stored values whose names start with a prefix, and the current time.

        Raises:
            PersistenceError: The database rejected the statement or is unavailable.
        """

    @abstractmethod
    async def aclear(self, prefix: str) -> None:
        """Delete all stored values whose names start with a prefix.

        Raises:
            PersistenceError: The database rejected the statement or is unavailable.
        """

    def close(self) -> None:  # noqa: B027 - optional to override
        """Close the store's open connections. The next operation reopens them."""


class MemoryValues(AtomicValueStore):
    """In-memory value store of the current process.

    Args:
        max_entries: Maximum number of values. The least recently changed value is evicted first.

    >>> values = MemoryValues()
    >>> def count(value, now):
    ...     return (value or 0) + 1, FOREVER, value
    >>> [values.change("calls", count, SystemClock()) for _ in range(2)]
    [None, 1]
    """

    def __init__(self, max_entries: float = FOREVER) -> None:
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._values: dict[str, tuple[Any, float]] = {}
        self._sweep_at = _SWEEP_SIZE

    def change(self, name: str, change: ChangeFunction[T], clock: Clock) -> T:
        """Change a stored value while holding the lock of the in-memory store."""
        now = clock.monotonic()
        with self._lock:
            value, ttl, result = change(self._values.get(name, (None,))[0], now)
            self._values.pop(name, None)
            if value is not None and ttl > 0:
                self._values[name] = (value, now + ttl)
            if len(self._values) > self._max_entries:
                del self._values[next(iter(self._values))]
            if len(self._values) > self._sweep_at:
                self._values = {n: v for n, v in self._values.items() if v[1] > now}
                self._sweep_at = max(_SWEEP_SIZE, 2 * len(self._values))
        return result

    async def achange(
        self,
        name: str,
        change: ChangeFunction[T],
        clock: Clock,
        undo: UndoFunction[T] | None = None,
    ) -> T:
        """Change a stored value while holding the in-memory lock, without waiting for I/O."""
        return self.change(name, change, clock)

    async def aread(self, prefix: str, clock: Clock) -> tuple[dict[str, Any], float]:
        """Return the stored values whose names start with a prefix, and the current time."""
        with self._lock:
            found = {n: value for n, (value, _) in self._values.items() if n.startswith(prefix)}
        return found, clock.monotonic()

    async def aclear(self, prefix: str) -> None:
        """Delete all stored values whose names start with a prefix."""
        with self._lock:
            self._values = {n: v for n, v in self._values.items() if not n.startswith(prefix)}


class TableValues(AtomicValueStore):
    """Value store in a table of a SQL database.

    The database determines the current time, unless the caller passes a clock other than the
    system clock.

    Args:
        tables: Tables to use, or a function that returns the tables of the current run.
    """

    def __init__(self, tables: SqlTables | Callable[[], SqlTables]) -> None:
        self._tables = tables
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    def change(self, name: str, change: ChangeFunction[T], clock: Clock) -> T:
        """Change a value in the database, blocking the calling thread."""
        rows = self._resolve_tables()
        if rows.run_blocking("SELECT 1") is None:
            raise PersistenceError(
                "The database is in memory, so another thread cannot access it.",
                fix="Use a SQLite file.",
            )
        return _run_in_thread(rows, _change_statements(name, change, clock))[0]

    async def achange(
        self,
        name: str,
        change: ChangeFunction[T],
        clock: Clock,
        undo: UndoFunction[T] | None = None,
    ) -> T:
        """Change a value in the database without blocking the event loop."""
        rows = self._resolve_tables()
        # Changes on the same loop take turns instead of racing in the database.
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            return await write_with_undo(
                lambda change: _write(rows, _change_statements(name, change, clock)), change, undo
            )

    async def aread(self, prefix: str, clock: Clock) -> tuple[dict[str, Any], float]:
        """Return the stored values whose names start with a prefix, and the current time."""
        rows = self._resolve_tables()
        _, found = await rows.run(_LIST, (prefix, prefix + _LAST))
        named = {name: json.loads(value) for _, name, value in found if name is not None}
        return named, _current_time(found[0][0], clock)

    async def aclear(self, prefix: str) -> None:
        """Delete all stored values whose names start with a prefix."""
        rows = self._resolve_tables()
        await rows.run(_CLEAR, (prefix, prefix + _LAST))

    def close(self) -> None:
        """Close the database connection if it belongs to this store.

        A connection that belongs to a saver stays open.
        """
        if not callable(self._tables):
            self._tables.close()

    def _resolve_tables(self) -> SqlTables:
        return self._tables() if callable(self._tables) else self._tables


async def write_with_undo(
    write: Callable[[ChangeFunction[Any]], Coroutine[Any, Any, Any]],
    change: ChangeFunction[T],
    undo: UndoFunction[T] | None,
) -> T:
    """Write a change to completion, even if the caller is canceled.

    After a cancellation, the change is reverted with ``undo``.
    """

    async def revert(result: T) -> None:
        if undo is not None:
            await write(undo(result))

    return cast("T", await shielded(write(change), revert))


def _change_statements(name: str, change: ChangeFunction[T], clock: Clock) -> _Statements[T]:
    """Yield SQL statements that change a value, retrying if a concurrent change interferes."""
    while True:
        ((database_time, text, stamp),) = (yield _READ, (name,))[1]
        now = _current_time(database_time, clock)
        new_value, ttl, result = change(None if text is None else json.loads(text), now)
        is_deleted = new_value is None or ttl <= 0
        written = None if is_deleted else json.dumps(new_value)
        if written == text:
            return result, now
        expires = None if ttl == FOREVER else now + ttl
        values = (written, uuid.uuid4().hex, expires, name)
        statement = (_UPDATE, (*values, stamp)) if text is not None else (_INSERT, values)
        changed_rows, _ = yield (_DELETE, (name, stamp)) if is_deleted else statement
        if changed_rows:
            return result, now


async def _write(rows: SqlTables, steps: _Statements[T]) -> T:
    if rows.runs_in_thread:  # both statements in one thread switch
        result, moment = await asyncio.to_thread(_run_in_thread, rows, steps)
    else:
        statement = next(steps)
        while True:
            found = await rows.run(*statement)
            try:
                statement = steps.send(found)
            except StopIteration as end:
                result, moment = end.value
                break
    if random.random() < _SWEEP_SHARE:  # noqa: S311 - not a secret
        await rows.run(_SWEEP, (moment,))
    return result


def _run_in_thread(rows: SqlTables, steps: _Statements[T]) -> tuple[T, float]:
    statement = next(steps)
    while True:
        found = rows.run_blocking(*statement)
        try:
            statement = steps.send(found or (0, []))
        except StopIteration as end:
            return cast("tuple[T, float]", end.value)


def _current_time(database_time: Any, clock: Clock) -> float:
    return float(database_time) if isinstance(clock, SystemClock) else clock.now()


@contextmanager
def log_and_suppress(operation: str) -> Iterator[None]:
    """Log any ``PersistenceError`` raised in the ``with`` block instead of propagating it."""
    try:
        yield
    except PersistenceError as exc:
        get_logger("framework", "limits").warning("%s was not recorded: %s", operation, exc)
