"""From a text to a ``TimeRange``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from capabilities.contexts import DataWindow, Period, TimeRange
from capabilities.data.words import MAX_TEXT
from capabilities.periods.connect import ParsedTime, parse
from capabilities.periods.items import Interval, Options
from framework.base import ValidationError


def options_from(settings: Mapping[str, Any]) -> Options:
    """Read ``now``, ``timezone``, ``day_first`` and ``hemisphere`` from settings.

    Raises:
        ValidationError: A setting cannot be used.
    """
    zone_name = settings.get("timezone") or "UTC"
    try:
        zone = ZoneInfo(zone_name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise ValidationError(
            f"The time zone {zone_name!r} is not known.",
            fix="Use a name such as 'Europe/Berlin' or 'UTC'; on Windows install 'tzdata'.",
        ) from exc
    now = settings.get("now")
    if isinstance(now, str):
        try:
            now = datetime.fromisoformat(now)
        except ValueError as exc:
            raise ValidationError(
                f"The setting now={now!r} is not a time.", fix="Write it as 2024-05-31T12:00:00."
            ) from exc
    if now is None:
        now = datetime.now(zone)
    if now.tzinfo is not None:
        now = now.astimezone(zone).replace(tzinfo=None)
    return Options(
        now=now,
        day_first=bool(settings.get("day_first", False)),
        southern=settings.get("hemisphere", "north") in ("south", "southern"),
    )


def read_times(text: str, settings: Mapping[str, Any]) -> ParsedTime:
    """Parse a text with the options of the settings."""
    return parse(text, options_from(settings))


def to_time_range(parsed: ParsedTime, settings: Mapping[str, Any]) -> TimeRange:
    """Turn what was parsed into the context type."""

    def period(interval: Interval) -> Period:
        return Period(start=interval.start, end=interval.end, label=interval.label)

    window = None
    if parsed.window is not None:
        edge, amount, unit = parsed.window
        window = DataWindow.model_validate({"edge": edge, "amount": amount, "unit": unit})
    return TimeRange(
        label=parsed.label,
        periods=[period(interval) for interval in parsed.intervals],
        endpoints=[period(interval) for interval in parsed.endpoints],
        months=parsed.months,
        days=parsed.days,
        weekdays=parsed.weekdays,
        hours=parsed.hours,
        window=window,
        timezone=settings.get("timezone") or "UTC",
    )


def time_range_of(text: str, settings: Mapping[str, Any]) -> TimeRange:
    """Read the time range of a question.

    >>> time_range_of("the first half of 2009", {}).label
    'the first half of 2009'
    """
    text = text[:MAX_TEXT]
    found = to_time_range(read_times(text, settings), settings)
    return found.model_copy(update={"read_from": text})
