"""Cache of the delta channels of long threads, so that a turn reads only recent writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

MAX_BYTES = 32 * 2**20
"""Maximum bytes cached per saver; the oldest entry is evicted first."""


class CachedHistory(NamedTuple):
    """Values of a thread's delta channels at one checkpoint.

    Attributes:
        checkpoint_id: ID of the checkpoint.
        counters: By channel: number of updates and of checkpoints since its last snapshot.
        values: By channel: the serialized value. It is copied on read, since callers may mutate it.
    """

    checkpoint_id: str
    counters: Mapping[str, Sequence[int]]
    values: Mapping[str, tuple[str, bytes]]

    @property
    def size(self) -> int:
        """Total size of the values in bytes."""
        return sum(len(data) for _, data in self.values.values())


EMPTY_HISTORY = CachedHistory("", {}, {})
"""Entry for a thread that is not cached."""


class HistoryCache(dict[str, CachedHistory]):
    """Size-bounded cache of histories by thread ID."""

    def __setitem__(self, thread: str, history: CachedHistory) -> None:
        """Cache a history as the newest entry and evict the oldest entries if necessary."""
        self.pop(thread, None)
        super().__setitem__(thread, history)
        size = sum(entry.size for entry in [*self.values()])
        for oldest in [*self]:
            if size > MAX_BYTES and (evicted := self.pop(oldest, None)):
                size -= evicted.size
