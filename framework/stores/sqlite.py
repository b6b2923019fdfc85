"""A SQLite saver that says what is wrong and never leaves half a transaction behind."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiosqlite
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from framework.base.errors import PersistenceError
from framework.stores.reading import checked, readable

LOCK_SECONDS = 30.0
"""How long to wait for another process that has the database locked."""


class SqliteSaver(AsyncSqliteSaver):
    """``AsyncSqliteSaver`` whose errors are the project's and which checks what it reads.

    Args:
        conn: Open connection.
        serde: Serializer.
        name: How messages call the database.
    """

    def __init__(self, conn: aiosqlite.Connection, *, serde: SerializerProtocol, name: str) -> None:
        super().__init__(conn, serde=serde)
        self._name = name

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read a checkpoint."""
        async with self._told("read"):
            with readable(config["configurable"].get("thread_id")):
                found = await super().aget_tuple(config)
            return checked(found)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the base class's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """List checkpoints, newest first."""
        thread = (config or {}).get("configurable", {}).get("thread_id")
        async with self._told("read"):
            with readable(thread):
                found = super().alist(config, filter=filter, before=before, limit=limit)
                async for item in found:
                    yield item

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Write a checkpoint."""
        async with self._told("written"):
            return await super().aput(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Write what a task gave."""
        async with self._told("written"):
            await super().aput_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread."""
        async with self._told("written"):
            await self.setup()
            await super().adelete_thread(thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the latest checkpoint of each namespace of threads, or nothing.

        Args:
            thread_ids: The threads.
            strategy: ``keep_latest`` or ``delete``.
        """
        if strategy == "delete":
            for thread in thread_ids:
                await self.adelete_thread(thread)
            return
        await self.setup()
        older = (
            "SELECT checkpoint_ns, checkpoint_id FROM checkpoints AS c WHERE thread_id = ?"
            " AND checkpoint_id < (SELECT MAX(checkpoint_id) FROM checkpoints AS o"
            " WHERE o.thread_id = c.thread_id AND o.checkpoint_ns = c.checkpoint_ns)"
        )
        async with self._told("written"), self.lock:
            for thread in thread_ids:
                # Writes go by the checkpoints that go: those of a run under way may be there
                # before their checkpoint is.
                for table in ("writes", "checkpoints"):
                    await self.conn.execute(
                        f"DELETE FROM {table} WHERE thread_id = ?"  # noqa: S608 - constants
                        f" AND (checkpoint_ns, checkpoint_id) IN ({older})",
                        (thread, thread),
                    )
            await self.conn.commit()

    async def thread_ids(self) -> list[str]:
        """Name the threads, in no order."""
        await self.setup()
        statement = "SELECT DISTINCT thread_id FROM checkpoints WHERE checkpoint_ns = ''"
        async with self._told("read"), self.lock, self.conn.execute(statement) as cursor:
            return [row[0] for row in await cursor.fetchall()]

    @asynccontextmanager
    async def _told(self, what: str) -> AsyncIterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            # A statement whose commit failed would be carried along by the next commit. Every
            # operation holds the lock until it is committed, so nothing else is rolled back.
            with suppress(sqlite3.Error, ValueError):
                async with self.lock:
                    await self.conn.rollback()
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
async def open_sqlite(path: str, serde: SerializerProtocol) -> AsyncIterator[SqliteSaver]:
    """Open a SQLite file as saver.

    Raises:
        PersistenceError: It cannot be opened, read or written.
    """
    conn = await connect(path)
    try:
        saver = SqliteSaver(conn, serde=serde, name=path)
        try:
            await saver.setup()
            await conn.execute("BEGIN IMMEDIATE")
            await conn.rollback()
        except sqlite3.Error as exc:
            raise unusable(path, "used", exc) from exc
        yield saver
    finally:
        await conn.close()


async def connect(path: str, **options: Any) -> aiosqlite.Connection:
    """Open a connection.

    Raises:
        PersistenceError: The file cannot be opened.
    """
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
    return conn
