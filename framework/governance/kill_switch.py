"""Kill switch that stops runs in all processes that share a database."""

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
"""A checkpointer, or the URL of its database."""


async def stop(
    saver: SaverOrUrl,
    *,
    thread: str | None = None,
    user: str | None = None,
    all: bool = False,  # noqa: A002 - same name as the CLI option
    reason: str = "",
) -> Stop:
    """Stop runs at their next safe point and prevent further effects in all processes.

    The stop request remains in force until :func:`clear_stop` is called, so new messages and
    answers are also refused. If the database type of the saver is unknown, the request is
    stored as a record in the saver.

    Args:
        saver: Checkpointer of the graph, or the URL of its database.
        thread: ID of the thread to stop.
        user: ID of the user whose runs to stop.
        all: True to stop all runs.
        reason: Reason to include in the outcome of the stopped turns.

    Raises:
        ConfigurationError: Not exactly one of ``thread``, ``user``, and ``all`` is set.
        PersistenceError: The database cannot be reached.

    >>> import asyncio
    >>> from langgraph.checkpoint.memory import InMemorySaver
    >>> asyncio.run(stop(InMemorySaver(), thread="trip", reason="wrong price")).name
    'trip'
    """
    kind, name = _parse_target(thread, user, all)
    request = Stop(kind, name, reason)
    async with _open_stops(saver) as stops:
        await stops.add(request)
    return request


async def clear_stop(
    saver: SaverOrUrl,
    *,
    thread: str | None = None,
    user: str | None = None,
    all: bool = False,  # noqa: A002
) -> bool:
    """Clear a stop request. Return True if the request existed.

    Turns that were stopped do not resume. A new message starts a new turn.
    """
    kind, name = _parse_target(thread, user, all)
    async with _open_stops(saver) as stops:
        return await stops.clear(kind, name)


async def list_stops(saver: SaverOrUrl) -> list[Stop]:
    """Return all stop requests, oldest first."""
    async with _open_stops(saver) as stops:
        return await stops.all()


@asynccontextmanager
async def _open_stops(where: SaverOrUrl) -> AsyncIterator[StopRequests]:
    if not isinstance(where, str):
        yield Persistence.of(where).stops
        return
    async with open_saver(where) as saver:
        assert saver is not None
        yield Persistence.of(saver).stops


def _parse_target(thread: str | None, user: str | None, all_runs: bool) -> tuple[StopKind, str]:
    targets: list[tuple[StopKind, str]] = []
    if thread:
        targets.append(("thread", thread))
    if user:
        targets.append(("user", user))
    if all_runs:
        targets.append(("all", ""))
    if len(targets) != 1:
        raise ConfigurationError(
            f"Exactly one of thread, user, and all must be set, but {len(targets)} are.",
            fix="Pass one thread, one user, or all=True.",
        )
    return targets[0]
