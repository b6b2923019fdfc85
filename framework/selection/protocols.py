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
    """Result of a selector: the capabilities that a task needs. It is false if no capability fits.

    Attributes:
        names: Names of the selected capabilities, best first.
        scores: Score of every compared candidate, from 0 to 1. A capability with at least 0.5 fits.
        best: Highest score of the capabilities that were not excluded.
        reason: Explanation of the result, in one sentence for users.
        answer: Answer to the user, if no capability fits and the selector wrote an answer.
        deferred: True if the names are only candidates from which the planner selects.

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
    """Strategy that selects capabilities for a task, for example by embeddings or rules."""

    async def select(
        self,
        task: str,
        candidates: Sequence[Candidate],
        *,
        excluded: Mapping[str, str] = NO_EXCLUSIONS,
    ) -> Selection:
        """Select the capabilities that a task needs from a list of candidates.

        Args:
            task: Original text of the user's request.
            candidates: Capabilities to select from.
            excluded: Capabilities that failed for this task and must not be selected, mapped to the
                reason for each failure.
        """
        ...
