"""The kill switch: which threads, whose runs or all runs are to stop, beside the checkpoints.

Every process looks here at its safe points. What is kept holds until somebody takes it back, so a
thread that was stopped begins nothing, whoever sends it a message or an answer.
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
    """What is to stop.

    Attributes:
        kind: ``thread``, ``user`` or ``all``.
        name: The thread or the user; empty for ``all``.
        reason: Why, in the words of whoever stopped it.
        since: When, in seconds since the epoch.
    """

    kind: StopKind
    name: str = ""
    reason: str = ""
    since: float = 0.0

    def to_error(self) -> StoppedError:
        """Return what ends a turn, with how to go on."""
        what, option = {
            "thread": (f"The thread {self.name!r} was stopped", self.name),
            "user": (f"The runs of user {self.name!r} were stopped", f"--user {self.name}"),
            "all": ("All runs were stopped", "--all"),
        }[self.kind]
        return StoppedError(
            f"{what}: {self.reason}." if self.reason else f"{what}.",
            fix=f"To go on: 'capgraph stop --clear {option}', then send a new message.",
        )


class StopRequests:
    """What is to stop of a saver's threads.

    Attributes:
        max_age_seconds: How old what is known may be where no effect is about to begin.

    Args:
        values: Where they are stored.
    """

    max_age_seconds: float = 0.5
    _changes = 0  # in this process, by whichever object

    def __init__(self, values: AtomicValueStore) -> None:
        self._values = values
        self._known: dict[tuple[str, str], Stop] = {}
        self._looked = float("-inf")
        self._seen = 0

    async def put(self, stop: Stop) -> None:
        """Stop something, in all processes."""

        def put(found: Any, _: float) -> tuple[Any, float, None]:
            return [stop.reason, found[1] if found else time.time()], FOREVER, None

        await self._values.achange(_cell(stop.kind, stop.name), put, SystemClock())
        StopRequests._changes += 1
        await self._look()

    async def clear(self, kind: StopKind, name: str = "") -> bool:
        """Take a stop back; tells whether there was one."""

        def take(found: Any, _: float) -> tuple[None, float, bool]:
            return None, 0, found is not None

        was: bool = await self._values.achange(_cell(kind, name), take, SystemClock())
        StopRequests._changes += 1
        await self._look()
        return was

    async def all(self) -> list[Stop]:
        """Return what is stopped, the oldest first."""
        await self._look()
        return list(self._known.values())

    async def raise_if_stopped(
        self, thread_id: str, users: Collection[str], *, force_read: bool
    ) -> None:
        """Make sure that a run may go on.

        Args:
            thread_id: Its thread.
            users: Whose run it is.
            force_read: Whether an effect is about to begin, so that the database is asked.

        Raises:
            StoppedError: It was stopped.
            PersistenceError: The database cannot be asked.
        """
        old = time.monotonic() - self._looked > self.max_age_seconds
        if force_read or old or self._seen != StopRequests._changes:
            try:
                await self._look()
            except PersistenceError as exc:
                if force_read:
                    raise
                get_logger("framework", "stop").warning("Nobody can say what is stopped: %s", exc)
        if not self._known:
            return
        for key in [("all", ""), *(("user", user) for user in users), ("thread", thread_id)]:
            if (stop := self._known.get(key)) is not None:
                raise stop.to_error()

    async def _look(self) -> None:
        self._looked, self._seen = (
            time.monotonic(),
            StopRequests._changes,
        )  # whoever comes meanwhile has not to ask as well
        cells, _now = await self._values.aread(_PREFIX, SystemClock())
        self._known = {}
        for cell, (reason, since) in sorted(cells.items(), key=lambda item: item[1][1]):
            kind, _, name = cell.removeprefix(_PREFIX).partition("/")
            self._known[kind, name] = Stop(cast("StopKind", kind), name, reason, since)


def _cell(kind: StopKind, name: str) -> str:
    return f"{_PREFIX}{kind}/{name}"
