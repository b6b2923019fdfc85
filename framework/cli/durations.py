"""Lengths of time as a person types them."""

from __future__ import annotations

import re
from datetime import timedelta

from configs.errors import ConfigurationError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def read_duration(text: str) -> timedelta:
    """Read a length of time such as ``30d``, ``12h`` or ``90m``.

    Raises:
        ConfigurationError: It is none.

    >>> read_duration("2w").days
    14
    """
    found = re.fullmatch(r"(\d{1,6})([smhdw])", text.strip().lower())
    if found is None:
        raise ConfigurationError(
            f"{text[:40]!r} is no length of time.", fix="Write a number and s, m, h, d or w: 30d."
        )
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
