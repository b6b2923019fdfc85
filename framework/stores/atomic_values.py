"""Small values under a name, each changed as a whole: in memory, or in a database that processes share.

A change is a function of the value and the moment. Two changes of one value never overlap, whoever
makes them: in memory a lock is held for the function alone, in a database a change that another one
overtook is made again.
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
"""Takes a value (``None`` for an empty cell) and the moment in seconds; gives the new value, for how
many seconds it says more than an empty cell, and what the caller gets."""

UndoFunction = Callable[[T], ChangeFunction[Any]]
"""Gives the change that takes back what a caller got and never heard of."""

_Steps = Generator[tuple[str, tuple[Any, ...]], StatementResult, tuple[T, float]]

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
_LAST = "\U0010ffff"  # sorts after whatever a name goes on with
_SWEEP_SHARE = 0.005  # of changes that clear away what expired
_SWEEP_SIZE = 1024


class AtomicValueStore(ABC):
    """Values under names."""

    @abstractmethod
    def change(self, name: str, change: ChangeFunction[T], clock: Clock) -> T:
        """Change a value, in a thread that may wait.

        Args:
            name: Name of the cell.
            change: What is done with its value; it may be called more than once.
            clock: Tells the moment.

        Raises:
            PersistenceError: The database refused, or is away.
        """

    @abstractmethod
    async def achange(
        self,
        name: str,
        change: ChangeFunction[T],
        clock: Clock,
        undo: UndoFunction[T] | None = None,
    ) -> T:
        """Change a value without blocking the event loop.

        Args:
            name: Name of the cell.
            change: What is done with its value; it may be called more than once.
            clock: Tells the moment.
            undo: Makes the change that takes this one back, for a caller that was cancelled while
                it was written and never hears of it.

        Raises:
            PersistenceError: The database refused, or is away.
        """

    @abstractmethod
    async def aread(self, prefix: str, clock: Clock) -> tuple[dict[str, Any], float]:
        """Return the values whose names begin with a prefix, and the moment.

        Raises:
            PersistenceError: The database refused, or is away.
        """

    @abstractmethod
    async def aclear(self, prefix: str) -> None:
        """Empty the cells whose names begin with a prefix.

        Raises:
            PersistenceError: The database refused, or is away.
        """

    def close(self) -> None:  # noqa: B027 - not all hold something
        """Let go of what is held open; it is opened again when it is needed."""


class MemoryValues(AtomicValueStore):
    """AtomicValueStore of this process.

    Args:
        max_entries: How many there are at most; the one that was changed first goes.

    >>> cells = MemoryValues()
    >>> def count(value, now):
    ...     return (value or 0) + 1, FOREVER, value
    >>> [cells.change("calls", count, SystemClock()) for _ in range(2)]
    [None, 1]
    """

    def __init__(self, max_entries: float = FOREVER) -> None:
        self._most = max_entries
        self._lock = threading.Lock()
        self._values: dict[str, tuple[Any, float]] = {}
        self._sweep_at = _SWEEP_SIZE

    def change(self, name: str, change: ChangeFunction[T], clock: Clock) -> T:
        """Change a value."""
        now = clock.monotonic()
        with self._lock:
            value, kept, result = change(self._values.get(name, (None,))[0], now)
            self._values.pop(name, None)
            if value is not None and kept > 0:
                self._values[name] = (value, now + kept)
            if len(self._values) > self._most:
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
        """Change a value; it does not wait."""
        return self.change(name, change, clock)

    async def aread(self, prefix: str, clock: Clock) -> tuple[dict[str, Any], float]:
        """Return the values whose names begin with a prefix, and the moment."""
        with self._lock:
            found = {n: value for n, (value, _) in self._values.items() if n.startswith(prefix)}
        return found, clock.monotonic()

    async def aclear(self, prefix: str) -> None:
        """Empty the cells whose names begin with a prefix."""
        with self._lock:
            self._values = {n: v for n, v in self._values.items() if not n.startswith(prefix)}


class TableValues(AtomicValueStore):
    """AtomicValueStore of a database; the moment is the database's, unless the clock is one of the caller's own.

    Args:
        tables: Runs statements, or returns what does in the run that asks.
    """

    def __init__(self, tables: SqlTables | Callable[[], SqlTables]) -> None:
        self._tables = tables
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    def change(self, name: str, change: ChangeFunction[T], clock: Clock) -> T:
        """Change a value, in a thread that may wait."""
        rows = self._rows()
        if rows.run_blocking("SELECT 1") is None:
            raise PersistenceError(
                "What lies in a database in memory cannot be reached from a thread.",
                fix="Name a file.",
            )
        return _in_thread(rows, _steps(name, change, clock))[0]

    async def achange(
        self,
        name: str,
        change: ChangeFunction[T],
        clock: Clock,
        undo: UndoFunction[T] | None = None,
    ) -> T:
        """Change a value without blocking the event loop."""
        rows = self._rows()
        # Those of one loop go one after the other instead of overtaking each other in the database.
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            return await write_with_undo(
                lambda change: _write(rows, _steps(name, change, clock)), change, undo
            )

    async def aread(self, prefix: str, clock: Clock) -> tuple[dict[str, Any], float]:
        """Return the values whose names begin with a prefix, and the moment."""
        rows = self._rows()
        _, found = await rows.run(_LIST, (prefix, prefix + _LAST))
        named = {name: json.loads(value) for _, name, value in found if name is not None}
        return named, _moment(found[0][0], clock)

    async def aclear(self, prefix: str) -> None:
        """Empty the cells whose names begin with a prefix."""
        rows = self._rows()
        await rows.run(_CLEAR, (prefix, prefix + _LAST))

    def close(self) -> None:
        """Close a connection of its own; what a saver has open is the saver's."""
        if not callable(self._tables):
            self._tables.close()

    def _rows(self) -> SqlTables:
        return self._tables() if callable(self._tables) else self._tables


