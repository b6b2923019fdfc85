"""Stop requests for a thread, a user, or all runs, stored beside the checkpoints.

Every process checks them at safe points. A request stays in force until it is cleared, so a stopped
thread accepts neither messages nor answers.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, Literal, NamedTuple, cast

from capgraph.base.errors import PersistenceError, StoppedError
from capgraph.configs.logger import get_logger
from capgraph.helpers.clock import SystemClock
from capgraph.stores.atomic_values import FOREVER, AtomicValueStore

StopKind = Literal["thread", "user", "all"]

_PREFIX = "stop/"


class Stop(NamedTuple):
    """Request to stop runs.

    Attributes:
        kind: ``thread``, ``user``, or ``all``.
        name: ID of the thread or user; empty for ``all``.
        reason: Reason given by the operator.
        since: Time of the request, in seconds since the epoch.
    """

    kind: StopKind
    name: str = ""
    reason: str = ""
    since: float = 0.0

    def to_error(self) -> StoppedError:
        """Return the error that ends a stopped turn."""
        what, option = {
            "thread": (f"The thread {self.name!r} was stopped", self.name),
            "user": (f"The runs of user {self.name!r} were stopped", f"--user {self.name}"),
            "all": ("All runs were stopped", "--all"),
        }[self.kind]
        return StoppedError(
            f"{what}: {self.reason}." if self.reason else f"{what}.",
            fix=f"To continue, run 'capgraph stop --clear {option}', then send a new message.",
        )


class StopRequests:
    """Stop requests for a saver's threads.

    Attributes:
        max_age_seconds: Maximum age of the cached requests, except before an effect.

    Args:
        values: Store of the requests.
    """

    max_age_seconds: float = 0.5
    _changes = 0  # count of changes by all instances in this process

    def __init__(self, values: AtomicValueStore) -> None:
        self._values = values
        self._known: dict[tuple[str, str], Stop] = {}
        self._looked = float("-inf")
        self._seen = 0

    async def put(self, stop: Stop) -> None:
        """Store a stop request. It applies to all processes."""

        def put(found: Any, _: float) -> tuple[Any, float, None]:
            return [stop.reason, found[1] if found else time.time()], FOREVER, None

        await self._values.achange(_cell(stop.kind, stop.name), put, SystemClock())
        StopRequests._changes += 1
        await self._look()

    async def clear(self, kind: StopKind, name: str = "") -> bool:
        """Delete a stop request. Return whether it existed."""

        def take(found: Any, _: float) -> tuple[None, float, bool]:
            return None, 0, found is not None

        was: bool = await self._values.achange(_cell(kind, name), take, SystemClock())
        StopRequests._changes += 1
        await self._look()
        return was

    async def all(self) -> list[Stop]:
        """Return all stop requests, oldest first."""
        await self._look()
        return list(self._known.values())

    async def raise_if_stopped(
        self, thread_id: str, users: Collection[str], *, force_read: bool
    ) -> None:
        """Raise if a stop request applies to a run.

        Args:
            thread_id: Thread of the run.
            users: Users of the run.
            force_read: True to read the database, as is required before an effect.

        Raises:
            StoppedError: A stop request applies.
            PersistenceError: The database cannot be read.
        """
        old = time.monotonic() - self._looked > self.max_age_seconds
        if force_read or old or self._seen != StopRequests._changes:
            try:
                await self._look()
            except PersistenceError as exc:
                if force_read:
                    raise
                get_logger("framework", "stop").warning("Stop requests cannot be read: %s", exc)
        if not self._known:
            return
        for key in [("all", ""), *(("user", user) for user in users), ("thread", thread_id)]:
            if (stop := self._known.get(key)) is not None:
                raise stop.to_error()

    async def _look(self) -> None:
        # Set before the read, so that concurrent callers do not read as well.
        self._looked, self._seen = time.monotonic(), StopRequests._changes
        cells, _now = await self._values.aread(_PREFIX, SystemClock())
        self._known = {}
        for cell, (reason, since) in sorted(cells.items(), key=lambda item: item[1][1]):
            kind, _, name = cell.removeprefix(_PREFIX).partition("/")
            self._known[kind, name] = Stop(cast("StopKind", kind), name, reason, since)


def _cell(kind: StopKind, name: str) -> str:
    return f"{_PREFIX}{kind}/{name}"
