"""Small values under a name, each changed as a whole: in memory, or in a database that processes share.

A change is a function of the value and the moment. Two changes of one value never overlap, whoever
makes them: in memory a lock is held for the function alone, in a database a change that another one
overtook is made again.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from langgraph.config import get_config

from capgraph.base.awaiting import to_its_end
from capgraph.base.clock import Clock, SystemClock
from capgraph.base.errors import ConfigurationError, PersistenceError, require_extra
from capgraph.base.ports import SqlExecutor
from capgraph.configs.logger import get_logger, mask_secrets
from capgraph.configs.run_context import run_context
from capgraph.langgraph_compat import lent_saver
from capgraph.stores.rows import Found, OwnRows, open_rows, rows_of

T = TypeVar("T")

FOREVER = float("inf")
Change = Callable[[Any, float], tuple[Any, float, T]]
"""Takes a value (``None`` for an empty cell) and the moment in seconds; gives the new value, for how
many seconds it says more than an empty cell, and what the caller gets."""

Undo = Callable[[T], Change[Any]]
"""Gives the change that takes back what a caller got and never heard of."""

_Steps = Generator[tuple[str, tuple[Any, ...]], Found, tuple[T, float]]

SAVER = "saver"
"""Names the database of the run's own saver."""

_TABLE = (
    "CREATE TABLE IF NOT EXISTS capgraph_cells"
    " (name {name} PRIMARY KEY, value TEXT NOT NULL, stamp TEXT NOT NULL, expires FLOAT)"
)
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
_KEYS = "capgraph:"
_LAST = "\U0010ffff"  # sorts after whatever a name goes on with
_KEPT = "_capgraph_cells"
_AGES = 1e10  # seconds; Redis counts no further than some millions of centuries
_SWEEP_SHARE = 0.005  # of changes that clear away what expired
_SWEEP_SIZE = 1024


class Cells(ABC):
    """Values under names."""

    @abstractmethod
    def change(self, name: str, change: Change[T], clock: Clock) -> T:
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
        self, name: str, change: Change[T], clock: Clock, undo: Undo[T] | None = None
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


class MemoryCells(Cells):
    """Cells of this process.

    Args:
        most: How many there are at most; the one that was changed first goes.

    >>> cells = MemoryCells()
    >>> def count(value, now):
    ...     return (value or 0) + 1, FOREVER, value
    >>> [cells.change("calls", count, SystemClock()) for _ in range(2)]
    [None, 1]
    """

    def __init__(self, most: float = FOREVER) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._values: dict[str, tuple[Any, float]] = {}
        self._sweep_at = _SWEEP_SIZE

    def change(self, name: str, change: Change[T], clock: Clock) -> T:
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
        self, name: str, change: Change[T], clock: Clock, undo: Undo[T] | None = None
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


class RowCells(Cells):
    """Cells of a database; the moment is the database's, unless the clock is one of the caller's own.

    Args:
        rows: Runs statements; ``None`` for those beside the checkpoints of the run that asks.
    """

    def __init__(self, rows: SqlExecutor | None) -> None:
        self._rows = rows
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    def change(self, name: str, change: Change[T], clock: Clock) -> T:
        """Change a value, in a thread that may wait."""
        rows = self._rows or _of_run()
        if rows.run_blocking(_TABLE) is None:
            raise PersistenceError(
                "What lies in a database in memory cannot be reached from a thread.",
                fix="Name a file.",
            )
        return _in_thread(rows, _steps(name, change, clock))[0]

    async def achange(
        self, name: str, change: Change[T], clock: Clock, undo: Undo[T] | None = None
    ) -> T:
        """Change a value without blocking the event loop."""
        rows = self._rows or _of_run()
        # Those of one loop go one after the other instead of overtaking each other in the database.
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            return await _whole(
                lambda change: _write(rows, _steps(name, change, clock)), change, undo
            )

    async def aread(self, prefix: str, clock: Clock) -> tuple[dict[str, Any], float]:
        """Return the values whose names begin with a prefix, and the moment."""
        rows = self._rows or _of_run()
        await rows.table(_TABLE)
        _, found = await rows.run(_LIST, (prefix, prefix + _LAST))
        named = {name: json.loads(value) for _, name, value in found if name is not None}
        return named, _moment(found[0][0], clock)

    async def aclear(self, prefix: str) -> None:
        """Empty the cells whose names begin with a prefix."""
        rows = self._rows or _of_run()
        await rows.table(_TABLE)
        await rows.run(_CLEAR, (prefix, prefix + _LAST))

    def close(self) -> None:
        """Close a connection of its own; what a saver has open is the saver's."""
        if isinstance(self._rows, OwnRows):
            self._rows.close()


