"""A capability as selection sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Candidate:
    """A capability as selection sees it: its texts, nothing it can run.

    Attributes:
        name: Unique name; its words count as evidence.
        description: What the capability does, in a sentence or two.
        instructions: When to choose it, from its classifier guide.
        positives: Requests that need it (classifier examples with ``result=True``).
        negatives: Requests that do not (classifier examples with ``result=False``).
        recognises: Says for sure whether a task needs it, if it is served at all; ``None``
            for no opinion.

    >>> Candidate("weather", "Gives the weather of a place.", positives=("Is it raining?",)).name
    'weather'
    """

    name: str
    description: str
    instructions: str = ""
    positives: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()
    recognises: Callable[[str], bool | None] | None = field(default=None, compare=False)
