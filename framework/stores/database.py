"""The SQL layer: tables of capgraph in a database, and savers and stores opened by URL.

Each kind of database is one module with four functions and one line in :data:`DATABASES`:
``open_saver(location, serde)`` and ``open_store(location, options)``, which are asynchronous context
managers, ``open_tables(location)``, and ``tables_of(saver)`` for LangGraph's own saver.
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
    """One kind of database.

    Attributes:
        module: Holds the four functions.
        schemes: Schemes of its URLs.
        saver: Module of LangGraph's own saver for it.
        store: Module of LangGraph's own store.
        driver: Module that tables need.
        is_file: True if a URL names a file; otherwise the URL itself is the target.
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
"""Kinds of databases; the name of a kind is that of the extra that installs it, too."""


class Location(NamedTuple):
    """A database.

    Attributes:
        kind: ``sqlite`` or ``postgres``.
        target: Path of the file (or ``:memory:``), or the connection string.
    """

    kind: str
    target: str

    def __str__(self) -> str:
        return mask_secrets(self.target)


def parse_url(url: str) -> Location:
    """Return the database that a URL names.

    Args:
        url: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite://:memory:`` or
            ``postgresql://user@host/database``.

    Raises:
        ConfigurationError: It is none of these.

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
        f"{mask_secrets(url)!r} names no database that can be used. Fix: write"
        " sqlite:///file.db, sqlite:////absolute/file.db, sqlite://:memory: or"
        " postgresql://user@host/database."
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
    """Open the saver that a URL names; the tables beside its checkpoints are brought up to date.

    Args:
        url: ``sqlite:///file.db``, ``sqlite://:memory:``, ``postgresql://…``, or ``None`` for no
            saver.
        encryption_key: 16, 24 or 32 bytes (or such text) that encrypt what is saved.

    Yields:
        A saver for ``build_graph``; it is closed at the end of the block.

    Raises:
        ConfigurationError: The URL or the key cannot be used.
        MissingExtraError: The extra of the database is not installed.
        PersistenceError: The database cannot be reached, or its schema cannot be brought up to
            date. There is no other database to fall back to.

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
    """Open the LangGraph store that a URL names.

    Args:
        url: As for :func:`open_saver`; ``None`` keeps the store in memory.
        **options: Passed on to the store: ``index``, ``ttl``.

    Raises:
        ConfigurationError: The URL cannot be used.
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
    """Return the tables of a database that no saver has open; connected when first used.

    Args:
        url: As for :func:`open_saver`.

    Raises:
        ConfigurationError: It is no such URL.
        MissingExtraError: The extra of the database is not installed.
    """
    location = parse_url(url)
    found: SqlTables = _module(location, DATABASES[location.kind].driver).open_tables(location)
    return found


def tables_of(saver: BaseCheckpointSaver[Any]) -> SqlTables | None:
    """Return the tables in the database of a saver; ``None`` for a saver of an unknown database."""
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
    """Tables of capgraph in a database.

    Beside ``?``, ``{now}`` and ``{name}`` (text that sorts by its characters), a statement may name
    the tables of LangGraph's saver: ``{writes}`` with ``{value}`` for what was written; and
    ``{join}``, which joins in the order of the text.
    """

    checkpoint_tables: ClassVar[dict[str, str]]
    """The saver's tables and their columns beside ``thread_id``: checkpoints, writes, values."""
    placeholders: ClassVar[dict[str, str]]
    """What stands for the words of a statement."""
    snapshot_query: ClassVar[str]
    """Reads checkpoint, channel (empty: all of them), type and bytes of what is saved along a chain."""
    sweep_statement: ClassVar[str] = ""
    """Drops the values of a thread that no checkpoint of it has."""
    migrations_table_query: ClassVar[str]
    """Counts the tables named ``capgraph_migrations``."""
    can_notify: ClassVar[bool] = False
    """True if statements can notify listeners of other processes (``pg_notify``)."""
    runs_in_thread: ClassVar[bool] = False
    """True if each statement changes to another thread."""

    _is_prepared = False

    async def prepare(self) -> None:
        """Bring the schema up to date, once; :meth:`run` does so too.

        Raises:
            PersistenceError: A newer release wrote the database, or the user may not change it.
        """
        if not self._is_prepared:
            await self._prepare()
            self._is_prepared = True

    async def _prepare(self) -> None:
        await asyncio.to_thread(self.run_blocking, "SELECT 1")

    async def run(self, statement: str, values: tuple[Any, ...] = ()) -> StatementResult:
        """Run one statement in a transaction of its own.

        Returns:
            How many rows it changed, and the rows that it returned.

        Raises:
            PersistenceError: The database refused, or cannot be reached.
        """
        await self.prepare()
        return await self._run(statement, values)

    def run_blocking(self, statement: str, values: tuple[Any, ...] = ()) -> StatementResult | None:
        """Run one statement on a connection of its own; ``None`` for a database in memory."""
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
        """Return tables of the same database for what is written often and may be lost with power.

        What they commit outlives the process all the same.
        """
        return self

    def is_at(self, url: str) -> bool:
        """Return whether a URL names this database, if that can be known."""
        return False

    def listen(self, channel: str) -> AsyncIterator[str]:
        """Yield what is notified on a channel, after an empty name once it is connected.

        Raises:
            PersistenceError: The database cannot be reached.
        """
        raise NotImplementedError

    async def end_stale_connections(self, idle_seconds: float) -> None:
        """End connections whose process left a transaction open, with its locks.

        Args:
            idle_seconds: How long nothing was heard of the process.
        """

    def close(self) -> None:
        """Close a connection of its own; it is opened again when it is needed."""

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
        return cursor.rowcount, rows  # SQLite has counted when all of them are read

    @abstractmethod
    async def _run(self, statement: str, values: tuple[Any, ...]) -> StatementResult:
        """Run one statement in a transaction of its own, with the schema up to date."""

    @abstractmethod
    def metadata(self, name: str) -> str:
        """Return the expression that reads a checkpoint's metadata as text."""

    @abstractmethod
    def _format(self, statement: str, values: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return a statement with the words and marks of the database."""

    @abstractmethod
    def _connect(self) -> Any:
        """Open a connection; ``None`` for a database in memory."""

    @abstractmethod
    def _exclusively(self, conn: Any) -> AbstractContextManager[Any]:
        """Open a transaction that no other migration overlaps."""

    @abstractmethod
    def _errors(self) -> type[Exception]:
        """Return the class of the errors of the database."""


class SingleConnectionTables(SqlTables):
    """Tables through one connection of the process, made when it is first needed."""

    runs_in_thread = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: tuple[int, Any] | None = None

    async def prepare(self) -> None:
        """Do nothing: the connection brings the schema up to date when it is made."""

    async def _run(self, statement: str, values: tuple[Any, ...]) -> StatementResult:
        # A pool's threads do not survive a fork; those of the loop are its own.
        return await asyncio.to_thread(self.run_blocking, statement, values)

    def run_blocking(self, statement: str, values: tuple[Any, ...] = ()) -> StatementResult:
        """Run one statement in a transaction of its own."""
        try:
            with self._lock:
                conn = self._connection()
                self._migrate(conn)
                return self._execute(conn, statement, values)
        except self._errors() as exc:
            raise database_error(exc) from exc

    def close(self) -> None:
        """Close the connection; it is opened again when it is needed."""
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
    """Return the error for a statement that the database refused."""
    return PersistenceError(
        f"The database refused: {str(exc).strip()}.",
        fix="Look at the database; then try again.",
    )
