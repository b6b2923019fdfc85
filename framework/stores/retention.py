"""Deletion of old history and threads, as the persistence settings require."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

from capgraph.base.errors import CapgraphError
from capgraph.configs.logger import get_logger
from capgraph.stores.history import History
from capgraph.stores.persistence import Persistence
from capgraph.stores.threads import prune_threads

if TYPE_CHECKING:
    from capgraph.configs.settings import PersistenceSettings

_INTERVAL_SECONDS = 3600.0
_MAX_THREADS = 100


class Retention:
    """Retention policy that limits the stored history of threads.

    A thread's history is pruned at the end of a turn, according to ``keep_turns`` and
    ``keep_checkpoints``. Because pruning stores a complete checkpoint, it waits until the
    history exceeds the limit by a tenth. Threads unused for ``keep_days`` are deleted at most
    once an hour, up to a hundred at a time.

    Args:
        settings: Persistence settings that contain the limits.
    """

    def __init__(self, settings: PersistenceSettings) -> None:
        self._settings = settings
        self._next = 0.0

    async def prune_after_turn(self, persistence: Persistence, thread_id: str) -> None:
        """Prune the history of a thread after a turn.

        Failures are logged instead of raised, because the turn is already complete.

        Args:
            persistence: Persistence that stores the thread.
            thread_id: ID of the thread. The caller must hold its lease.
        """
        settings = self._settings
        limits = {"turns": settings.keep_turns, "checkpoints": settings.keep_checkpoints}
        try:
            for name, number in limits.items():
                if number is not None:
                    history = History(persistence, thread_id)
                    if await history.oldest_checkpoint_id(**{name: number + number // 10 + 1}):
                        await history.prune(**{name: number})
            if settings.keep_days is not None and time.monotonic() >= self._next:
                self._next = time.monotonic() + _INTERVAL_SECONDS
                age = timedelta(days=settings.keep_days)
                await prune_threads(
                    persistence.saver, policy="older_than", older_than=age, limit=_MAX_THREADS
                )
        except CapgraphError as exc:
            get_logger("framework", "retention").warning("Old history was not deleted: %s", exc)
