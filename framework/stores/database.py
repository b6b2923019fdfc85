"""The SQL layer: capgraph's tables in a database, and savers and stores opened by URL.

Each kind of database is one module with four functions and one entry in :data:`DATABASES`:
``open_saver(location, serde)`` and ``open_store(location, options)``, which are asynchronous
context managers, ``open_tables(location)``, and ``tables_of(saver)`` for LangGraph's own saver.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
)
from typing import Any, ClassVar, NamedTuple, overload
from urllib.parse import unquote, urlsplit

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from capgraph.base.errors import ConfigurationError, PersistenceError, require_extra
from capgraph.base.ports import SqlExecutor
from capgraph.configs.logger import mask_secrets
from capgraph.stores.schema import migration_error, migration_steps, schema_version
from capgraph.stores.serialization import make_serializer

StatementResult = tuple[int, list[tuple[Any, ...]]]
"""Number of rows that a statement changed, and the rows that it returned."""

MEMORY = ":memory:"
MEMORY_URL = "sqlite://:memory:"


class DatabaseKind(NamedTuple):
    """Entry of :data:`DATABASES`, which describes a supported kind of database.

    Attributes:
        module: Module with the four functions.
        schemes: URL schemes.
        saver: Module of LangGraph's saver for this database.
        store: Module of LangGraph's store for this database.
        driver: Module of the database driver.
        is_file: True if the URL contains a file path; otherwise the URL itself is the target.
    """

    module: str
    schemes: tuple[str, ...]
    saver: str
    store: str
    driver: str
    is_file: bool = False


DATABASES: dict[str, DatabaseKind] = {
    "sqlite": DatabaseKind(
        "capgraph.stores.sqlite",
        ("sqlite",),
        "langgraph.checkpoint.sqlite.aio",
        "langgraph.store.sqlite.aio",
        "sqlite3",
        is_file=True,
    ),
    "postgres": DatabaseKind(
        "capgraph.stores.postgres",
        ("postgresql", "postgres"),
        "langgraph.checkpoint.postgres.aio",
        "langgraph.store.postgres.aio",
        "psycopg",
    ),
}
"""Supported databases. The name of each is also the name of the extra that installs it."""


class Location(NamedTuple):
    """Location of a database, as parsed from its URL.

    Attributes:
        kind: ``sqlite`` or ``postgres``.
        target: File path (or ``:memory:``), or connection string.
    """

    kind: str
    target: str

    def __str__(self) -> str:
        return mask_secrets(self.target)


def parse_url(url: str) -> Location:
    """Parse a database URL into the kind and the target of the database.

    Args:
        url: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite://:memory:`` or
            ``postgresql://user@host/database``.

    Raises:
        ConfigurationError: The URL is invalid or its scheme is unsupported.

    >>> parse_url("sqlite:///threads.db")
    Location(kind='sqlite', target='threads.db')
    >>> parse_url("sqlite://:memory:").target
    ':memory:'
    """
    scheme, separator, rest = url.partition("://")
    for kind, database in DATABASES.items():
        if not separator or scheme not in database.schemes:
            continue
        if not database.is_file and _is_valid(url):
            return Location(kind, url)
        path = unquote(rest.partition("?")[0])
        if database.is_file and path.lstrip("/") == MEMORY:
            return Location(kind, MEMORY)
        if database.is_file and path.startswith("/") and len(path) > 1:
            return Location(kind, path[1:])
    raise ConfigurationError(
        f"Invalid database URL {mask_secrets(url)!r}. Fix: use sqlite:///file.db,"
        " sqlite:////absolute/file.db, sqlite://:memory:, or postgresql://user@host/database."
    )


def _is_valid(url: str) -> bool:
    try:
        urlsplit(url)
    except ValueError:
        return False
    return True


@overload
def open_saver(
    url: str, *, encryption_key: str | bytes | None = None
) -> AbstractAsyncContextManager[BaseCheckpointSaver[Any]]: ...
@overload
def open_saver(
    url: str | None, *, encryption_key: str | bytes | None = None
) -> AbstractAsyncContextManager[BaseCheckpointSaver[Any] | None]: ...
def open_saver(url: str | None, *, encryption_key: str | bytes | None = None) -> Any:
    """Open a LangGraph saver by URL and migrate capgraph's tables in its database.

    Args:
        url: ``sqlite:///file.db``, ``sqlite://:memory:``, ``postgresql://…``, or ``None`` for no
            saver.
        encryption_key: Key of 16, 24, or 32 bytes, or a string that encodes to that length.
            Checkpoint values are encrypted with it.

    Yields:
        A saver for ``build_graph``. It is closed at the end of the block.

    Raises:
        ConfigurationError: The URL or the key is invalid.
        MissingExtraError: The extra of the database is not installed.
        PersistenceError: The database cannot be reached, or its schema cannot be migrated. There is
            no fallback to another database.

    >>> import asyncio
    >>> async def main():
    ...     async with open_saver("sqlite://:memory:") as saver:
    ...         return await saver.aget_tuple({"configurable": {"thread_id": "1"}})
    >>> asyncio.run(main()) is None
    True
    """
    return _open_saver(url, encryption_key)


@asynccontextmanager
async def _open_saver(
    url: str | None, encryption_key: str | bytes | None
) -> AsyncIterator[BaseCheckpointSaver[Any] | None]:
    if url is None:
        yield None
        return
    location = parse_url(url)
    serde = make_serializer(encryption_key)
    module = _module(location, DATABASES[location.kind].saver)
    async with module.open_saver(location, serde) as saver:
        await saver.persistence.tables.prepare()
        yield saver


@asynccontextmanager
async def open_store(url: str | None, **options: Any) -> AsyncIterator[BaseStore]:
    """Open a LangGraph store for a database URL, or an in-memory store.

    Args:
        url: Database URL, as for :func:`open_saver`; ``None`` for a store in memory.
        **options: Options of LangGraph's store: ``index``, ``ttl``.

    Raises:
        ConfigurationError: The URL is invalid.
        MissingExtraError: The extra of the database is not installed.
        PersistenceError: The database cannot be reached.

    >>> import asyncio
    >>> async def main():
    ...     async with open_store(None) as store:
    ...         await store.aput(("notes",), "a", {"text": "hello"})
    ...         return (await store.aget(("notes",), "a")).value
    >>> asyncio.run(main())
    {'text': 'hello'}
    """
    if url is None:
        from langgraph.store.memory import InMemoryStore

        yield InMemoryStore(index=options.get("index"))
        return
    location = parse_url(url)
    module = _module(location, DATABASES[location.kind].store)
    async with module.open_store(location, options) as store:
        yield store


def open_tables(url: str) -> SqlTables:
    """Return capgraph's tables in a database, without opening a saver.

    The database connection opens on first use.

    Args:
        url: Database URL, as for :func:`open_saver`.

    Raises:
        ConfigurationError: The URL is invalid.
        MissingExtraError: The extra of the database is not installed.
    """
    location = parse_url(url)
    found: SqlTables = _module(location, DATABASES[location.kind].driver).open_tables(location)
    return found


def tables_of(saver: BaseCheckpointSaver[Any]) -> SqlTables | None:
    """Return capgraph's tables in a saver's database, or ``None`` for an unknown database."""
    modules = {cls.__module__ for cls in type(saver).__mro__}
    for database in DATABASES.values():
        if database.saver in modules:
            found: SqlTables = importlib.import_module(database.module).tables_of(saver)
            return found
    return None


def _module(location: Location, library: str) -> Any:
    require_extra(library, location.kind)
    return importlib.import_module(DATABASES[location.kind].module)


class SqlTables(SqlExecutor, ABC):
    """Access to capgraph's tables in a SQL database.

    Besides ``?``, ``{now}``, and ``{name}`` (a text type that sorts by code point), a statement
    may use ``{writes}`` and ``{value}`` for the table and column of LangGraph's pending writes,
    and ``{join}`` for a join in textual order.
    """

    checkpoint_tables: ClassVar[dict[str, str]]
    """LangGraph's tables and their columns other than ``thread_id``: checkpoints, writes, and
    blobs.
    """
    placeholders: ClassVar[dict[str, str]]
    """SQL text for the placeholders of a statement."""
    snapshot_query: ClassVar[str]
    """Query for the checkpoint ID, channel (empty for all), type, and bytes of snapshots along a
    chain.
    """
    sweep_statement: ClassVar[str] = ""
    """Statement that deletes values of a thread that no checkpoint refers to."""
    migrations_table_query: ClassVar[str]
    """Query that counts the tables named ``capgraph_migrations``."""
    can_notify: ClassVar[bool] = False
    """True if statements can notify listeners in other processes (``pg_notify``)."""
    runs_in_thread: ClassVar[bool] = False
    """True if each statement runs in a worker thread."""

    _is_prepared = False

    async def prepare(self) -> None:
        """Migrate the database schema once.

        :meth:`run` calls this method automatically.

        Raises:
            PersistenceError: A newer release wrote the database, or the database user may not
                change it.
        """
        if not self._is_prepared:
            await self._prepare()
            self._is_prepared = True

    async def _prepare(self) -> None:
        await asyncio.to_thread(self.run_blocking, "SELECT 1")

    async def run(self, statement: str, values: tuple[Any, ...] = ()) -> StatementResult:
        """Run one SQL statement in its own transaction.

        Returns:
            Number of changed rows, and the rows that the statement returned.

        Raises:
            PersistenceError: The database rejected the statement or cannot be reached.
        """
        await self.prepare()
        return await self._run(statement, values)

    async def run_locked(
        self, lock: str, statement: str, values: tuple[Any, ...] = ()
    ) -> StatementResult:
        """Run one SQL statement that sees the results of all earlier statements with the same lock.

        Args:
            lock: Name of the lock, which applies to all processes that use the database.
            statement: SQL statement to run.
            values: Values of its placeholders.

        Raises:
            PersistenceError: The database rejected the statement or cannot be reached.
        """
        return await self.run(statement, values)

    def run_blocking(self, statement: str, values: tuple[Any, ...] = ()) -> StatementResult | None:
        """Run one SQL statement on a new connection, blocking the calling thread.

        Return ``None`` for an in-memory database.
        """
        try:
            conn = self._connect()
            if conn is None:
                return None
            with closing(conn), conn:
                self._migrate(conn)
                return self._execute(conn, statement, values)
        except self._errors() as exc:
            raise database_error(exc) from exc

    async def relaxed_durability(self) -> SqlTables:
        """Return tables of the same database for frequent writes with relaxed durability.

        A power failure may lose these writes, but committed writes survive the end of the process.
        """
        return self

    def is_at(self, url: str) -> bool:
        """Return True if a URL is known to refer to this database."""
        return False

    def listen(self, channel: str) -> AsyncIterator[str]:
        """Yield the payloads of database notifications on a channel.

        An empty string is yielded first, as soon as the connection is established.

        Raises:
            PersistenceError: The database cannot be reached.
        """
        raise NotImplementedError

    async def end_stale_connections(self, idle_seconds: float) -> None:
        """Terminate database connections with stale open transactions, to release their locks.

        Args:
            idle_seconds: Minimum age of the transaction, in seconds.
        """

    def close(self) -> None:
        """Close the database connection. The next statement reopens it."""

    def _migrate(self, conn: Any) -> None:
        if self._is_prepared:
            return

        def execute(statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
            return self._execute(conn, statement, values)[1]

        if migration_steps(version := schema_version(execute, self.migrations_table_query)):
            try:
                with self._exclusively(conn):
                    for step in migration_steps(
                        schema_version(execute, self.migrations_table_query)
                    ):
                        execute(*step)
            except self._errors() as exc:
                raise migration_error(version, exc) from exc
        self._is_prepared = True

    def _execute(self, conn: Any, statement: str, values: tuple[Any, ...]) -> StatementResult:
        cursor = conn.execute(*self._format(statement, values))
        rows = cursor.fetchall() if cursor.description else []
        return cursor.rowcount, rows  # SQLite counts only after all rows are read

    @abstractmethod
    async def _run(self, statement: str, values: tuple[Any, ...]) -> StatementResult:
        """Run one SQL statement in its own transaction, with the schema migrated."""

    @abstractmethod
    def metadata(self, name: str) -> str:
        """Return the SQL expression that reads a field of the checkpoint metadata as text."""

    @abstractmethod
    def _format(self, statement: str, values: tuple[Any, ...]) -> tuple[Any, Any]:
        """Convert a SQL statement and its values to the database's dialect."""

    @abstractmethod
    def _connect(self) -> Any:
        """Open a database connection, or return ``None`` for an in-memory database."""

    @abstractmethod
    def _exclusively(self, conn: Any) -> AbstractContextManager[Any]:
        """Open a transaction that excludes concurrent schema migrations."""

    @abstractmethod
    def _errors(self) -> type[Exception]:
        """Return the driver's base exception class."""


