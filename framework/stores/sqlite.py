"""A SQLite saver that says what is wrong and never leaves half a transaction behind."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

import aiosqlite
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, DeltaChannelHistory, writes_sort_key
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.store.base import BaseStore

from framework.base.errors import PersistenceError
from framework.stores.guarded import GuardedSaver
from framework.stores.location import Location
from framework.stores.reading import readable

T = TypeVar("T")

_COUNTERS = "counters_since_delta_snapshot"
"""In a checkpoint's metadata: channel to updates and checkpoints since it was saved as a whole."""
_METADATA = (
    "SELECT metadata FROM checkpoints"
    " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
)
_CHECKPOINT = _METADATA.replace("metadata", "type, checkpoint", 1)
_CHAIN = (
    "WITH RECURSIVE chain(id, parent, depth) AS ("
    " SELECT checkpoint_id, parent_checkpoint_id, 0 FROM checkpoints"
    " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
    " UNION ALL SELECT c.checkpoint_id, c.parent_checkpoint_id, depth + 1"
    " FROM chain CROSS JOIN checkpoints c ON c.checkpoint_id = chain.parent"
    " WHERE c.thread_id = ? AND c.checkpoint_ns = ? AND depth < ?)"
)
_ENDS = "SELECT id, depth FROM chain WHERE depth IN ({}) OR parent IS NULL"
_WRITES = (
    "SELECT depth, channel, task_id, idx, type, value, task_path FROM chain CROSS JOIN writes"
    " ON checkpoint_id = id WHERE thread_id = ? AND checkpoint_ns = ? AND depth > 0"
    " AND channel IN ({})"
)
LOCK_SECONDS = 30.0
"""How long to wait for another process that has the database locked."""


class SqliteSaver(GuardedSaver, AsyncSqliteSaver):
    """``AsyncSqliteSaver`` whose errors are the project's and which checks what it reads.

    Args:
        conn: Open connection.
        serde: Serializer.
        name: How messages call the database.
    """

    def __init__(self, conn: aiosqlite.Connection, *, serde: SerializerProtocol, name: str) -> None:
        super().__init__(conn, serde=serde)
        self._name = name

    async def guarded(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Do an operation; one that failed leaves nothing behind."""
        try:
            return await call()
        except sqlite3.Error as exc:
            # A statement whose commit failed would be carried along by the next commit. Every
            # operation holds the lock until it is committed, so nothing else is rolled back.
            with suppress(sqlite3.Error, ValueError):
                async with self.lock:
                    await self.conn.rollback()
            raise unusable(self._name, what, exc) from exc

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Read what was written to channels since they were last saved as a whole.

        The base class decodes every checkpoint on the way back to find where that was. The newest
        one says how far back it is, so only that one is decoded.
        """
        place = config["configurable"]
        thread, namespace = str(place["thread_id"]), place.get("checkpoint_ns", "")
        target = place.get("checkpoint_id")
        with readable(thread):
            found = await self.guarded(
                "read", lambda: self._since_saved(thread, namespace, target, channels)
            )
        if found is not None:
            return found
        return await super().aget_delta_channel_history(config=config, channels=channels)

    async def _since_saved(
        self, thread: str, namespace: str, target: str | None, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory] | None:
        if not channels or target is None:
            return None
        await self.setup()
        marks = ",".join("?" * len(channels))
        async with self.lock, self.conn.cursor() as cursor:
            await cursor.execute(_METADATA, (thread, namespace, target))
            row = await cursor.fetchone()
            counters = json.loads(row[0] or "{}").get(_COUNTERS, {}) if row else {}
            if any(name not in counters for name in channels):
                return None
            reach = {name: counters[name][1] for name in channels}
            walk = (thread, namespace, target, thread, namespace, max(reach.values()))
            await cursor.execute(
                f"{_CHAIN} {_WRITES.format(marks)}", (*walk, thread, namespace, *channels)
            )
            rows = list(await cursor.fetchall())
            await cursor.execute(f"{_CHAIN} {_ENDS.format(marks)}", (*walk, *reach.values()))
            chain = {depth: name for name, depth in await cursor.fetchall()}
            seeds = {}
            for depth in chain:
                await cursor.execute(_CHECKPOINT, (thread, namespace, chain[depth]))
                kind, data = await cursor.fetchone()  # type: ignore[misc]
                seeds[depth] = self.serde.loads_typed((kind, data))["channel_values"]
        result: dict[str, DeltaChannelHistory] = {}
        for name in channels:
            far = min(reach[name], max(chain))
            mine = [row for row in rows if row[1] == name and row[0] <= far]
            # What update_state or another durability leaves is counted in another way.
            if far == reach[name] and len({row[0] for row in mine}) != counters[name][0]:
                return None
            mine.sort(key=lambda row: (-row[0], writes_sort_key(row[6], row[2], row[3])))
            loaded = [(row[2], name, self.serde.loads_typed((row[4], row[5]))) for row in mine]
            result[name] = {"writes": loaded}
            if name in seeds[far]:
                result[name]["seed"] = seeds[far][name]
        return result


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
    async with _connected(path) as conn:
        saver = SqliteSaver(conn, serde=serde, name=path)
        with _usable(path):
            await saver.setup()
            await conn.execute("BEGIN IMMEDIATE")
            await conn.rollback()
        yield saver


@asynccontextmanager
async def sqlite_store(location: Location, options: dict[str, Any]) -> AsyncIterator[BaseStore]:
    """Open a SQLite file as store.

    Raises:
        PersistenceError: It cannot be opened, read or written.
    """
    from langgraph.store.sqlite.aio import AsyncSqliteStore

    # The store issues its own BEGIN and COMMIT.
    async with (
        _connected(location.target, isolation_level=None) as conn,
        AsyncSqliteStore(conn, **options) as store,
    ):
        with _usable(location.target):
            await store.setup()
        yield store


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
        yield conn
    finally:
        await conn.close()
