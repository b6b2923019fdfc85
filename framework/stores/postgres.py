"""PostgreSQL: tables, a saver that retries while the database is unavailable, and a store."""

from __future__ import annotations

import asyncio
import base64
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar, TypeVar

import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.store.base import BaseStore
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from capgraph.base.errors import PersistenceError
from capgraph.langgraph_compat import postgres_cursor
from capgraph.stores.base_saver import BaseSaver
from capgraph.stores.cross_loop import CrossLoopLock, CrossLoopStore
from capgraph.stores.database import (
    Location,
    SingleConnectionTables,
    SqlTables,
    StatementResult,
    database_error,
)

T = TypeVar("T")

RETRY_SECONDS = 30.0
"""Seconds for which an operation is retried while the database is unavailable."""
CONNECT_SECONDS = 5
_SETUP_LOCK = 0x6361_7067_7261_7068
_SEAL = "capgraph:sealed:"
_SCHEMA_LOCK = 7089056
APPLICATION_NAME = "capgraph"
"""Application name of the connections, unless the URL sets one."""
_END_FROZEN = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'ClientRead'"
    f" AND datname = current_database() AND usename = current_user AND application_name = '{APPLICATION_NAME}'"
    " AND xact_start < clock_timestamp() - make_interval(secs => ?)"
)


class PostgresTables(SqlTables):
    """Tables stored next to a PostgreSQL saver's checkpoints, using its connection or pool.

    Args:
        saver: LangGraph's saver, or a :class:`PostgresSaver`.
    """

    checkpoint_tables: ClassVar[dict[str, str]] = {
        "checkpoints": "checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint,"
        " metadata",
        "checkpoint_writes": "checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel,"
        " type, blob",
        "checkpoint_blobs": "checkpoint_ns, channel, version, type, blob",
    }
    placeholders: ClassVar[dict[str, str]] = {
        "now": "extract(epoch from clock_timestamp())::float8",
        "name": 'TEXT COLLATE "C"',
        "writes": "checkpoint_writes",
        "value": "blob",
        "join": "JOIN",
    }
    snapshot_query: ClassVar[str] = (
        "SELECT id, b.channel, b.type, b.blob FROM chain"
        " JOIN checkpoints c ON c.checkpoint_id = id LEFT JOIN checkpoint_blobs b"
        " ON b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns"
        " AND b.version = c.checkpoint -> 'channel_versions' ->> b.channel"
    )
    sweep_statement: ClassVar[str] = (
        "DELETE FROM checkpoint_blobs WHERE thread_id = ? AND (checkpoint_ns, channel, version)"
        " NOT IN (SELECT checkpoint_ns, held.key, held.value FROM checkpoints,"
        " jsonb_each_text(checkpoint -> 'channel_versions') held WHERE thread_id = ?)"
    )

    # to_regclass does not see tables that were created while this process waited for the lock.
    migrations_table_query: ClassVar[str] = (
        "SELECT count(*) FROM pg_class WHERE relname = 'capgraph_migrations'"
        " AND pg_table_is_visible(oid)"
    )
    can_notify = True

    def metadata(self, name: str) -> str:
        """Return an SQL expression that reads a field of a checkpoint's metadata as text."""
        return f"metadata ->> '{name}'"

    def __init__(self, saver: Any) -> None:
        self._saver = saver
        self._address = _address(saver.conn)

    def is_at(self, url: str) -> bool:
        """Return True if a URL refers to this database, ignoring the password."""
        mine, other = conninfo_to_dict(self._address), conninfo_to_dict(url)
        return {**mine, "password": ""} == {**other, "password": ""}

    async def listen(self, channel: str) -> AsyncIterator[str]:
        """Yield the payloads of PostgreSQL notifications on a channel.

        The first item is an empty string, which confirms that the connection is listening.

        Raises:
            PersistenceError: The database is unavailable.
        """
        try:
            connecting = psycopg.AsyncConnection.connect(self._address, autocommit=True)
            async with await connecting as connection:
                await connection.execute(f"LISTEN {channel}".encode())
                yield ""
                async for notification in connection.notifies():
                    yield notification.payload
        except psycopg.Error as exc:
            raise database_error(exc) from exc

    async def end_stale_connections(self, idle_seconds: float) -> None:
        """Terminate capgraph's database connections that have left a transaction open.

        Terminating a connection releases its locks. Timeouts on older PostgreSQL servers do not end
        a connection in the middle of a pipeline.

        Args:
            idle_seconds: Minimum age of the open transaction, in seconds.
        """
        await self.run(_END_FROZEN, (idle_seconds,))

    async def _run(self, statement: str, values: tuple[Any, ...]) -> StatementResult:
        return await self._run_operation(lambda: self._execute_once(statement, values))

    async def run_locked(
        self, lock: str, statement: str, values: tuple[Any, ...] = ()
    ) -> StatementResult:
        """Run an SQL statement while holding a named lock.

        The statement sees the results of all earlier statements run with the same lock.
        """
        await self.prepare()

        async def execute() -> StatementResult:
            async with postgres_cursor(self._saver) as cursor, cursor.connection.transaction():
                # A statement sees only what was committed before it started, so the lock needs
                # a statement of its own.
                await cursor.execute(
                    "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (lock,)
                )
                return await self._fetch(cursor, statement, values)

        return await self._run_operation(execute)

    async def _run_operation(
        self, operation: Callable[[], Awaitable[StatementResult]]
    ) -> StatementResult:
        run_operation = getattr(self._saver, "run_operation", None)
        if run_operation is not None:
            found: StatementResult = await run_operation("used", operation)
            return found
        try:
            return await operation()
        except psycopg.Error as exc:
            raise database_error(exc) from exc

    async def _execute_once(self, statement: str, values: tuple[Any, ...]) -> StatementResult:
        async with postgres_cursor(self._saver) as cursor:
            return await self._fetch(cursor, statement, values)

    async def _fetch(self, cursor: Any, statement: str, values: tuple[Any, ...]) -> StatementResult:
        await cursor.execute(*self._format(statement, values))
        rows = await cursor.fetchall() if cursor.description else []
        return cursor.rowcount, [tuple(row.values()) for row in rows]

    def _connect(self) -> Any:
        # With autocommit, a frozen process cannot keep rows locked. Behind a pooler, the next
        # server process may not know prepared statements.
        return psycopg.connect(
            self._address, connect_timeout=5, autocommit=True, prepare_threshold=None
        )

    @contextmanager
    def _exclusively(self, conn: Any) -> Iterator[None]:
        with conn.transaction():
            conn.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
            yield

    def _errors(self) -> type[Exception]:
        return psycopg.Error

    def _format(self, statement: str, values: tuple[Any, ...]) -> tuple[Any, Any]:
        return _to_psycopg(statement), values or None


