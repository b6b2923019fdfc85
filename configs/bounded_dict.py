"""A dictionary with a maximum number of entries."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V]):
    """Dictionary that evicts its oldest entry when it exceeds ``max_entries``.

    Setting an existing key again makes that key the newest entry.

    >>> recent: BoundedDict[str, int] = BoundedDict(2)
    >>> for name in "abac":
    ...     recent[name] = len(recent)
    >>> recent
    {'a': 2, 'c': 2}
    """

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self.max_entries = max_entries

    def __setitem__(self, key: K, value: V) -> None:
        """Set an entry as the newest one, and evict the oldest entry if the dictionary is full."""
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self.max_entries:
            del self[next(iter(self))]
