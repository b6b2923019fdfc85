"""Accessors for plan data that has not been validated. Every function accepts any JSON value."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

MAX_KEY_LENGTH = 128
MAX_DEPTH = 32
"""Maximum nesting depth of a parameter, well below Python's recursion limit."""

_KEY = re.compile(r"\w[\w.:-]*")
_NOT_KEY = re.compile(r"[^\w.:-]+")


def is_context_key(value: object) -> bool:
    """Return True if a value is a valid context key (the name of a step's result).

    >>> is_context_key("seattle.daily-highs"), is_context_key("a b"), is_context_key(7)
    (True, False, False)
    """
    return (
        isinstance(value, str)
        and len(value) <= MAX_KEY_LENGTH
        and _KEY.fullmatch(value) is not None
    )


def scalar_text(value: object) -> str | None:
    """Return a string or integer as a string, or ``None`` for a value of any other type."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 64:
        return str(value)
    return value if isinstance(value, str) else None


def make_context_key(text: str, used_keys: Collection[str], fallback: str = "step") -> str:
    """Create an unused context key (name of a step's result) from descriptive text.

    Args:
        text: Text from which the key is derived.
        used_keys: Context keys that are already in use.
        fallback: Key to use if the text contains no valid characters.

    >>> make_context_key("Daily highs!", {"daily_highs"})
    'daily_highs_2'
    """
    base = _NOT_KEY.sub("_", text.strip())[: MAX_KEY_LENGTH - 8].strip("_.:-").lower()
    base = base or fallback
    key, number = base, 2
    while key in used_keys:
        key, number = f"{base}_{number}", number + 1
    return key


def plan_steps(plan: object) -> list[Any]:
    """Return the steps of a plan, or an empty list if its ``steps`` field is not a list."""
    steps = plan.get("steps") if isinstance(plan, dict) else None
    return steps if isinstance(steps, list) else []


def plan_stamp(plan: object) -> Mapping[str, Any]:
    """Return the validation stamp of a plan, or an empty mapping if it has no stamp."""
    stamp = plan.get("stamp") if isinstance(plan, Mapping) else None
    return stamp if isinstance(stamp, Mapping) else {}


def step_key(step: Mapping[str, Any], index: int) -> str:
    """Return a step's context key, or a substitute made from its position and capability.

    >>> step_key({"capability": "fetch"}, 3)
    '3_fetch'
    """
    key = step.get("context_key")
    return key if isinstance(key, str) and key else f"{index}_{step.get('capability')}"


def step_capability(step: Mapping[str, Any]) -> str | None:
    """Return the name of a step's capability, or ``None`` if it is not a string."""
    name = step.get("capability")
    return name if isinstance(name, str) else None


def is_too_deep(value: object, limit: int = MAX_DEPTH) -> bool:
    """Return True if lists and objects are nested deeper than a limit.

    The check is iterative, so deep nesting cannot cause a ``RecursionError``.
    """
    level: list[object] = [value]
    for _ in range(limit):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list, tuple))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return any(isinstance(item, (dict, list, tuple)) for item in level)
