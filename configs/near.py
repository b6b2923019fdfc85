"""The name that somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like one, if any is.

    >>> nearest("retrry", ["retry", "cache"])
    'retry'
    """
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return found[0] if found else None


def edit_distance(one: str, other: str) -> int:
    """Return how many letters must be inserted, deleted or replaced to make one word the other.

    >>> edit_distance("requires_aproval", "requires_approval"), edit_distance("gate", "undo")
    (1, 4)
    """
    row = list(range(len(other) + 1))
    for n, letter in enumerate(one, start=1):
        before, row[0] = row[0], n
        for m, wanted in enumerate(other, start=1):
            before, row[m] = row[m], min(row[m] + 1, row[m - 1] + 1, before + (letter != wanted))
    return row[-1]


def misspelled(name: str, known: Iterable[str], at_most: int = 2) -> str | None:
    """Return the known name that few edits make of another name, if one does.

    >>> misspelled("efect", ["effect", "effect_key"]), misspelled("colour", ["effect"])
    ('effect', None)
    """
    # Words whose lengths differ by more are never that near.
    others = (other for other in known if abs(len(other) - len(name)) <= at_most)
    found = min(((edit_distance(name, other), other) for other in others), default=None)
    return found[1] if found is not None and found[0] <= at_most else None


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a name misspells, else the one that is most like it, if any is.

    >>> closest("budjet", ["budget", "model"]), closest("retrry", ["retry"]), closest("x", ["retry"])
    ('budget', 'retry', None)
    """
    names = list(known)
    return misspelled(name, names) or nearest(name, names)


def use_known(*names: str, known: Iterable[str]) -> str:
    """Return the fix for unknown names: the nearest known ones, or all that are known.

    >>> use_known("tank_levle", known=["tank_level", "judge"])
    "Use 'tank_level'."
    >>> use_known("pump", known=["tank_level", "judge"])
    'Use one of: judge, tank_level.'
    """
    there = sorted(known)
    near = dict.fromkeys(found for name in names if (found := nearest(name, there)) is not None)
    if near:
        return f"Use {' and '.join(map(repr, near))}."
    return f"Use one of: {', '.join(there) or 'none is registered'}."
