"""Rows of our own in a saver's database: leases, journals and whatever else is kept beside threads."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from typing import Any, ClassVar, cast

from langgraph.checkpoint.base import BaseCheckpointSaver

from capgraph.base.errors import PersistenceError, require_extra
from capgraph.base.files import use_wal
from capgraph.base.ports import SqlExecutor
from capgraph.langgraph_compat import postgres_cursor
from capgraph.stores.location import MEMORY, parse_url

Found = tuple[int, list[tuple[Any, ...]]]
"""How many rows a statement touched, and the rows it gave."""

LOCK_SECONDS = 30.0
"""Seconds to wait for another connection that has a SQLite file locked."""

OURS = "capgraph"
"""What connections are called, unless the address says it."""

_KEPT = "_capgraph_rows"
_END_FROZEN = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'ClientRead'"
    f" AND datname = current_database() AND usename = current_user AND application_name = '{OURS}'"
    " AND xact_start < clock_timestamp() - make_interval(secs => ?)"
)


def rows_of(saver: BaseCheckpointSaver[Any]) -> SaverRows | None:
    """Return the rows beside a saver's checkpoints; ``None`` for a saver whose database is unknown.

    One saver has one of these, whoever asks.
    """
    # Kept with the saver, so that LangGraph's copies of it have the same.
    found = vars(saver).get(_KEPT)
    if found is None:
        for module, name, cls in _KNOWN:
            # A saver can only be of a class whose module somebody has imported.
            base = getattr(sys.modules.get(module), name, None)
            if base is not None and isinstance(saver, base):
                found = vars(saver)[_KEPT] = cls(saver)
    return cast("SaverRows | None", found)


def kept_with(saver: BaseCheckpointSaver[Any], make: type[Any]) -> Any:
    """Return what is made of a saver's rows, once: LangGraph's copies of the saver have the same."""
    name = f"_capgraph_{make.__name__}"
    if name not in vars(saver):
        vars(saver)[name] = make(rows_of(saver))
    return vars(saver)[name]


class SaverRows(SqlExecutor, ABC):
    """Runs statements in the database of a saver.

    Beside ``?``, ``{now}``, ``{bytes}`` and ``{name}`` (text that sorts by its characters), a statement may name the saver's own tables: ``{writes}``
    with ``{value}`` for what was written; and ``{join}``, which joins in the order of the text.

    Args:
        saver: An open saver.
    """

    tables: ClassVar[dict[str, str]]
    """The saver's tables and their columns beside ``thread_id``: checkpoints, writes, values."""
    words: ClassVar[dict[str, str]]
    """What stands for the words of a statement."""
    saved: ClassVar[str]
    """Reads checkpoint, channel (empty: all of them), type and bytes of what is saved along a chain."""
    sweep: ClassVar[str] = ""
    """Drops the values of a thread that no checkpoint of it has."""

    def __init__(self, saver: Any) -> None:
        self._ref = weakref.ref(saver)
        self._made: set[str] = set()

    @property
    def _saver(self) -> Any:
        saver = self._ref()
        if saver is None:
            raise PersistenceError(
                "The saver of these rows is gone.", fix="Keep the saver for as long as the graph."
            )
        return saver

    async def table(self, definition: str) -> None:
        """Create a table (``CREATE TABLE IF NOT EXISTS name (…)``) unless it is there."""
        if definition not in self._made:
            await self._create(definition)
            self._made.add(definition)

    async def beside(self) -> SqlExecutor:
        """Return rows of the same database for what is written often and may be lost with power.

        What they commit outlives the process all the same.
        """
        return self

    def run_blocking(self, statement: str, values: tuple[Any, ...] = ()) -> Found | None:
        """Run one statement on a connection of its own."""
        try:
            conn = self._connect()
            if conn is None:
                return None
            with closing(conn), conn:
                return self._done(conn, statement, values)
        except self._errors() as exc:
            raise _refused(exc) from exc

    def _done(self, conn: Any, statement: str, values: tuple[Any, ...]) -> Found:
        cursor = conn.execute(*self._ready(statement, values))
        rows = cursor.fetchall() if cursor.description else []
        return cursor.rowcount, rows  # SQLite has counted when all of them are read

    @abstractmethod
    def metadata(self, name: str) -> str:
        """Return the expression that reads a checkpoint's metadata as text."""

    @abstractmethod
    def _ready(self, statement: str, values: tuple[Any, ...]) -> tuple[Any, Any]:
        """Put the database's own words into a statement."""

    @abstractmethod
    def _connect(self) -> Any:
        """Open a connection; ``None`` for a database in memory."""

    @abstractmethod
    def _errors(self) -> type[Exception]:
        """Return what the database raises."""

    @abstractmethod
    async def _create(self, definition: str) -> None:
        """Create a table."""


