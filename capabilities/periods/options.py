"""Settings of the time parser, and the function that parses a text with them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from capgraph.base import ValidationError
from capgraph.capabilities.periods.expressions import ParsedTime, TimeOptions
from capgraph.capabilities.periods.parser import parse_expressions

MAX_TEXT_CHARS = 4000
"""Maximum number of characters read from a task."""


def options_from_settings(settings: Mapping[str, Any]) -> TimeOptions:
    """Read the options of the time parser from the settings of a capability.

    The settings are ``now``, ``timezone``, ``day_first``, and ``hemisphere``.

    Raises:
        ValidationError: A setting is invalid.
    """
    zone_name = settings.get("timezone") or "UTC"
    try:
        zone = ZoneInfo(zone_name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise ValidationError(
            f"The time zone {zone_name!r} is unknown.",
            fix="Use a name such as 'Europe/Berlin' or 'UTC'; on Windows, install 'tzdata'.",
        ) from exc
    now = settings.get("now")
    if isinstance(now, str):
        try:
            now = datetime.fromisoformat(now)
        except ValueError as exc:
            raise ValidationError(
                f"The setting now={now!r} is not a valid ISO time.",
                fix="Write it like 2024-05-31T12:00:00.",
            ) from exc
    if now is None:
        now = datetime.now(zone)
    if now.tzinfo is not None:
        now = now.astimezone(zone).replace(tzinfo=None)
    return TimeOptions(
        now=now,
        day_first=bool(settings.get("day_first", False)),
        southern=settings.get("hemisphere", "north") in ("south", "southern"),
        year=settings.get("year"),
    )


def parse_times(text: str, settings: Mapping[str, Any]) -> ParsedTime:
    """Parse the time expressions in a text, using the settings of a capability as options."""
    return parse_expressions(text, options_from_settings(settings))