async def write_with_undo(
    write: Callable[[ChangeFunction[Any]], Coroutine[Any, Any, Any]],
    change: ChangeFunction[T],
    undo: UndoFunction[T] | None,
) -> T:
    """Write a change to its end; one whose caller was cancelled meanwhile is taken back."""

    async def take_back(result: T) -> None:
        if undo is not None:
            await write(undo(result))

    return cast("T", await shielded(write(change), take_back))


def _steps(name: str, change: ChangeFunction[T], clock: Clock) -> _Steps[T]:
    """Read a cell and write it, again when another one was first; yields the statements."""
    while True:
        ((told, text, stamp),) = (yield _READ, (name,))[1]
        now = _moment(told, clock)
        new, kept, result = change(None if text is None else json.loads(text), now)
        gone = new is None or kept <= 0
        written = None if gone else json.dumps(new)
        if written == text:
            return result, now
        expires = None if kept == FOREVER else now + kept
        values = (written, uuid.uuid4().hex, expires, name)
        statement = (_UPDATE, (*values, stamp)) if text is not None else (_INSERT, values)
        touched, _ = yield (_DELETE, (name, stamp)) if gone else statement
        if touched:
            return result, now


async def _write(rows: SqlTables, steps: _Steps[T]) -> T:
    if rows.runs_in_thread:  # both statements in one visit to another thread
        result, moment = await asyncio.to_thread(_in_thread, rows, steps)
    else:
        statement = next(steps)
        while True:
            found = await rows.run(*statement)
            try:
                statement = steps.send(found)
            except StopIteration as end:
                result, moment = end.value
                break
    if random.random() < _SWEEP_SHARE:  # noqa: S311 - no secret
        await rows.run(_SWEEP, (moment,))
    return result


def _in_thread(rows: SqlTables, steps: _Steps[T]) -> tuple[T, float]:
    statement = next(steps)
    while True:
        found = rows.run_blocking(*statement)
        try:
            statement = steps.send(found or (0, []))
        except StopIteration as end:
            return cast("tuple[T, float]", end.value)


def _moment(told: Any, clock: Clock) -> float:
    return float(told) if isinstance(clock, SystemClock) else clock.now()


@contextmanager
def log_and_suppress(operation: str) -> Iterator[None]:
    """Let the rest go on when something cannot be written down, and say so in the log."""
    try:
        yield
    except PersistenceError as exc:
        get_logger("framework", "limits").warning("%s is not written down: %s", operation, exc)