@functools.lru_cache(512)
def _to_psycopg(statement: str) -> str:
    return statement.format(**PostgresTables.placeholders).replace("?", "%s")


class PostgresServer(SingleConnectionTables, PostgresTables):
    """Tables in a PostgreSQL database that is opened by URL, without a saver.

    Args:
        address: URL of the database.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def _connection(self) -> Any:
        conn = super()._connection()
        try:
            conn.execute("SELECT 1")
        except psycopg.Error:  # the server closed the connection
            conn.close()
            self._open = None
            conn = super()._connection()
        return conn


def _address(conn: Any) -> str:
    if hasattr(conn, "conninfo"):  # a pool
        return str(conn.conninfo)
    return make_conninfo(conn.info.dsn, password=conn.info.password or None)


def tables_of(saver: Any) -> SqlTables:
    """Return capgraph's tables in the database of a PostgreSQL saver."""
    return PostgresTables(saver)


def open_tables(location: Location) -> SqlTables:
    """Return the tables of a PostgreSQL database."""
    return PostgresServer(location.target)


class PostgresSaver(BaseSaver, AsyncPostgresSaver):
    """``AsyncPostgresSaver`` that retries operations while the database is unavailable.

    Retries are safe, because all operations address rows by key and are therefore idempotent.

    Args:
        conn: Pool of database connections.
        serde: Serializer for checkpoints.
        name: Name of the database for error messages.
        retry_seconds: Maximum number of seconds to retry an operation.
    """

    def __init__(
        self,
        conn: AsyncConnectionPool[Any],
        *,
        serde: SerializerProtocol,
        name: str,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        super().__init__(conn, serde=serde)
        self.lock: Any = CrossLoopLock()
        self._name = name
        self._retry_seconds = retry_seconds

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint and return its configuration."""
        # The base class stores text channels unencrypted, outside the blobs.
        sealed = self._seal_texts(checkpoint)
        written: RunnableConfig = await super().aput(config, sealed, metadata, new_versions)
        return written

    async def run_operation(self, verb: str, operation: Callable[[], Awaitable[T]]) -> T:
        """Run a database operation, retrying while the database is unavailable.

        Raises:
            PersistenceError: The database rejected the operation, or was unavailable for too long.
        """
        loop = asyncio.get_running_loop()
        end, delay = loop.time() + self._retry_seconds, 0.05
        while True:
            try:
                return await operation()
            except (psycopg.OperationalError, psycopg.InterfaceError) as exc:
                if loop.time() + delay > end:
                    raise PersistenceError(
                        f"The database {self._name!r} was unavailable for {self._retry_seconds:g} s: {exc}.",
                        fix="Restore the database, then resume the thread.",
                        is_unavailable=True,
                    ) from exc
                await asyncio.sleep(delay)
                delay = min(delay * 2, 1.0)
            except psycopg.Error as exc:
                raise PersistenceError(
                    f"The database {self._name!r} rejected an operation: {exc}.",
                    fix="Correct the cause, then resume the thread from its last saved step.",
                ) from exc

    def _seal_texts(self, checkpoint: Checkpoint) -> Checkpoint:
        secret = isinstance(self.serde, EncryptedSerializer)
        values = {
            name: self._seal(value)
            # PostgreSQL's JSON does not allow NUL. Text that starts with the marker must be sealed too.
            if isinstance(value, str) and (secret or "\0" in value or value.startswith(_SEAL))
            else value
            for name, value in checkpoint["channel_values"].items()
        }
        return {**checkpoint, "channel_values": values}

    def _seal(self, text: str) -> str:
        kind, data = self.serde.dumps_typed(text)
        return f"{_SEAL}{kind}:{base64.b64encode(data).decode()}"

    def unseal(self, checkpoint_tuple: CheckpointTuple | None) -> CheckpointTuple | None:
        """Decode the sealed strings in a loaded checkpoint.

        Strings that are encrypted or contain NUL characters are stored in sealed (encoded) form,
        because PostgreSQL JSON cannot contain NUL.

        Some text values are stored in encoded ("sealed") form.
        """
        if checkpoint_tuple is None:
            return checkpoint_tuple
        values = checkpoint_tuple.checkpoint["channel_values"]
        for name, value in values.items():
            if isinstance(value, str) and value.startswith(_SEAL):
                kind, _, data = value.removeprefix(_SEAL).partition(":")
                values[name] = self.serde.loads_typed((kind, base64.b64decode(data)))
        return checkpoint_tuple


@asynccontextmanager
async def open_saver(
    location: Location, serde: SerializerProtocol
) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """Open a LangGraph checkpoint saver on a PostgreSQL database.

    Raises:
        PersistenceError: The database cannot be reached or used.
    """
    async with _pool(location) as pool:
        saver = PostgresSaver(pool, serde=serde, name=str(location))
        await _run_setup_locked(location, saver.setup)
        yield saver


@asynccontextmanager
async def open_store(location: Location, options: dict[str, Any]) -> AsyncIterator[BaseStore]:
    """Open a LangGraph store on a PostgreSQL database.

    Raises:
        PersistenceError: The database cannot be reached or used.
    """
    from langgraph.store.postgres.aio import AsyncPostgresStore

    class PostgresStore(CrossLoopStore, AsyncPostgresStore):
        """LangGraph's store, usable from any event loop."""

    async with _pool(location) as pool, PostgresStore(pool, **options) as store:
        await _run_setup_locked(location, store.setup)
        yield store


@asynccontextmanager
async def _pool(location: Location) -> AsyncIterator[AsyncConnectionPool[Any]]:
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    options["fallback_application_name"] = APPLICATION_NAME
    url = location.target
    with _wrap_connect_errors(location):
        probe = await psycopg.AsyncConnection.connect(url, connect_timeout=CONNECT_SECONDS)
        await probe.close()
    pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
        url, min_size=1, max_size=4, open=False, timeout=CONNECT_SECONDS, kwargs=options
    )
    try:
        await pool.open(wait=True, timeout=CONNECT_SECONDS)
        yield pool
    finally:
        await pool.close()


async def _run_setup_locked(location: Location, setup: Callable[[], Awaitable[Any]]) -> None:
    """Create LangGraph's tables while holding an advisory lock.

    The lock is needed because concurrent setup statements conflict.
    """
    with _wrap_connect_errors(location):
        async with await psycopg.AsyncConnection.connect(location.target, autocommit=True) as conn:
            # Polled, because a statement that waits for the lock would block CREATE INDEX
            # CONCURRENTLY in the process that holds it.
            while True:
                cursor = await conn.execute("SELECT pg_try_advisory_lock(%s)", (_SETUP_LOCK,))
                row = await cursor.fetchone()
                if row is not None and row[0]:
                    break
                await asyncio.sleep(0.05)
            try:
                await setup()
            finally:
                await conn.execute("SELECT pg_advisory_unlock(%s)", (_SETUP_LOCK,))


@contextmanager
def _wrap_connect_errors(location: Location) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as exc:
        raise PersistenceError(
            f"The database {str(location)!r} cannot be reached: {str(exc).strip()}.",
            fix="Start the database, and check its address, user, and permissions.",
            is_unavailable=True,
        ) from exc
