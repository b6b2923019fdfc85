"""Correction of misspelled capability and parameter names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

_SEPARATORS = re.compile(r"[\W_]+")
_NUMBERS = re.compile(r"\d+")
_LONGEST = 100  # comparing longer names takes too long
_SHORTEST = 4  # shorter names are too similar to each other
_SPREAD = 12
_CUTOFF = 0.85


def fold_name(name: str) -> str:
    """Normalize a name for comparison.

    Case, separators, and the suffix ``Capability`` are ignored.

    >>> fold_name("Weather-RetrievalCapability") == fold_name("weather_retrieval")
    True
    """
    plain = _SEPARATORS.sub("", name).casefold()
    return plain.removesuffix("capability") or plain


def closest_name(name: str, known_names: Collection[str]) -> str | None:
    """Return the known name closest to a misspelled name, or ``None`` if it is ambiguous.

    >>> closest_name("data retreival", ["data_retrieval", "plotting"])
    'data_retrieval'
    >>> closest_name("sales_2014", ["sales_2015"])
    """
    if len(name) > _LONGEST:
        return None
    plain = fold_name(name)
    if not plain:
        return None
    exact = [other for other in known_names if fold_name(other) == plain]
    if exact:
        return exact[0] if len(exact) == 1 else None
    if len(plain) < _SHORTEST:
        return None
    # Names with different numbers are different names, not misspellings.
    numbers = _NUMBERS.findall(name)
    names = [
        other
        for other in known_names
        if abs(len(other) - len(name)) <= _SPREAD and _NUMBERS.findall(other) == numbers
    ]
    plains = [fold_name(other) for other in names]
    # One wrong letter lowers the similarity of a short name more than that of a long one.
    cutoff = min(_CUTOFF, 0.999 - 1 / len(plain))
    matches = difflib.get_close_matches(plain, plains, n=2, cutoff=cutoff)
    return names[plains.index(matches[0])] if len(matches) == 1 else None
