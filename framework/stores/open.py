"""Opens savers and stores by URL. What is configured and cannot be reached stops the start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, overload

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from capgraph.base.errors import require_extra
from capgraph.stores.location import parse_url
from capgraph.stores.reading import make_serializer


@overload
def open_saver(
    url: str, *, encryption_key: str | bytes | None = None
) -> AbstractAsyncContextManager[BaseCheckpointSaver[Any]]: ...
@overload
def open_saver(
    url: str | None, *, encryption_key: str | bytes | None = None
) -> AbstractAsyncContextManager[BaseCheckpointSaver[Any] | None]: ...
def open_saver(url: str | None, *, encryption_key: str | bytes | None = None) -> Any:
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
    require_extra(f"langgraph.checkpoint.{location.kind}.aio", location.kind)
    if location.kind == "sqlite":
        from capgraph.stores.sqlite import sqlite_saver as opened
    else:
        from capgraph.stores.postgres import postgres_saver as opened
    async with opened(location, serde) as saver:
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
    require_extra(f"langgraph.store.{location.kind}.aio", location.kind)
    if location.kind == "sqlite":
        from capgraph.stores.sqlite import sqlite_store as opened
    else:
        from capgraph.stores.postgres import postgres_store as opened
    async with opened(location, options) as store:
        yield store
