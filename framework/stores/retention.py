"""What the settings say to keep of threads, applied as turns end."""

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

_EVERY_SECONDS = 3600.0
_AT_ONCE = 100


class Retention:
    """Drops what ``keep_turns``, ``keep_checkpoints`` and ``keep_days`` do not keep.

    The history of a thread is cut when a turn of it has ended. Cutting saves what the thread holds
    as a whole once more, so up to a tenth more than is asked for stays until it goes together.
    Threads that nobody uses go a hundred at a time, once an hour at most.

    Args:
        settings: What the settings say.
    """

    def __init__(self, settings: PersistenceSettings) -> None:
        self._kept = settings
        self._next = 0.0

    async def prune_after_turn(self, persistence: Persistence, thread_id: str) -> None:
        """Drop what is not to be kept; a failure is logged, for the turn is done.

        Args:
            persistence: Where the thread is stored.
            thread_id: The thread, whose lease the caller has.
        """
        kept = self._kept
        bounds = {"turns": kept.keep_turns, "checkpoints": kept.keep_checkpoints}
        try:
            for name, number in bounds.items():
                if number is not None:
                    history = History(persistence, thread_id)
                    if await history.oldest_checkpoint_id(**{name: number + number // 10 + 1}):
                        await history.prune(**{name: number})
            if kept.keep_days is not None and time.monotonic() >= self._next:
                self._next = time.monotonic() + _EVERY_SECONDS
                age = timedelta(days=kept.keep_days)
                await prune_threads(
                    persistence.saver, policy="older_than", older_than=age, limit=_AT_ONCE
                )
        except CapgraphError as exc:
            get_logger("framework", "retention").warning("Nothing was dropped: %s", exc)
