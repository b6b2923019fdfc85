"""What selection receives, what it answers, and the protocol of every strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from capgraph.registry import Candidate

NO_EXCLUSIONS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Selection:
    """Which capabilities a task needs; no names means that none fits.

    Attributes:
        names: The chosen capabilities, best first.
        scores: A score for every candidate that was compared, from 0 to 1;
            0.5 is where a capability starts to count as fitting.
        best: The highest score among the capabilities that were not excluded.
        reason: One sentence for people: why these, or why none.
        answer: The reply, where whoever found that none fits has written it already.
        deferred: Whether the names are only what may be chosen, and the planner chooses.

    >>> bool(Selection((), {}, 0.0, "There are no capabilities."))
    False
    """

    names: tuple[str, ...]
    scores: Mapping[str, float] = field(default_factory=dict)
    best: float = 0.0
    reason: str = ""
    answer: str = ""
    deferred: bool = False

    def __bool__(self) -> bool:
        return bool(self.names)


@runtime_checkable
class Selector(Protocol):
    """A way to choose capabilities: lexical, by sentence vectors, by rules, by a model."""

    async def select(
        self,
        task: str,
        candidates: Sequence[Candidate],
        *,
        excluded: Mapping[str, str] = NO_EXCLUSIONS,
    ) -> Selection:
        """Choose the capabilities that the task needs.

        Args:
            task: What the person wants, in their words.
            candidates: The capabilities to choose from.
            excluded: Capabilities that failed this task, with the reason; never chosen.
        """
        ...
