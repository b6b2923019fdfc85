"""Stop requests for a thread, a user, or all runs, stored next to the checkpoints.

Every process checks them at safe points. A request stays in force until it is cleared, so a stopped
thread accepts neither messages nor answers.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, Literal, NamedTuple, cast

from capgraph.base.errors import PersistenceError, StoppedError
from capgraph.base.ports import normalize_user_id
from capgraph.configs.logger import get_logger
from capgraph.helpers.clock import SystemClock
from capgraph.stores.atomic_values import FOREVER, AtomicValueStore

StopKind = Literal["thread", "user", "all"]

_PREFIX = "stop/"


class Stop(NamedTuple):
    """Request to stop the runs of a thread, of a user, or of all users.

    Attributes:
        kind: ``thread``, ``user``, or ``all``.
        name: ID of the thread or user. Empty for ``all``.
        reason: Reason given by the operator.
        since: Time of the request, in seconds since the epoch.
    """

    kind: StopKind
    name: str = ""
    reason: str = ""
    since: float = 0.0

    def to_error(self) -> StoppedError:
        """Create the error that ends a stopped turn."""
        subject, option = {
            "thread": (f"The thread {self.name!r} was stopped", self.name),
            "user": (f"The runs of user {self.name!r} were stopped", f"--user {self.name}"),
            "all": ("All runs were stopped", "--all"),
        }[self.kind]
        return StoppedError(
            f"{subject}: {self.reason}." if self.reason else f"{subject}.",
            fix=f"To continue, run 'capgraph stop --clear {option}', then send a new message.",
        )


class StopRequests:
    """Registry of stop requests for a saver's threads.

    Attributes:
        max_age_seconds: Maximum age of cached requests in seconds. Before a side effect, the
            requests are always read from the database.

    Args:
        values: Value store for the requests.
    """

    max_age_seconds: float = 0.5
    _changes = 0  # count of changes by all instances in this process

    def __init__(self, values: AtomicValueStore) -> None:
        self._values = values
        self._known: dict[tuple[str, str], Stop] = {}
        self._refreshed_at = float("-inf")
        self._seen_changes = 0

    async def add(self, stop: Stop) -> None:
        """Store a stop request, which applies to all processes."""

        def change(stored: Any, _: float) -> tuple[Any, float, None]:
            return [stop.reason, stored[1] if stored else time.time()], FOREVER, None

        await self._values.achange(_value_name(stop.kind, stop.name), change, SystemClock())
        StopRequests._changes += 1
        await self._refresh()

    async def clear(self, kind: StopKind, name: str = "") -> bool:
        """Delete a stop request. Returns True if the request existed."""

        def take(stored: Any, _: float) -> tuple[None, float, bool]:
            return None, 0, stored is not None

        existed: bool = await self._values.achange(_value_name(kind, name), take, SystemClock())
        StopRequests._changes += 1
        await self._refresh()
        return existed

    async def copy_thread(self, source: str, target: str) -> None:
        """Copy a thread's stop request to a copy of the thread."""
        await self._refresh()
        if (stop := self._known.get(("thread", source))) is not None:
            await self.add(stop._replace(name=target))

    async def all(self) -> list[Stop]:
        """Return all stop requests, oldest first."""
        await self._refresh()
        return list(self._known.values())

    async def raise_if_stopped(
        self, thread_id: str, users: Collection[str], *, force_read: bool
    ) -> None:
        """Raise an error if a stop request applies to a run.

        Args:
            thread_id: Thread of the run.
            users: IDs of the users of the run.
            force_read: True to always read the database, as required before a side effect.

        Raises:
            StoppedError: A stop request applies.
            PersistenceError: The database cannot be read.
        """
        is_stale = time.monotonic() - self._refreshed_at > self.max_age_seconds
        if force_read or is_stale or self._seen_changes != StopRequests._changes:
            try:
                await self._refresh()
            except PersistenceError as exc:
                if force_read:
                    raise
                get_logger("framework", "stop").warning("Stop requests cannot be read: %s", exc)
        if not self._known:
            return
        people = (("user", normalize_user_id(user)) for user in users)
        for key in [("all", ""), *people, ("thread", thread_id)]:
            if (stop := self._known.get(key)) is not None:
                raise stop.to_error()

    async def _refresh(self) -> None:
        # Set before the read, so that concurrent callers do not read as well.
        self._refreshed_at, self._seen_changes = time.monotonic(), StopRequests._changes
        cells, _now = await self._values.aread(_PREFIX, SystemClock())
        self._known = {}
        for cell, (reason, since) in sorted(cells.items(), key=lambda item: item[1][1]):
            kind, _, name = cell.removeprefix(_PREFIX).partition("/")
            named = normalize_user_id(name) if kind == "user" else name
            self._known[kind, named] = Stop(cast("StopKind", kind), name, reason, since)


def _value_name(kind: StopKind, name: str) -> str:
    name = normalize_user_id(name) if kind == "user" else name
    return f"{_PREFIX}{kind}/{name}"