class RedisCells(Cells):
    """Cells of a Redis server; what says no more than an empty cell expires.

    Args:
        url: ``redis://…``, ``rediss://…`` or ``unix://…``.
        keys: What the server's keys begin with.

    Raises:
        ConfigurationError: The URL cannot be used.
        MissingExtraError: The extra ``redis`` is not installed.
    """

    def __init__(self, url: str, keys: str = _KEYS) -> None:
        self._keys = keys
        self._redis = require_extra("redis", "redis")
        try:
            self._client = self._redis.Redis.from_url(url, decode_responses=True)
        except ValueError as exc:
            raise ConfigurationError(f"{mask_secrets(url)!r} names no Redis: {exc}.") from exc

    def change(self, name: str, change: Change[T], clock: Clock) -> T:
        """Change a value, in a thread that may wait."""

        def work(pipe: Any) -> T:
            now = self._now(pipe, clock)
            text = pipe.get(key)
            value = None if text is None else json.loads(text)
            new, kept, result = change(value, now)
            pipe.multi()
            if new is None or kept <= 0:
                pipe.delete(key)
            elif (written := json.dumps(new)) != text:
                # A clock of the caller's own is not Redis's.
                lasts = kept > _AGES or not isinstance(clock, SystemClock)
                pipe.set(key, written, px=None if lasts else math.ceil(kept * 1000))
            return result

        key = self._keys + name
        return cast("T", self._asked(self._client.transaction, work, key, value_from_callable=True))

    async def achange(
        self, name: str, change: Change[T], clock: Clock, undo: Undo[T] | None = None
    ) -> T:
        """Change a value without blocking the event loop."""
        return await _whole(
            lambda change: asyncio.to_thread(self.change, name, change, clock), change, undo
        )

    async def aread(self, prefix: str, clock: Clock) -> tuple[dict[str, Any], float]:
        """Return the values whose names begin with a prefix, and the moment."""

        def read() -> tuple[dict[str, Any], float]:
            keys = self._scan(prefix)
            texts = self._client.mget(keys) if keys else []
            named = zip(keys, texts, strict=True)
            found = {k.removeprefix(self._keys): json.loads(t) for k, t in named if t is not None}
            return found, self._now(self._client, clock)

        return await asyncio.to_thread(self._asked, read)

    async def aclear(self, prefix: str) -> None:
        """Empty the cells whose names begin with a prefix."""

        def clear() -> None:
            if keys := self._scan(prefix):
                self._client.delete(*keys)

        await asyncio.to_thread(self._asked, clear)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _scan(self, prefix: str) -> list[str]:
        plain = re.sub(r"[*?\[\]\\^]", r"\\\g<0>", self._keys + prefix)
        return list(self._client.scan_iter(match=f"{plain}*", count=1000))

    def _now(self, client: Any, clock: Clock) -> float:
        if not isinstance(clock, SystemClock):
            return clock.now()
        seconds, millionths = client.time()
        moment: float = seconds + millionths / 1e6
        return moment

    def _asked(self, ask: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        try:
            return ask(*args, **kwargs)
        except self._redis.RedisError as exc:
            raise PersistenceError(
                f"Redis refused: {str(exc).strip()}.", fix="Look at the server; then try again."
            ) from exc


async def _whole(
    write: Callable[[Change[Any]], Coroutine[Any, Any, Any]],
    change: Change[T],
    undo: Undo[T] | None,
) -> T:
    """Write a change to its end; one whose caller was cancelled meanwhile is taken back."""

    async def take_back(result: T) -> None:
        if undo is not None:
            await write(undo(result))

    return cast("T", await to_its_end(write(change), take_back))


def _steps(name: str, change: Change[T], clock: Clock) -> _Steps[T]:
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


async def _write(rows: SqlExecutor, steps: _Steps[T]) -> T:
    await rows.table(_TABLE)
    if isinstance(rows, OwnRows):  # both statements in one visit to another thread
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


def _in_thread(rows: SqlExecutor, steps: _Steps[T]) -> tuple[T, float]:
    statement = next(steps)
    while True:
        found = rows.run_blocking(*statement)
        try:
            statement = steps.send(found or (0, []))
        except StopIteration as end:
            return cast("tuple[T, float]", end.value)


def _moment(told: Any, clock: Clock) -> float:
    return float(told) if isinstance(clock, SystemClock) else clock.now()


def open_cells(store: str | SqlExecutor | None) -> Cells:
    """Return the cells that a setting names.

    Args:
        store: ``None`` for this process; ``sqlite:///file.db``, ``postgresql://…`` or ``redis://…``
            for a database that processes share; ``saver`` for that of the run's own saver; or rows.

    Raises:
        ConfigurationError: It is none of these.
        MissingExtraError: The extra of the database is not installed.

    >>> type(open_cells(None)).__name__
    'MemoryCells'
    """
    if store is None:
        return MemoryCells()
    if store == SAVER:
        return RowCells(None)
    if not isinstance(store, str):
        return cells_of(store)
    if store.partition("://")[0] in {"redis", "rediss", "unix"}:
        return RedisCells(store)
    rows = open_rows(store)
    return MemoryCells() if rows is None else cells_of(rows)


def cells_of(rows: SqlExecutor) -> RowCells:
    """Return the cells among rows; one object, whoever asks, so that nobody overtakes another."""
    found: RowCells = vars(rows).setdefault(_KEPT, RowCells(rows))
    return found


@contextmanager
def logged_only(what: str) -> Iterator[None]:
    """Let the rest go on when something cannot be written down, and say so in the log."""
    try:
        yield
    except PersistenceError as exc:
        get_logger("framework", "limits").warning("%s is not written down: %s", what, exc)


def _of_run() -> SqlExecutor:
    try:
        saver = lent_saver(get_config())
    except RuntimeError:
        saver = None
    journal = run_context().journal  # of a step that runs in another process than its turn
    lent: SqlExecutor | None = journal.rows if journal is not None else None
    rows = rows_of(saver) if saver is not None else lent
    if rows is None:
        raise ConfigurationError(
            "The limits are to lie in the database of the run's saver, and there is none.",
            fix="Give the graph a SQLite or PostgreSQL saver, or name a database as store.",
        )
    return rows
