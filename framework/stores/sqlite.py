"""SQLite: tables, a saver that reports errors and rolls back failed operations, and a store."""

from __future__ import annotations

import asyncio
import functools
import re
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import BaseStore, Op, PutOp, Result

from capgraph.base.errors import PersistenceError
from capgraph.helpers.files import create_private, use_wal
from capgraph.stores.base_saver import BaseSaver
from capgraph.stores.cross_loop import CrossLoopLock, CrossLoopStore
from capgraph.stores.database import (
    Location,
    SingleConnectionTables,
    SqlTables,
    StatementResult,
    database_error,
)
from capgraph.stores.schema import migration_steps

if TYPE_CHECKING:
    import aiosqlite

T = TypeVar("T")

LOCK_SECONDS = 30.0
"""Seconds to wait for a database file that another connection has locked."""


class SqliteTables(SqlTables):
    """Tables stored next to a SQLite saver's checkpoints, using the saver's connection.

    Args:
        saver: LangGraph's saver, or a :class:`SqliteSaver`.
    """

    checkpoint_tables: ClassVar[dict[str, str]] = {
        "checkpoints": "checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint,"
        " metadata",
        "writes": "checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value, task_path",
    }
    placeholders: ClassVar[dict[str, str]] = {
        "name": "TEXT",
        "writes": "writes",
        "value": "value",
        "join": "CROSS JOIN",
    }
    snapshot_query: ClassVar[str] = (
        "SELECT id, '', type, checkpoint FROM chain CROSS JOIN checkpoints c"
        " ON c.checkpoint_id = id"
    )
    migrations_table_query: ClassVar[str] = (
        "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'capgraph_migrations'"
    )
    _path: str | None = None

    def __init__(self, saver: Any) -> None:
        self._saver = saver

    def metadata(self, name: str) -> str:
        """Return an SQL expression that reads a field of a checkpoint's metadata as text."""
        return f"json_extract(CAST(metadata AS TEXT), '$.{name}')"

    async def relaxed_durability(self) -> SqlTables:
        """Return tables on a separate connection whose commits do not wait for the disk."""
        await self.prepare()
        if not self._path:
            return self
        file = SqliteFile(self._path)
        file._is_prepared = True
        return file

    async def _prepare(self) -> None:
        await self._saver.setup()
        _, files = await self._run("PRAGMA database_list", ())
        self._path = next(str(path) for _, name, path in files if name == "main")
        if self._path:
            await super()._prepare()
        else:
            for step in migration_steps(0):  # a database in memory is always new
                await self._run(*step)

    async def _run(self, statement: str, values: tuple[Any, ...]) -> StatementResult:
        conn = self._saver.conn
        # The lock separates this statement from the saver's transactions.
        async with self._saver.lock:
            before = conn.total_changes
            try:
                rows = await conn.execute_fetchall(*self._format(statement, values))
                if conn.in_transaction:
                    await conn.commit()
            except sqlite3.Error as exc:
                with suppress(sqlite3.Error):
                    await conn.rollback()
                raise database_error(exc) from exc
            return conn.total_changes - before, list(rows)

    def _connect(self) -> Any:
        if not self._path:
            return None
        return sqlite3.connect(self._path, timeout=LOCK_SECONDS, isolation_level=None)

    @contextmanager
    def _exclusively(self, conn: Any) -> Iterator[None]:
        conn.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            conn.rollback()
            raise
        conn.commit()

    def _errors(self) -> type[Exception]:
        return sqlite3.Error

    @classmethod
    def _format(cls, statement: str, values: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        # The time is passed as a value, so that the statement is prepared only once.
        now, remaining = time.time(), iter(values)
        marks = re.findall(r"\?|{now}", statement) if "{now}" in statement else ()
        ordered = [next(remaining) if mark == "?" else now for mark in marks]
        return statement.format(now="?", **cls.placeholders), (*ordered, *remaining)


class SqliteFile(SingleConnectionTables, SqliteTables):
    """Tables in a SQLite file that several processes can share.

    Args:
        path: Path of the file, or ``:memory:``.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path: str = path

    def _connect(self) -> Any:
        create_private(self._path)
        conn = sqlite3.connect(
            self._path, timeout=60.0, isolation_level=None, check_same_thread=False
        )
        with suppress(sqlite3.OperationalError):  # a read-only file
            use_wal(conn, 60.0)
        conn.execute("PRAGMA synchronous = NORMAL")
        return conn


def tables_of(saver: Any) -> SqlTables:
    """Return capgraph's tables in the database of a SQLite saver."""
    return SqliteTables(saver)


def open_tables(location: Location) -> SqlTables:
    """Return the tables of a SQLite file."""
    return SqliteFile(location.target)


class _Connection(sqlite3.Connection):
    """SQLite connection that commits each change before the call returns.

    LangGraph's saver commits in a separate call. If a busy event loop delays that commit, the
    file stays locked for the other connections in the process.
    """

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(factory or _Cursor)


class _Cursor(sqlite3.Cursor):
    def executemany(self, statement: str, rows: Iterable[Any], /) -> Self:
        with self.connection:
            self.connection.execute("BEGIN IMMEDIATE")
            return super().executemany(statement, rows)


class SqliteSaver(BaseSaver):
    """Mixin for ``AsyncSqliteSaver`` that adds capgraph's error handling.

    The mixin must precede ``AsyncSqliteSaver`` in the list of base classes.

    Args:
        conn: Open SQLite connection.
        serde: Serializer for checkpoints.
        name: Name of the database for error messages.
    """

    def __init__(self, conn: aiosqlite.Connection, *, serde: SerializerProtocol, name: str) -> None:
        super().__init__(conn, serde=serde)
        self.lock: Any = CrossLoopLock()
        self._name = name

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all data of a thread.

        The checkpoints are deleted last, so that an interrupted deletion can be repeated.
        """
        await self._rows.run("DELETE FROM writes WHERE thread_id = ?", (str(thread_id),))
        await super().adelete_thread(thread_id)

    async def run_operation(self, verb: str, operation: Callable[[], Awaitable[T]]) -> T:
        """Run a SQLite operation and convert its errors to ``PersistenceError``.

        A failed operation is rolled back.
        """
        try:
            return await operation()
        except sqlite3.Error as exc:
            raise sqlite_error(self._name, verb, exc) from exc


def sqlite_error(name: str, verb: str, exc: Exception) -> PersistenceError:
    """Create the error for a failed SQLite operation, with a suggested fix."""
    text = str(exc)
    fix = "Correct the cause, then resume the thread from its last saved step."
    if "full" in text or "disk I/O" in text:
        fix = "Free disk space, then resume the thread."
    elif "locked" in text:
        fix = "End the process that locks it, then resume the thread."
    elif "not a database" in text or "malformed" in text:
        fix = "Use a SQLite file, or restore it from a backup."
    return PersistenceError(f"The database {name!r} could not be {verb}: {text}.", fix=fix)


@functools.cache
def _saver_class() -> Any:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    class Saver(SqliteSaver, AsyncSqliteSaver):
        """LangGraph's SQLite saver with capgraph's error handling and checkpoint validation."""

    return Saver


@asynccontextmanager
async def open_saver(
    location: Location, serde: SerializerProtocol
) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """Open a LangGraph checkpoint saver on a SQLite file.

    Raises:
        PersistenceError: The file cannot be opened, read, or written.
    """
    path = location.target
    async with _connect_file(path, isolation_level=None, factory=_Connection) as conn:
        saver = _saver_class()(conn, serde=serde, name=path)
        with _wrap_errors(path):
            await saver.setup()
            async with _immediate_transaction(conn):
                pass
        yield saver


@asynccontextmanager
async def open_store(location: Location, options: dict[str, Any]) -> AsyncIterator[BaseStore]:
    """Open a LangGraph store on a SQLite file.

    Raises:
        PersistenceError: The file cannot be opened, read, or written.
    """
    from langgraph.store.sqlite.aio import AsyncSqliteStore

    class Connection(sqlite3.Connection):
        """SQLite connection that locks early for writes and runs migrations in one transaction."""

        writes = False

        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            begins = statement == "BEGIN" and Connection.writes
            return super().execute("BEGIN IMMEDIATE" if begins else statement, *values)

        def executescript(self, script: str, /) -> sqlite3.Cursor:
            statement = ""
            for line in script.splitlines(keepends=True):
                statement += line
                if sqlite3.complete_statement(statement):
                    self.execute(statement)
                    statement = ""
            return self.execute(statement)

    class SqliteStore(CrossLoopStore, AsyncSqliteStore):
        """LangGraph's SQLite store, usable from any event loop and with concurrent writers."""

        _batches: ClassVar[CrossLoopLock] = CrossLoopLock()

        async def abatch(self, ops: Iterable[Op]) -> list[Result]:
            listed = list(ops)
            async with self._batches:
                Connection.writes = bool(self.ttl_config) or any(
                    isinstance(op, PutOp) for op in listed
                )
                return await super().abatch(listed)

    # The store issues its own BEGIN and COMMIT.
    async with (
        _connect_file(location.target, isolation_level=None, factory=Connection) as conn,
        SqliteStore(conn, **options) as store,
    ):
        with _wrap_errors(location.target):
            async with _immediate_transaction(conn):
                await store.setup()
        yield store


@asynccontextmanager
async def _immediate_transaction(conn: aiosqlite.Connection) -> AsyncIterator[None]:
    """Run the enclosed block in a transaction that acquires the write lock immediately.

    SQLite waits for the write lock only at the start of a transaction. A transaction that reads
    first and writes later fails at once if another connection is writing.
    """
    try:
        await conn.execute("BEGIN IMMEDIATE")
        yield
    except BaseException:
        await conn.rollback()
        raise
    await conn.commit()


@contextmanager
def _wrap_errors(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as exc:
        raise sqlite_error(path, "used", exc) from exc


@asynccontextmanager
async def _connect_file(path: str, **options: Any) -> AsyncIterator[aiosqlite.Connection]:
    import aiosqlite

    try:
        # If aiosqlite cannot open a file, its thread outlives the call and may report to a
        # closed loop. The file is therefore opened without it first.
        await asyncio.to_thread(create_private, path)
        await asyncio.to_thread(lambda: sqlite3.connect(path, timeout=LOCK_SECONDS).close())
        conn = await aiosqlite.connect(path, timeout=LOCK_SECONDS, **options)
    except sqlite3.Error as exc:
        raise PersistenceError(
            f"The database {path!r} cannot be opened: {exc}.",
            fix="Check that its folder exists and is writable.",
        ) from exc
    try:
        with _wrap_errors(path):
            await asyncio.to_thread(_prepare, path)
        yield conn
    finally:
        await conn.close()


def _prepare(path: str) -> None:
    with closing(sqlite3.connect(path, timeout=LOCK_SECONDS)) as conn:
        use_wal(conn, LOCK_SECONDS)
