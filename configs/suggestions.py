"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest_match(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that is most similar to a misspelled name, or None.

    >>> closest_match("retrry", ["retry", "cache"])
    'retry'
    """
    found = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.75)
    return found[0] if found else None


def edit_distance(first: str, second: str) -> int:
    """Return the edit distance (Levenshtein distance) between two words.

    >>> edit_distance("requires_aproval", "requires_approval"), edit_distance("gate", "undo")
    (1, 4)
    """
    row = list(range(len(second) + 1))
    for n, letter in enumerate(first, start=1):
        diagonal, row[0] = row[0], n
        for m, other in enumerate(second, start=1):
            cost = diagonal + (letter != other)
            diagonal, row[m] = row[m], min(row[m] + 1, row[m - 1] + 1, cost)
    return row[-1]


def correct_spelling(name: str, candidates: Iterable[str], max_edits: int = 2) -> str | None:
    """Return the candidate within ``max_edits`` edits of a misspelled name, or None.

    >>> correct_spelling("efect", ["effect", "effect_key"]), correct_spelling("colour", ["effect"])
    ('effect', None)
    """
    # Words whose lengths differ by more cannot be within the limit.
    others = (other for other in candidates if abs(len(other) - len(name)) <= max_edits)
    found = min(((edit_distance(name, other), other) for other in others), default=None)
    return found[1] if found is not None and found[0] <= max_edits else None


def suggest_name(name: str, candidates: Iterable[str]) -> str | None:
    """Suggest a known name for a misspelled one, first by edit distance and then by similarity.

    >>> suggest_name("budjet", ["budget", "model"]), suggest_name("retrry", ["retry"]), suggest_name("x", ["retry"])
    ('budget', 'retry', None)
    """
    names = list(candidates)
    return correct_spelling(name, names) or closest_match(name, names)


def suggest_fix(*names: str, candidates: Iterable[str]) -> str:
    """Suggest replacements for unknown names, in a sentence for an error message.

    The sentence names the closest matches, or all valid names if no name is similar.

    >>> suggest_fix("tank_levle", candidates=["tank_level", "judge"])
    "Use 'tank_level'."
    >>> suggest_fix("pump", candidates=["tank_level", "judge"])
    'Use one of: judge, tank_level.'
    """
    options = sorted(candidates)
    near = dict.fromkeys(
        found for name in names if (found := closest_match(name, options)) is not None
    )
    if near:
        return f"Use {' and '.join(map(repr, near))}."
    return f"Use one of: {', '.join(options) or 'none is registered'}."
