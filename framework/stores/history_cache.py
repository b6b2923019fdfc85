"""Cache of the growing keys of long threads, so that the next turn reads only what came since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

MAX_BYTES = 32 * 2**20
"""Maximum bytes cached per saver; the oldest entry is evicted first."""


class CachedHistory(NamedTuple):
    """The keys of a thread that grow, at one of its checkpoints.

    Attributes:
        checkpoint_id: The checkpoint.
        counters: By key: updates and checkpoints since it was saved as a whole.
        values: By key: the value as the saver writes it, for whoever reads a value may change it.
    """

    checkpoint_id: str
    counters: Mapping[str, Sequence[int]]
    values: Mapping[str, tuple[str, bytes]]

    @property
    def size(self) -> int:
        """Size of the values in bytes."""
        return sum(len(data) for _, data in self.values.values())


EMPTY_HISTORY = CachedHistory("", {}, {})
"""Entry of a thread that is not cached."""


class HistoryCache(dict[str, CachedHistory]):
    """Cached histories by thread, of limited size."""

    def __setitem__(self, thread: str, held: CachedHistory) -> None:
        """Cache a history; it is the last to be evicted."""
        self.pop(thread, None)
        super().__setitem__(thread, held)
        size = sum(one.size for one in [*self.values()])
        for first in [*self]:
            if size > MAX_BYTES and (gone := self.pop(first, None)):
                size -= gone.size
