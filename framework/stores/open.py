"""Opens savers and stores by URL. What is configured and cannot be reached stops the start."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from framework.base.errors import require_extra
from framework.stores.location import parse_url
from framework.stores.reading import make_serializer


@asynccontextmanager
async def open_saver(
    url: str | None, *, encryption_key: str | bytes | None = None
) -> AsyncIterator[BaseCheckpointSaver[Any] | None]:
    """Open the saver that a URL names.

    Args:
        url: ``sqlite:///file.db``, ``sqlite://:memory:``, ``postgresql://…``, or ``None`` for no
            saver.
        encryption_key: 16, 24 or 32 bytes (or such text) that encrypt what is saved.

    Yields:
        A saver for ``build_graph``; it is closed at the end of the block.

    Raises:
        ConfigurationError: The URL or the key cannot be used.
        MissingExtraError: The extra of the database is not installed.
        PersistenceError: The database cannot be reached; there is no other place to fall back to.

    >>> import asyncio
    >>> async def main():
    ...     async with open_saver("sqlite://:memory:") as saver:
    ...         return await saver.aget_tuple({"configurable": {"thread_id": "1"}})
    >>> asyncio.run(main()) is None
    True
    """
    if url is None:
        yield None
        return
    location = parse_url(url)
    serde = make_serializer(encryption_key)
    if location.kind == "sqlite":
        require_extra("langgraph.checkpoint.sqlite.aio", "sqlite")
        from framework.stores.sqlite import open_sqlite

        async with open_sqlite(location.target, serde) as sqlite_saver:
            yield sqlite_saver
    else:
        require_extra("langgraph.checkpoint.postgres.aio", "postgres")
        require_extra("psycopg_pool", "postgres")
        from framework.stores.postgres import open_postgres

        async with open_postgres(location.target, serde, str(location)) as postgres_saver:
            yield postgres_saver


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
    if location.kind == "sqlite":
        require_extra("langgraph.store.sqlite.aio", "sqlite")
        async with _sqlite_store(location.target, options) as sqlite_store:
            yield sqlite_store
    else:
        require_extra("langgraph.store.postgres.aio", "postgres")
        require_extra("psycopg_pool", "postgres")
        async with _postgres_store(location.target, str(location), options) as postgres_store:
            yield postgres_store


@asynccontextmanager
async def _sqlite_store(path: str, options: dict[str, Any]) -> AsyncIterator[BaseStore]:
    from langgraph.store.sqlite.aio import AsyncSqliteStore

    from framework.stores.sqlite import connect, unusable

    # The store issues its own BEGIN and COMMIT.
    conn = await connect(path, isolation_level=None)
    try:
        async with AsyncSqliteStore(conn, **options) as store:
            try:
                await store.setup()
            except sqlite3.Error as exc:
                raise unusable(path, "used", exc) from exc
            yield store
    finally:
        await conn.close()


@asynccontextmanager
async def _postgres_store(url: str, name: str, options: dict[str, Any]) -> AsyncIterator[BaseStore]:
    import psycopg
    from langgraph.store.postgres.aio import AsyncPostgresStore

    from framework.stores.postgres import one_at_a_time, open_pool, unreachable

    async with open_pool(url, name) as pool, AsyncPostgresStore(pool, **options) as store:
        try:
            await one_at_a_time(url, store.setup)
        except psycopg.Error as exc:
            raise unreachable(name, exc) from exc
        yield store
