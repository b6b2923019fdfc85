"""A PostgreSQL saver that outlasts a database that is away for a while."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

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
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from capgraph.base.errors import PersistenceError
from capgraph.stores.guarded import GuardedSaver
from capgraph.stores.location import Location
from capgraph.stores.loops import LoopsLock, LoopsStore
from capgraph.stores.rows import OURS

T = TypeVar("T")

PATIENCE_SECONDS = 30.0
"""How long an operation is tried again while the database is away."""
CONNECT_SECONDS = 5
_SETUP_LOCK = 0x6361_7067_7261_7068
_SEAL = "capgraph:sealed:"


class PostgresSaver(GuardedSaver, AsyncPostgresSaver):
    """``AsyncPostgresSaver`` that tries again while the database is away.

    Every operation writes or reads rows by their keys, so doing one twice is doing it once.

    Args:
        conn: Pool of connections.
        serde: Serializer.
        name: How messages call the database.
        patience: Seconds that one operation is tried for.
    """

    def __init__(
        self,
        conn: AsyncConnectionPool[Any],
        *,
        serde: SerializerProtocol,
        name: str,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        super().__init__(conn, serde=serde)
        self.lock: Any = LoopsLock()
        self._name = name
        self._patience = patience

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Write a checkpoint."""
        # The base class keeps text channels beside the blobs, as they are.
        sealed = self._sealed(checkpoint)
        written: RunnableConfig = await super().aput(config, sealed, metadata, new_versions)
        return written

    async def guarded(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Do an operation, again and again while the database is away.

        Raises:
            PersistenceError: It refused, or was away for too long.
        """
        loop = asyncio.get_running_loop()
        end, delay = loop.time() + self._patience, 0.05
        while True:
            try:
                return await call()
            except (psycopg.OperationalError, psycopg.InterfaceError) as exc:
                if loop.time() + delay > end:
                    raise PersistenceError(
                        f"The database {self._name!r} was away for {self._patience:g} s: {exc}.",
                        fix="Bring it back, then run the thread again; it goes on where it stopped.",
                        away=True,
                    ) from exc
                await asyncio.sleep(delay)
                delay = min(delay * 2, 1.0)
            except psycopg.Error as exc:
                raise PersistenceError(
                    f"The database {self._name!r} refused: {exc}.",
                    fix="Look at the cause; the thread goes on from its last saved step.",
                ) from exc

    def _sealed(self, checkpoint: Checkpoint) -> Checkpoint:
        secret = isinstance(self.serde, EncryptedSerializer)
        values = {
            name: self._seal(value)
            # PostgreSQL's JSON has no NUL; and what looks sealed must have been sealed by us.
            if isinstance(value, str) and (secret or "\0" in value or value.startswith(_SEAL))
            else value
            for name, value in checkpoint["channel_values"].items()
        }
        return {**checkpoint, "channel_values": values}

    def _seal(self, text: str) -> str:
        kind, data = self.serde.dumps_typed(text)
        return f"{_SEAL}{kind}:{base64.b64encode(data).decode()}"

    def opened(self, found: CheckpointTuple | None) -> CheckpointTuple | None:
        """Return what was read with its sealed texts opened."""
        if found is None:
            return found
        values = found.checkpoint["channel_values"]
        for name, value in values.items():
            if isinstance(value, str) and value.startswith(_SEAL):
                kind, _, data = value.removeprefix(_SEAL).partition(":")
                values[name] = self.serde.loads_typed((kind, base64.b64decode(data)))
        return found


@asynccontextmanager
async def postgres_saver(
    location: Location, serde: SerializerProtocol
) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """Open a PostgreSQL database as saver.

    Raises:
        PersistenceError: It cannot be reached or used.
    """
    async with _pool(location) as pool:
        saver = PostgresSaver(pool, serde=serde, name=str(location))
        await _set_up(location, saver.setup)
        yield saver


@asynccontextmanager
async def postgres_store(location: Location, options: dict[str, Any]) -> AsyncIterator[BaseStore]:
    """Open a PostgreSQL database as store.

    Raises:
        PersistenceError: It cannot be reached or used.
    """
    from langgraph.store.postgres.aio import AsyncPostgresStore

    class PostgresStore(LoopsStore, AsyncPostgresStore):
        """LangGraph's, on any loop."""

    async with _pool(location) as pool, PostgresStore(pool, **options) as store:
        await _set_up(location, store.setup)
        yield store


@asynccontextmanager
async def _pool(location: Location) -> AsyncIterator[AsyncConnectionPool[Any]]:
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    options["fallback_application_name"] = OURS
    url = location.target
    with _reachable(location):
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


async def _set_up(location: Location, setup: Callable[[], Awaitable[Any]]) -> None:
    """Let no two processes create the tables at once; the statements do not bear that."""
    with _reachable(location):
        async with await psycopg.AsyncConnection.connect(location.target, autocommit=True) as conn:
            # Polled: a statement that waits for the lock would keep the other's indexes from
            # being built.
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
def _reachable(location: Location) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as exc:
        raise PersistenceError(
            f"The database {str(location)!r} cannot be reached: {str(exc).strip()}.",
            fix="Start it, and check address, user and rights; nothing is kept in memory instead.",
            away=True,
        ) from exc
