"""A capability as selection sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Candidate:
    """A capability as selection sees it: its texts, nothing it can run.

    Attributes:
        name: Unique name; its words count as evidence.
        description: What the capability does, in a sentence or two.
        instructions: When to choose it, from its classifier guide.
        positives: Requests that need it (classifier examples with ``result=True``).
        negatives: Requests that do not (classifier examples with ``result=False``).
        parameters: What its parameters say: for each the name, the description, the choices.
        matches_task: Says for sure whether a task needs it, if it is served at all; ``None``
            for no opinion.

    >>> Candidate("weather", "Gives the weather of a place.", positives=("Is it raining?",)).name
    'weather'
    """

    name: str
    description: str
    instructions: str = ""
    positives: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()
    matches_task: Callable[[str], bool | None] | None = field(default=None, compare=False)
    parameters: tuple[str, ...] = ()


def parameter_texts(schema: Mapping[str, Any]) -> Iterator[str]:
    """Give what a JSON schema says about each property, nested ones too.

    >>> unit = {"description": "Unit of the answer", "enum": ["K", "F"]}
    >>> list(parameter_texts({"properties": {"unit": unit}}))
    ['unit Unit of the answer K F']
    """
    for name, part in (schema.get("properties") or {}).items():
        choices = " ".join(map(str, part.get("enum") or ()))
        yield f"{name} {part.get('description', '')} {choices}".strip()
        yield from parameter_texts(part)
        yield from parameter_texts(part.get("items") or {})
    for definition in (schema.get("$defs") or {}).values():
        yield from parameter_texts(definition)
