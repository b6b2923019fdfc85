"""Rows of our own in a saver's database: leases, journals and whatever else is kept beside threads."""

from __future__ import annotations

import sqlite3
import sys
import time
from abc import ABC, abstractmethod
from contextlib import closing, suppress
from typing import Any, ClassVar, cast
from weakref import ref

from langgraph.checkpoint.base import BaseCheckpointSaver

from framework.base.errors import PersistenceError
from framework.langgraph_compat import postgres_cursor

Found = tuple[int, list[tuple[Any, ...]]]
"""How many rows a statement touched, and the rows it gave."""

_KEPT = "_capgraph_rows"
_CHECKPOINT = "checkpoint_ns, checkpoint_id"


def rows_of(saver: BaseCheckpointSaver[Any]) -> Rows | None:
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
    return cast("Rows | None", found)


class Rows(ABC):
    """Runs statements in the database of a saver.

    Statements are written with ``?`` for values, ``{now}`` for the database's clock in seconds and
    ``{bytes}`` for its type of bytes. Tables are created when they are first used.

    Args:
        saver: An open saver.
    """

    def __init__(self, saver: Any) -> None:
        self._ref = ref(saver)
        self._tables: set[str] = set()

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
        if definition not in self._tables:
            await self._create(definition)
            self._tables.add(definition)

    tables: ClassVar[dict[str, str]]
    """The saver's tables and their columns beside ``thread_id``: checkpoints, writes, values."""

    @abstractmethod
    def metadata(self, name: str) -> str:
        """Return the expression that reads a text of a checkpoint's metadata."""

    @abstractmethod
    async def run(self, statement: str, values: tuple[Any, ...] = ()) -> Found:
        """Run one statement in a transaction of its own.

        Raises:
            PersistenceError: The database refused, or is away.
        """

    @abstractmethod
    def run_blocking(self, statement: str, values: tuple[Any, ...] = ()) -> Found | None:
        """Run one statement on a connection of its own, in a thread without an event loop.

        Returns:
            ``None`` when the database is this connection's alone (in memory).

        Raises:
            PersistenceError: The database refused, or is away.
        """

    @abstractmethod
    async def _create(self, definition: str) -> None:
        """Create a table."""


class SqliteRows(Rows):
    """Rows beside the checkpoints of a SQLite saver, through its connection."""

    tables: ClassVar[dict[str, str]] = {
        "checkpoints": f"{_CHECKPOINT}, parent_checkpoint_id, type, checkpoint, metadata",
        "writes": f"{_CHECKPOINT}, task_id, idx, channel, type, value, task_path",
    }
    _words: ClassVar[dict[str, str]] = {"bytes": "BLOB"}
    _path: str | None = None

    def metadata(self, name: str) -> str:
        """Return the expression that reads a text of a checkpoint's metadata."""
        return f"json_extract(CAST(metadata AS TEXT), '$.{name}')"

    async def _create(self, definition: str) -> None:
        await self._saver.setup()
        _, files = await self.run("PRAGMA database_list")
        self._path = next(str(path) for _, name, path in files if name == "main")
        await self.run(definition)

    async def run(self, statement: str, values: tuple[Any, ...] = ()) -> Found:
        """Run one statement in a transaction of its own."""
        conn = self._saver.conn
        # The lock keeps this apart from the saver's own transactions.
        async with self._saver.lock:
            try:
                async with conn.execute(self._text(statement), values) as cursor:
                    rows = list(await cursor.fetchall()) if cursor.description else []
                    await conn.commit()
                    return cursor.rowcount, rows
            except sqlite3.Error as exc:
                with suppress(sqlite3.Error):
                    await conn.rollback()
                raise _refused(exc) from exc

    def run_blocking(self, statement: str, values: tuple[Any, ...] = ()) -> Found | None:
        """Run one statement on a connection of its own."""
        if not self._path:
            return None
        try:
            with closing(sqlite3.connect(self._path, timeout=5.0)) as conn, conn:
                cursor = conn.execute(self._text(statement), values)
                return cursor.rowcount, cursor.fetchall()
        except sqlite3.Error as exc:
            raise _refused(exc) from exc

    def _text(self, statement: str) -> str:
        return statement.format(now=repr(time.time()), **self._words)


class PostgresRows(Rows):
    """Rows beside the checkpoints of a PostgreSQL saver, through its connection or pool."""

    tables: ClassVar[dict[str, str]] = {
        "checkpoints": f"{_CHECKPOINT}, parent_checkpoint_id, type, checkpoint, metadata",
        "checkpoint_writes": f"{_CHECKPOINT}, task_id, task_path, idx, channel, type, blob",
        "checkpoint_blobs": "checkpoint_ns, channel, version, type, blob",
    }

    def metadata(self, name: str) -> str:
        """Return the expression that reads a text of a checkpoint's metadata."""
        return f"metadata ->> '{name}'"

    def __init__(self, saver: Any) -> None:
        super().__init__(saver)
        self._address = _address(saver.conn)

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
        import psycopg

        guarded = getattr(self._saver, "guarded", None)
        if guarded is not None:
            found: Found = await guarded("used", lambda: self._once(statement, values))
            return found
        try:
            return await self._once(statement, values)
        except psycopg.Error as exc:
            raise _refused(exc) from exc

    async def _once(self, statement: str, values: tuple[Any, ...]) -> Found:
        async with postgres_cursor(self._saver) as cursor:
            await cursor.execute(_postgres(statement), values or None)
            rows = await cursor.fetchall() if cursor.description else []
            return cursor.rowcount, [tuple(row.values()) for row in rows]

    def run_blocking(self, statement: str, values: tuple[Any, ...] = ()) -> Found | None:
        """Run one statement on a connection of its own."""
        import psycopg

        try:
            with psycopg.connect(self._address, connect_timeout=5, autocommit=True) as conn:
                cursor = conn.execute(_postgres(statement), values or None)
                return cursor.rowcount, cursor.fetchall() if cursor.description else []
        except psycopg.Error as exc:
            raise _refused(exc) from exc


_KNOWN: tuple[tuple[str, str, type[Rows]], ...] = (
    ("langgraph.checkpoint.sqlite.aio", "AsyncSqliteSaver", SqliteRows),
    ("langgraph.checkpoint.postgres.aio", "AsyncPostgresSaver", PostgresRows),
)


def _address(conn: Any) -> str:
    if hasattr(conn, "conninfo"):  # a pool
        return str(conn.conninfo)
    from psycopg.conninfo import make_conninfo

    return make_conninfo(conn.info.dsn, password=conn.info.password or None)


def _postgres(statement: str) -> Any:
    now = "extract(epoch from clock_timestamp())::float8"
    return statement.format(now=now, bytes="BYTEA").replace("?", "%s")


def _refused(exc: Exception) -> PersistenceError:
    return PersistenceError(
        f"The database of the threads refused: {str(exc).strip()}.",
        fix="Look at the database; then run the thread again.",
    )
