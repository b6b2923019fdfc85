"""A SQLite saver that says what is wrong and never leaves half a transaction behind."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any, ClassVar, Self, TypeVar

import aiosqlite
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.store.base import BaseStore, Op, PutOp, Result

from capgraph.base.errors import PersistenceError
from capgraph.base.files import use_wal
from capgraph.stores.guarded import GuardedSaver
from capgraph.stores.location import Location
from capgraph.stores.loops import LoopsLock, LoopsStore
from capgraph.stores.rows import LOCK_SECONDS

T = TypeVar("T")


class _Connection(sqlite3.Connection):
    """Commits what one call changes before it returns.

    LangGraph's saver commits with a further call, for which a busy loop lets the other connections
    of the process wait with the file locked.
    """

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(factory or _Cursor)


class _Cursor(sqlite3.Cursor):
    def executemany(self, statement: str, rows: Iterable[Any], /) -> Self:
        with self.connection:
            self.connection.execute("BEGIN IMMEDIATE")
            return super().executemany(statement, rows)


class SqliteSaver(GuardedSaver, AsyncSqliteSaver):
    """``AsyncSqliteSaver`` whose errors are the project's and which checks what it reads.

    Args:
        conn: Open connection.
        serde: Serializer.
        name: How messages call the database.
    """

    def __init__(self, conn: aiosqlite.Connection, *, serde: SerializerProtocol, name: str) -> None:
        super().__init__(conn, serde=serde)
        self.lock: Any = LoopsLock()
        self._name = name

    async def adelete_thread(self, thread_id: str) -> None:
        """Drop a thread; it is there until nothing else is left of it."""
        await self._rows.run("DELETE FROM writes WHERE thread_id = ?", (str(thread_id),))
        await super().adelete_thread(thread_id)

    async def guarded(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Do an operation; one that failed leaves nothing behind."""
        try:
            return await call()
        except sqlite3.Error as exc:
            raise unusable(self._name, what, exc) from exc


def unusable(name: str, what: str, exc: Exception) -> PersistenceError:
    """Describe a database that refused."""
    text = str(exc)
    fix = "Look at the cause; the thread goes on from its last saved step when it is run again."
    if "full" in text or "disk I/O" in text:
        fix = "Make room on the disk, then run the thread again; it goes on where it stopped."
    elif "locked" in text:
        fix = "End the process that keeps it locked, then run the thread again."
    elif "not a database" in text or "malformed" in text:
        fix = "Name a SQLite file, or restore it from a copy."
    return PersistenceError(f"The database {name!r} could not be {what}: {text}.", fix=fix)


@asynccontextmanager
async def sqlite_saver(
    location: Location, serde: SerializerProtocol
) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """Open a SQLite file as saver.

    Raises:
        PersistenceError: It cannot be opened, read or written.
    """
    path = location.target
    async with _connected(path, isolation_level=None, factory=_Connection) as conn:
        saver = SqliteSaver(conn, serde=serde, name=path)
        with _usable(path):
            await saver.setup()
            async with _immediate(conn):
                pass
        yield saver


@asynccontextmanager
async def sqlite_store(location: Location, options: dict[str, Any]) -> AsyncIterator[BaseStore]:
    """Open a SQLite file as store.

    Raises:
        PersistenceError: It cannot be opened, read or written.
    """
    from langgraph.store.sqlite.aio import AsyncSqliteStore

    class Connection(sqlite3.Connection):
        """Takes the write lock first where a batch writes, and runs migrations as one transaction."""

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

    class SqliteStore(LoopsStore, AsyncSqliteStore):
        """LangGraph's store, on any event loop and beside other writers."""

        _batches: ClassVar[LoopsLock] = LoopsLock()

        async def abatch(self, ops: Iterable[Op]) -> list[Result]:
            listed = list(ops)
            async with self._batches:
                Connection.writes = bool(self.ttl_config) or any(
                    isinstance(op, PutOp) for op in listed
                )
                return await super().abatch(listed)

    # The store issues its own BEGIN and COMMIT.
    async with (
        _connected(location.target, isolation_level=None, factory=Connection) as conn,
        SqliteStore(conn, **options) as store,
    ):
        with _usable(location.target):
            async with _immediate(conn):
                await store.setup()
        yield store


@asynccontextmanager
async def _immediate(conn: aiosqlite.Connection) -> AsyncIterator[None]:
    """Run a transaction that takes the write lock first.

    SQLite waits for the lock at the start of a transaction only. A transaction that has read and
    then writes fails at once if another connection is writing.
    """
    try:
        await conn.execute("BEGIN IMMEDIATE")
        yield
    except BaseException:
        await conn.rollback()
        raise
    await conn.commit()


@contextmanager
def _usable(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as exc:
        raise unusable(path, "used", exc) from exc


@asynccontextmanager
async def _connected(path: str, **options: Any) -> AsyncIterator[aiosqlite.Connection]:
    try:
        # When aiosqlite cannot open a file, its thread outlives the call and may report to a loop
        # that is closed by then, so whether the file opens is found out without it.
        await asyncio.to_thread(lambda: sqlite3.connect(path, timeout=LOCK_SECONDS).close())
        conn = await aiosqlite.connect(path, timeout=LOCK_SECONDS, **options)
    except sqlite3.Error as exc:
        raise PersistenceError(
            f"The database {path!r} cannot be opened: {exc}.",
            fix="Check that its folder exists and may be written.",
        ) from exc
    try:
        with _usable(path):
            await asyncio.to_thread(_prepare, path)
        yield conn
    finally:
        await conn.close()


def _prepare(path: str) -> None:
    with closing(sqlite3.connect(path, timeout=LOCK_SECONDS)) as conn:
        use_wal(conn, LOCK_SECONDS)
