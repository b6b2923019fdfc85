"""Protocol of selection strategies and their result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from capgraph.registry import Candidate

NO_EXCLUSIONS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Selection:
    """Capabilities that a task needs. Without names, no capability fits.

    Attributes:
        names: The selected capabilities, best first.
        scores: Score of every compared candidate, from 0 to 1. A capability fits from 0.5.
        best: The highest score of the capabilities that were not excluded.
        reason: One sentence for people that explains the result.
        answer: The reply, if the selector already wrote one because no capability fits.
        deferred: True if the names are only candidates and the planner selects among them.

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
    """Strategy that selects capabilities, such as by words, embeddings, rules, or a model."""

    async def select(
        self,
        task: str,
        candidates: Sequence[Candidate],
        *,
        excluded: Mapping[str, str] = NO_EXCLUSIONS,
    ) -> Selection:
        """Return the capabilities that the task needs.

        Args:
            task: The person's request, in their words.
            candidates: The capabilities to select from.
            excluded: Capabilities that failed for this task, with the reason. They are never selected.
        """
        ...
