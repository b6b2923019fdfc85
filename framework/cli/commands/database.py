"""Runs something over the database that the options name, without building an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore

T = TypeVar("T")


def with_saver(
    config: Path | None, db: str | None, work: Callable[[BaseCheckpointSaver[Any]], Awaitable[T]]
) -> T:
    """Open the database, hand its saver to ``work`` and return what that gives."""
    return _run(config, db, lambda saver, _: work(saver))


def with_store(config: Path | None, db: str | None, work: Callable[[BaseStore], Awaitable[T]]) -> T:
    """Open the database, hand its store to ``work`` and return what that gives."""
    return _run(config, db, lambda _, store: work(store))


def _run(config: Path | None, db: str | None, work: Callable[[Any, Any], Awaitable[T]]) -> T:
    from framework.cli.agent import database_url, open_database, read_settings

    settings = read_settings(config)
    url = database_url(db, settings)

    async def run() -> T:
        async with open_database(url, settings) as (saver, store):
            return await work(saver, store)

    return asyncio.run(run())
