"""The name that somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest_match(name: str, candidates: Iterable[str]) -> str | None:
    """Return the known name that is most like one, if any is.

    >>> closest_match("retrry", ["retry", "cache"])
    'retry'
    """
    found = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.75)
    return found[0] if found else None


def edit_distance(first: str, second: str) -> int:
    """Return how many letters must be inserted, deleted or replaced to make one word the other.

    >>> edit_distance("requires_aproval", "requires_approval"), edit_distance("gate", "undo")
    (1, 4)
    """
    row = list(range(len(second) + 1))
    for n, letter in enumerate(first, start=1):
        before, row[0] = row[0], n
        for m, wanted in enumerate(second, start=1):
            before, row[m] = row[m], min(row[m] + 1, row[m - 1] + 1, before + (letter != wanted))
    return row[-1]


def correct_spelling(name: str, candidates: Iterable[str], max_edits: int = 2) -> str | None:
    """Return the known name that few edits make of another name, if one does.

    >>> correct_spelling("efect", ["effect", "effect_key"]), correct_spelling("colour", ["effect"])
    ('effect', None)
    """
    # Words whose lengths differ by more are never that near.
    others = (other for other in candidates if abs(len(other) - len(name)) <= max_edits)
    found = min(((edit_distance(name, other), other) for other in others), default=None)
    return found[1] if found is not None and found[0] <= max_edits else None


def suggest_name(name: str, candidates: Iterable[str]) -> str | None:
    """Return the known name that a name misspells, else the one that is most like it, if any is.

    >>> suggest_name("budjet", ["budget", "model"]), suggest_name("retrry", ["retry"]), suggest_name("x", ["retry"])
    ('budget', 'retry', None)
    """
    names = list(candidates)
    return correct_spelling(name, names) or closest_match(name, names)


def suggest_fix(*names: str, candidates: Iterable[str]) -> str:
    """Return the fix for unknown names: the nearest known ones, or all that are known.

    >>> suggest_fix("tank_levle", candidates=["tank_level", "judge"])
    "Use 'tank_level'."
    >>> suggest_fix("pump", candidates=["tank_level", "judge"])
    'Use one of: judge, tank_level.'
    """
    there = sorted(candidates)
    near = dict.fromkeys(
        found for name in names if (found := closest_match(name, there)) is not None
    )
    if near:
        return f"Use {' and '.join(map(repr, near))}."
    return f"Use one of: {', '.join(there) or 'none is registered'}."
