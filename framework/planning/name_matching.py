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


def plain_name(name: str) -> str:
    """Return a name without case, separators, and the suffix ``Capability``.

    >>> plain_name("Weather-RetrievalCapability") == plain_name("weather_retrieval")
    True
    """
    plain = _SEPARATORS.sub("", name).casefold()
    return plain.removesuffix("capability") or plain


def closest_name(name: str, known_names: Collection[str]) -> str | None:
    """Return the only known name that a misspelled name can mean, or ``None``.

    >>> closest_name("data retreival", ["data_retrieval", "plotting"])
    'data_retrieval'
    >>> closest_name("sales_2014", ["sales_2015"])
    """
    if len(name) > _LONGEST:
        return None
    plain = plain_name(name)
    if not plain:
        return None
    exact = [other for other in known_names if plain_name(other) == plain]
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
    plains = [plain_name(other) for other in names]
    # One wrong letter lowers the similarity of a short name more than that of a long one.
    cutoff = min(_CUTOFF, 0.999 - 1 / len(plain))
    matches = difflib.get_close_matches(plain, plains, n=2, cutoff=cutoff)
    return names[plains.index(matches[0])] if len(matches) == 1 else None
