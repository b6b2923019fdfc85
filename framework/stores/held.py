"""What long threads held when they were last read, so that the next turn reads what came since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver

MOST_BYTES = 32 * 2**20
"""So much is held beside a saver; what was held first goes first."""
_NAME = "_capgraph_held"


class Held(NamedTuple):
    """The keys of a thread that grow, at one of its checkpoints.

    Attributes:
        checkpoint: The checkpoint.
        counters: By key: updates and checkpoints since it was saved as a whole.
        values: By key: the value as the saver writes it, for whoever reads a value may change it.
    """

    checkpoint: str
    counters: Mapping[str, Sequence[int]]
    values: Mapping[str, tuple[str, bytes]]

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return sum(len(data) for _, data in self.values.values())


NOTHING = Held("", {}, {})
"""Of a thread that is not held."""


class HeldThreads(dict[str, Held]):
    """By thread, what is held of it; so many bytes at most."""

    def __setitem__(self, thread: str, held: Held) -> None:
        """Hold something of a thread, as the last to go."""
        self.pop(thread, None)
        super().__setitem__(thread, held)
        size = sum(one.size for one in [*self.values()])
        for first in [*self]:
            if size > MOST_BYTES and (gone := self.pop(first, None)):
                size -= gone.size


def held_of(saver: BaseCheckpointSaver[Any]) -> HeldThreads:
    """Return what is held beside a saver; LangGraph's copies of the saver have the same."""
    found: HeldThreads = vars(saver).setdefault(_NAME, HeldThreads())
    return found
