"""Names that a planner got almost right."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

_SEPARATORS = re.compile(r"[\W_]+")
_NUMBERS = re.compile(r"\d+")
_LONGEST = 100  # nobody names a capability like this; comparing it would take long
_SHORTEST = 4  # below, another name is one letter away too often
_SPREAD = 12
_CUTOFF = 0.85


def plain_name(name: str) -> str:
    """Reduce a name to what case, separators and the class suffix do not change.

    >>> plain_name("Weather-RetrievalCapability") == plain_name("weather_retrieval")
    True
    """
    plain = _SEPARATORS.sub("", name).casefold()
    return plain.removesuffix("capability") or plain


def closest_name(name: str, known: Collection[str]) -> str | None:
    """Return the one known name that can be meant, or ``None`` for none or several.

    >>> closest_name("data retreival", ["data_retrieval", "plotting"])
    'data_retrieval'
    >>> closest_name("sales_2014", ["sales_2015"])
    """
    if len(name) > _LONGEST:
        return None
    plain = plain_name(name)
    if not plain:
        return None
    same = [other for other in known if plain_name(other) == plain]
    if same:
        return same[0] if len(same) == 1 else None
    if len(plain) < _SHORTEST:
        return None
    # What differs by a number is another thing of the same kind, not a typing error.
    numbers = _NUMBERS.findall(name)
    names = [
        other
        for other in known
        if abs(len(other) - len(name)) <= _SPREAD and _NUMBERS.findall(other) == numbers
    ]
    plains = [plain_name(other) for other in names]
    # One wrong letter costs a short name more of its likeness than a long one.
    cutoff = min(_CUTOFF, 0.999 - 1 / len(plain))
    near = difflib.get_close_matches(plain, plains, n=2, cutoff=cutoff)
    return names[plains.index(near[0])] if len(near) == 1 else None
