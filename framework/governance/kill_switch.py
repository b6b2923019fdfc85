"""The kill switch: stops runs in all processes that share a database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from capgraph.base.errors import ConfigurationError
from capgraph.stores.database import open_saver
from capgraph.stores.persistence import Persistence
from capgraph.stores.stops import Stop, StopKind, StopRequests

SaverOrUrl = BaseCheckpointSaver[Any] | str
"""A saver, or the URL of its database."""


async def stop(
    saver: SaverOrUrl,
    *,
    thread: str | None = None,
    user: str | None = None,
    all: bool = False,  # noqa: A002 - as the command has it
    reason: str = "",
) -> Stop:
    """Stop runs at their next safe point; no effect begins afterwards, in no process.

    It holds until :func:`clear_stop`: new messages and answers begin nothing either. A saver
    whose database is unknown stores the request as a record.

    Args:
        saver: The saver of the graph, or the URL of its database.
        thread: The thread to stop.
        user: Whose runs to stop.
        all: Stop every run.
        reason: Why; the turns end with it.

    Raises:
        ConfigurationError: Not exactly one of ``thread``, ``user`` and ``all`` is given.
        PersistenceError: The database cannot be reached.

    >>> import asyncio
    >>> from langgraph.checkpoint.memory import InMemorySaver
    >>> asyncio.run(stop(InMemorySaver(), thread="trip", reason="wrong price")).name
    'trip'
    """
    kind, name = _one(thread, user, all)
    made = Stop(kind, name, reason)
    async with _stops(saver) as stops:
        await stops.put(made)
    return made


async def clear_stop(
    saver: SaverOrUrl,
    *,
    thread: str | None = None,
    user: str | None = None,
    all: bool = False,  # noqa: A002
) -> bool:
    """Let go on what :func:`stop` stopped; tells whether anything was stopped.

    The turns that were stopped have ended; a new message begins a new one.
    """
    kind, name = _one(thread, user, all)
    async with _stops(saver) as stops:
        return await stops.clear(kind, name)


async def list_stops(saver: SaverOrUrl) -> list[Stop]:
    """Return what is stopped, the oldest first."""
    async with _stops(saver) as stops:
        return await stops.all()


@asynccontextmanager
async def _stops(where: SaverOrUrl) -> AsyncIterator[StopRequests]:
    if not isinstance(where, str):
        yield Persistence.of(where).stops
        return
    async with open_saver(where) as saver:
        assert saver is not None
        yield Persistence.of(saver).stops


def _one(thread: str | None, user: str | None, every: bool) -> tuple[StopKind, str]:
    given: list[tuple[StopKind, str]] = []
    if thread:
        given.append(("thread", thread))
    if user:
        given.append(("user", user))
    if every:
        given.append(("all", ""))
    if len(given) != 1:
        raise ConfigurationError(
            f"What to stop is named {len(given)} times.",
            fix="Name one thread, one user, or all.",
        )
    return given[0]
