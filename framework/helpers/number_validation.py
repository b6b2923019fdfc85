"""Validation of numeric arguments."""

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
    """Raise an error unless a value is a finite number that respects its lower bound.

    Booleans do not count as numbers.

    Args:
        name: Name of the value, for the error message.
        value: Value to check.
        minimum: Smallest allowed value.
        above: Exclusive lower bound, in addition to ``minimum``.
        integer: True if the value must be an integer.
        error: Class of the error to raise.

    Raises:
        ValidationError: The value is invalid. ``error`` replaces this exception class.

    >>> check_number("rpm", 0.5)
    >>> check_number("rpm", -1)
    Traceback (most recent call last):
    capgraph.configs.errors.ValidationError: rpm is -1: it must be a number of at least 0. Fix: Pass a number of at least 0.
    """
    kinds: Any = int if integer else (int, float)
    is_number = isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value < minimum or (above is not None and value <= above):
        kind = "an integer" if integer else "a number"
        bound = f"of at least {minimum:g}" if above is None else f"greater than {above:g}"
        raise error(
            f"{name} is {value!r}: it must be {kind} {bound}.",
            fix=f"Pass {kind} {bound}.",
            facts={"name": name, "value": value},
        )
