"""Notifications between processes: LISTEN/NOTIFY if the database supports it, polling otherwise."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from weakref import WeakValueDictionary

from capgraph.base.errors import PersistenceError
from capgraph.stores.database import SqlTables

CHANNEL = "capgraph_events"
_RECONNECT_SECONDS = 1.0


class ChannelListener:
    """Listener for database notifications about changed runs, threads, and steps.

    Attributes:
        is_connected: True while notifications arrive. Otherwise, waiting tasks must poll.

    Args:
        tables: Tables of the database. Databases without notifications are supported.
    """

    def __init__(self, tables: SqlTables | None) -> None:
        self.is_connected: bool = False
        self._tables = tables if tables is not None and tables.can_notify else None
        # An event exists as long as a task waits for it.
        self._events: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self._listening: asyncio.Task[None] | None = None

    @property
    def can_notify(self) -> bool:
        """True if statements must notify the channel."""
        return self._tables is not None

    def event(self, name: str) -> asyncio.Event:
        """Return an event that the next database notification with this name sets."""
        if self._tables is not None and (self._listening is None or self._listening.done()):
            self._listening = asyncio.create_task(self._listen(self._tables))
        return self._events.setdefault(name, asyncio.Event())

    async def _listen(self, tables: SqlTables) -> None:
        while True:
            with suppress(PersistenceError):
                async for name in tables.listen(CHANNEL):
                    self.is_connected = True
                    if (event := self._events.pop(name, None)) is not None:
                        event.set()
            self.is_connected = False
            await asyncio.sleep(_RECONNECT_SECONDS)

    def close(self) -> None:
        """Set all events and stop listening."""
        for event in self._events.values():
            event.set()
        self._events.clear()
        if self._listening is not None:
            self._listening.cancel()
            self.is_connected = False
