"""Candidates: the texts of capabilities that selection compares with a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Candidate:
    """Texts of a capability that selection compares with a task.

    Attributes:
        name: Unique name of the capability. Its words are compared, too.
        description: What the capability does, in one or two sentences.
        instructions: When to select the capability, from its classifier guide.
        positives: Requests that need the capability (classifier examples with ``result=True``).
        negatives: Requests that do not need the capability (``result=False``).
        parameters: Name, description, and choices of each parameter, one text per parameter.
        matches_task: Function that returns whether a task needs the capability, or ``None`` to leave the
            decision to the selector.

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
    """Yield the name, description, and choices of each property in a JSON schema.

    Properties of nested schemas and definitions are included.

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
