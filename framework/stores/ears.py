"""Whoever waits for what another process writes: heard at once on PostgreSQL, seen by looking elsewhere."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from weakref import WeakValueDictionary

from capgraph.base.errors import PersistenceError
from capgraph.base.ports import SqlExecutor
from capgraph.stores.rows import PostgresRows

CHANNEL = "capgraph_events"
_AGAIN_SECONDS = 1.0


class Ears:
    """What is told on a database's channel: names of runs, threads and steps of which something is new.

    Attributes:
        hears: Whether names come in; where they do not, whoever waits has to look.

    Args:
        rows: Rows of the database; only PostgreSQL tells.
    """

    def __init__(self, rows: SqlExecutor | None) -> None:
        self.hears: bool = False
        self._rows = rows if isinstance(rows, PostgresRows) else None
        # Known for as long as somebody listens.
        self._ears: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self._heard: asyncio.Task[None] | None = None

    @property
    def tells(self) -> bool:
        """Whether statements are to tell names."""
        return self._rows is not None

    def of(self, name: str) -> asyncio.Event:
        """Return what is set when something of this name is told."""
        if self._rows is not None and (self._heard is None or self._heard.done()):
            self._heard = asyncio.create_task(self._hear(self._rows))
        return self._ears.setdefault(name, asyncio.Event())

    async def _hear(self, rows: PostgresRows) -> None:
        while True:
            with suppress(PersistenceError):
                async for name in rows.listen(CHANNEL):
                    self.hears = True
                    if (ear := self._ears.pop(name, None)) is not None:
                        ear.set()
            self.hears = False
            await asyncio.sleep(_AGAIN_SECONDS)

    def close(self) -> None:
        """Let whoever listens look once more, and hear nothing else."""
        for ear in self._ears.values():
            ear.set()
        self._ears.clear()
        if self._heard is not None:
            self._heard.cancel()
            self.hears = False
