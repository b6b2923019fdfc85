"""Numbers that somebody gives: refused by name where they make no sense."""

from __future__ import annotations

import math
from typing import Any

from capgraph.configs.errors import CapgraphError, ValidationError


def check_number(
    name: str,
    value: Any,
    *,
    minimum: float = 0,
    above: float | None = None,
    integer: bool = False,
    error: type[CapgraphError] = ValidationError,
) -> None:
    """Refuse what is no finite number, or too small; ``True`` is none.

    Args:
        name: What it is called.
        value: The number.
        minimum: The least that is allowed.
        above: What it has to be above.
        integer: Whether it has to be a whole number.
        error: What is raised.

    Raises:
        ValidationError: It makes no sense; or ``error``.

    >>> check_number("rpm", 0.5)
    >>> check_number("rpm", -1)
    Traceback (most recent call last):
    capgraph.configs.errors.ValidationError: rpm is -1. Fix: Give a number from 0.
    """
    kinds: Any = int if integer else (int, float)
    sound = isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)
    if not sound or value < minimum or (above is not None and value <= above):
        bound = f"from {minimum:g}" if above is None else f"above {above:g}"
        raise error(
            f"{name} is {value!r}.", fix=f"Give a {'whole ' if integer else ''}number {bound}."
        )