class SqliteRows(SaverRows):
    """Rows beside the checkpoints of a SQLite saver, through its connection."""

    tables: ClassVar[dict[str, str]] = {
        "checkpoints": "checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint,"
        " metadata",
        "writes": "checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value, task_path",
    }
    words: ClassVar[dict[str, str]] = {
        "bytes": "BLOB",
        "name": "TEXT",
        "writes": "writes",
        "value": "value",
        "join": "CROSS JOIN",
    }
    saved: ClassVar[str] = (
        "SELECT id, '', type, checkpoint FROM chain CROSS JOIN checkpoints c"
        " ON c.checkpoint_id = id"
    )
    _path: str | None = None

    def metadata(self, name: str) -> str:
        """Return the expression that reads a checkpoint's metadata as text."""
        return f"json_extract(CAST(metadata AS TEXT), '$.{name}')"

    async def _create(self, definition: str) -> None:
        await self._find()
        await self.run(definition)

    async def beside(self) -> SqlExecutor:
        """Return rows through a connection of their own, which does not wait for the disk."""
        await self._find()
        return FileRows(self._path) if self._path else self

    async def _find(self) -> None:
        if self._path is None:
            await self._saver.setup()
            _, files = await self.run("PRAGMA database_list")
            self._path = next(str(path) for _, name, path in files if name == "main")

    async def run(self, statement: str, values: tuple[Any, ...] = ()) -> Found:
        """Run one statement in a transaction of its own."""
        conn = self._saver.conn
        # The lock keeps this apart from the saver's own transactions.
        async with self._saver.lock:
            before = conn.total_changes
            try:
                rows = await conn.execute_fetchall(*self._ready(statement, values))
                if conn.in_transaction:
                    await conn.commit()
            except self._errors() as exc:
                with suppress(self._errors()):
                    await conn.rollback()
                raise _refused(exc) from exc
            return conn.total_changes - before, list(rows)

    def _connect(self) -> Any:
        import sqlite3

        return sqlite3.connect(self._path, timeout=LOCK_SECONDS) if self._path else None

    def _errors(self) -> type[Exception]:
        import sqlite3

        return sqlite3.Error

    @classmethod
    def _ready(cls, statement: str, values: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        # The moment is a value, so that a statement is prepared once and not each time.
        now, given = time.time(), iter(values)
        marks = re.findall(r"\?|{now}", statement) if "{now}" in statement else ()
        placed = [next(given) if mark == "?" else now for mark in marks]
        return statement.format(now="?", **cls.words), (*placed, *given)


class PostgresRows(SaverRows):
    """Rows beside the checkpoints of a PostgreSQL saver, through its connection or pool."""

    tables: ClassVar[dict[str, str]] = {
        "checkpoints": SqliteRows.tables["checkpoints"],
        "checkpoint_writes": "checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel,"
        " type, blob",
        "checkpoint_blobs": "checkpoint_ns, channel, version, type, blob",
    }
    words: ClassVar[dict[str, str]] = {
        "now": "extract(epoch from clock_timestamp())::float8",
        "bytes": "BYTEA",
        "name": 'TEXT COLLATE "C"',
        "writes": "checkpoint_writes",
        "value": "blob",
        "join": "JOIN",
    }
    saved: ClassVar[str] = (
        "SELECT id, b.channel, b.type, b.blob FROM chain"
        " JOIN checkpoints c ON c.checkpoint_id = id LEFT JOIN checkpoint_blobs b"
        " ON b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns"
        " AND b.version = c.checkpoint -> 'channel_versions' ->> b.channel"
    )
    sweep: ClassVar[str] = (
        "DELETE FROM checkpoint_blobs WHERE thread_id = ? AND (checkpoint_ns, channel, version)"
        " NOT IN (SELECT checkpoint_ns, held.key, held.value FROM checkpoints,"
        " jsonb_each_text(checkpoint -> 'channel_versions') held WHERE thread_id = ?)"
    )

    def metadata(self, name: str) -> str:
        """Return the expression that reads a checkpoint's metadata as text."""
        return f"metadata ->> '{name}'"

    def __init__(self, saver: Any) -> None:
        super().__init__(saver)
        self._address = _address(saver.conn)

    def is_at(self, url: str) -> bool:
        """Tell whether a URL names this database."""
        from psycopg.conninfo import conninfo_to_dict

        mine, other = conninfo_to_dict(self._address), conninfo_to_dict(url)
        return {**mine, "password": ""} == {**other, "password": ""}

    async def listen(self, channel: str) -> AsyncIterator[str]:
        """Yield what is told on a channel, for as long as the database is there; at first an empty name.

        Raises:
            PersistenceError: It is away.
        """
        import psycopg

        try:
            opened = psycopg.AsyncConnection.connect(self._address, autocommit=True)
            async with await opened as connection:
                await connection.execute(f"LISTEN {channel}".encode())
                yield ""
                async for told in connection.notifies():
                    yield told.payload
        except psycopg.Error as exc:
            raise _refused(exc) from exc

    async def end_frozen(self, seconds: float) -> None:
        """End connections of ours whose process left a transaction open so long ago, with its locks.

        In the middle of a pipeline no time limit of older servers ends them.

        Args:
            seconds: So long nothing was heard of the process.
        """
        await self.run(_END_FROZEN, (seconds,))

    async def _create(self, definition: str) -> None:
        name = definition.partition("EXISTS ")[2].partition(" ")[0]
        # Two processes that create it at once would collide in spite of IF NOT EXISTS.
        _, found = await self.run(f"SELECT to_regclass('{name}')::text")
        if found[0][0] is None:
            await self.run(
                f"DO $$ BEGIN PERFORM pg_advisory_xact_lock(7089056); {definition}; END $$"
            )

    async def run(self, statement: str, values: tuple[Any, ...] = ()) -> Found:
        """Run one statement in a transaction of its own."""
        guarded = getattr(self._saver, "guarded", None)
        if guarded is not None:
            found: Found = await guarded("used", lambda: self._once(statement, values))
            return found
        try:
            return await self._once(statement, values)
        except self._errors() as exc:
            raise _refused(exc) from exc

    async def _once(self, statement: str, values: tuple[Any, ...]) -> Found:
        async with postgres_cursor(self._saver) as cursor:
            await cursor.execute(*self._ready(statement, values))
            rows = await cursor.fetchall() if cursor.description else []
            return cursor.rowcount, [tuple(row.values()) for row in rows]

    def _connect(self) -> Any:
        import psycopg

        # No transaction of a process that is frozen in the middle keeps a row from the next one.
        # Behind a pooler, what was prepared may be unknown to the next server process.
        return psycopg.connect(
            self._address, connect_timeout=5, autocommit=True, prepare_threshold=None
        )

    def _errors(self) -> type[Exception]:
        import psycopg

        return psycopg.Error

    def _ready(self, statement: str, values: tuple[Any, ...]) -> tuple[Any, Any]:
        return _worded(statement), values or None


@functools.lru_cache(512)
def _worded(statement: str) -> str:
    return statement.format(**PostgresRows.words).replace("?", "%s")


class OwnRows(SaverRows):
    """Rows through one connection of the process, made when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: tuple[int, Any] | None = None
        self._made: set[str] = set()

    async def run(self, statement: str, values: tuple[Any, ...] = ()) -> Found:
        """Run one statement in a transaction of its own, in a thread."""
        # Threads of the loop's own: those of a pool are not there after a fork.
        return await asyncio.to_thread(self.run_blocking, statement, values)

    def run_blocking(self, statement: str, values: tuple[Any, ...] = ()) -> Found:
        """Run one statement in a transaction of its own."""
        try:
            with self._lock:
                return self._done(self._connection(), statement, values)
        except self._errors() as exc:
            raise _refused(exc) from exc

    def close(self) -> None:
        """Close the connection; it is opened again when it is needed."""
        with self._lock:
            # A process that was split off must not go on with the connection of the other.
            if self._open is not None and self._open[0] == os.getpid():
                self._open[1].close()
            self._open = None

    def _connection(self) -> Any:
        if self._open is None or self._open[0] != os.getpid():
            conn = self._connect()
            weakref.finalize(self, conn.close)
            self._open = os.getpid(), conn
        return self._open[1]


class FileRows(OwnRows, SqliteRows):
    """Rows in a SQLite file of their own, which processes may share.

    Args:
        path: The file.
    """

    _path: str

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def _connect(self) -> Any:
        import sqlite3

        conn = sqlite3.connect(
            self._path, timeout=60.0, isolation_level=None, check_same_thread=False
        )
        with suppress(sqlite3.OperationalError):  # a file that may only be read
            use_wal(conn, 60.0)
        conn.execute("PRAGMA synchronous = NORMAL")
        return conn


class ServerRows(OwnRows, PostgresRows):
    """Rows in a PostgreSQL database that no saver has open.

    Args:
        address: Its URL.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def _connection(self) -> Any:
        conn = super()._connection()
        try:
            conn.execute("SELECT 1")
        except self._errors():  # the server ended it meanwhile
            conn.close()
            self._open = None
            conn = super()._connection()
        return conn


def open_rows(url: str) -> SqlExecutor | None:
    """Return the rows of a database that processes share; ``None`` for one in memory.

    Args:
        url: ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or ``postgresql://…``.

    Raises:
        ConfigurationError: It is no such URL.
        MissingExtraError: The extra of the database is not installed.
    """
    location = parse_url(url)
    if location.target == MEMORY:
        return None
    if location.kind == "sqlite":
        return FileRows(location.target)
    require_extra("psycopg", "postgres")
    return ServerRows(location.target)


_KNOWN: tuple[tuple[str, str, type[SaverRows]], ...] = (
    ("langgraph.checkpoint.sqlite.aio", "AsyncSqliteSaver", SqliteRows),
    ("langgraph.checkpoint.postgres.aio", "AsyncPostgresSaver", PostgresRows),
)


def _address(conn: Any) -> str:
    if hasattr(conn, "conninfo"):  # a pool
        return str(conn.conninfo)
    from psycopg.conninfo import make_conninfo

    return make_conninfo(conn.info.dsn, password=conn.info.password or None)


def _refused(exc: Exception) -> PersistenceError:
    return PersistenceError(
        f"The database refused: {str(exc).strip()}.",
        fix="Look at the database; then try again.",
    )