class SingleConnectionTables(SqlTables):
    """SQL tables accessed through one connection per process, which opens on first use."""

    runs_in_thread = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: tuple[int, Any] | None = None

    async def prepare(self) -> None:
        """Do nothing, because the schema is migrated when the connection opens."""

    async def _run(self, statement: str, values: tuple[Any, ...]) -> StatementResult:
        # Threads of a shared pool do not survive a fork.
        return await asyncio.to_thread(self.run_blocking, statement, values)

    def run_blocking(self, statement: str, values: tuple[Any, ...] = ()) -> StatementResult:
        """Run one SQL statement in its own transaction, blocking the calling thread."""
        try:
            with self._lock:
                conn = self._connection()
                self._migrate(conn)
                return self._execute(conn, statement, values)
        except self._errors() as exc:
            raise database_error(exc) from exc

    def close(self) -> None:
        """Close the database connection. The next statement reopens it."""
        with self._lock:
            # A forked process must not use the connection of its parent.
            if self._open is not None and self._open[0] == os.getpid():
                self._open[1].close()
            self._open, self._is_prepared = None, False

    def _connection(self) -> Any:
        if self._open is None or self._open[0] != os.getpid():
            conn = self._connect()
            weakref.finalize(self, conn.close)
            self._open = os.getpid(), conn
        return self._open[1]


def database_error(exc: Exception) -> PersistenceError:
    """Create the error for a SQL statement that the database rejected."""
    return PersistenceError(
        f"The database rejected the statement: {str(exc).strip()}.",
        fix="Check the database, then try again.",
    )
