"""A dictionary that does not grow for ever."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V]):
    """So many entries at most; the one that was set longest ago goes first.

    >>> kept: BoundedDict[str, int] = BoundedDict(2)
    >>> for name in "abac":
    ...     kept[name] = len(kept)
    >>> kept
    {'a': 2, 'c': 2}
    """

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self.max_entries = max_entries

    def __setitem__(self, key: K, value: V) -> None:
        """Set an entry, as the last to go."""
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self.max_entries:
            del self[next(iter(self))]
