"""Time expressions relative to now, such as "yesterday", "last week", and "past 30 days"."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta

from capgraph.capabilities.formatting import date_text
from capgraph.capabilities.periods.expressions import (
    MONTHS,
    NUMBERS,
    WEEKDAYS,
    Period,
    TimeExpression,
    TimeOptions,
    floor,
    resolve_period,
    shift,
)

TextMatch = re.Match[str]
TimeRule = tuple[re.Pattern[str], Callable[[TextMatch, TimeOptions], TimeExpression | None]]

_COUNT = r"(?P<count>\d+|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|a|an)"
_UNIT = r"(?P<unit>minute|hour|day|week|month|quarter|year|decade)"
# "The last 5 years of the data" is relative to the data, not to now.
_NOT_OF_DATA = r"(?!\s+(?:of|in|on)\s+(?:the\s+)?(?:data|record|file|series|measurements|dataset))"


def parse_count(text: str) -> int:
    """Convert a number in digits or words to an integer. The article "a" counts as 1."""
    return int(text) if text.isdigit() else NUMBERS.get(text.lower(), 1)


def fixed_expression(
    match: TextMatch, start: datetime, end: datetime, label: str
) -> TimeExpression:
    """Create a time expression for a regular expression match whose period is already known."""
    return TimeExpression(*match.span(), "fixed", period=Period(start, end, label), text=match[0])


def _create_relative(match: TextMatch, start: datetime, end: datetime) -> TimeExpression:
    words = " ".join(match[0].lower().split()).removeprefix("the ")
    last = floor(end - timedelta(microseconds=1), "day")
    dates = date_text(start) if floor(start, "day") == last else ""
    dates = dates or f"{date_text(start)} to {date_text(last)}"
    return fixed_expression(match, start, end, f"{words} ({dates})")


def _parse_day_word(match: TextMatch, options: TimeOptions) -> TimeExpression:
    offset = {"today": 0, "yesterday": -1, "tomorrow": 1}.get(match[0].lower(), -2)
    start = floor(options.now, "day") + timedelta(days=offset)
    return _create_relative(match, start, start + timedelta(days=1))


def _parse_this_or_last(match: TextMatch, options: TimeOptions) -> TimeExpression:
    unit = match["unit"].lower()
    if match["which"].lower() == "past":
        end = floor(options.now, "day") + timedelta(days=1)
        return _create_relative(match, shift(end, -1, unit), end)
    step = {"this": 0, "current": 0, "next": 1}.get(match["which"].lower(), -1)
    start = shift(floor(options.now, unit), step, unit)
    return _create_relative(match, start, shift(start, 1, unit))


def _parse_rolling_window(match: TextMatch, options: TimeOptions) -> TimeExpression:
    unit, count = match["unit"].lower(), parse_count(match["count"])
    if match["which"].lower() == "next":
        start = options.now
        return _create_relative(match, start, shift(start, count, unit))
    if unit in ("minute", "hour"):
        return _create_relative(match, shift(options.now, -count, unit), options.now)
    # Whole days including today, so that daily data has one row per requested day.
    end = floor(options.now, "day") + timedelta(days=1)
    return _create_relative(match, shift(end, -count, unit), end)


def _parse_units_ago(match: TextMatch, options: TimeOptions) -> TimeExpression:
    unit = match["unit"].lower()
    start = shift(floor(options.now, unit), -parse_count(match["count"]), unit)
    return _create_relative(match, start, shift(start, 1, unit))


def _parse_to_date(match: TextMatch, options: TimeOptions) -> TimeExpression:
    start = floor(options.now, match["unit"].lower())
    return _create_relative(match, start, floor(options.now, "day") + timedelta(days=1))


def _parse_month_or_day(match: TextMatch, options: TimeOptions) -> TimeExpression | None:
    """Parse a relative month, season, or weekday, such as "last June" or "this summer"."""
    name, which = match["name"].lower(), match["which"].lower()
    if name in WEEKDAYS:
        today = floor(options.now, "day")
        days_back = (today.weekday() - WEEKDAYS[name]) % 7
        if which == "last" and days_back == 0:
            days_back = 7
        start = today - timedelta(days=days_back) + timedelta(days=7 if which == "next" else 0)
        return _create_relative(match, start, start + timedelta(days=1))
    match_period: Period | None = None
    for year in range(options.now.year - 2, options.now.year + 2):
        if name in MONTHS:
            item = TimeExpression(0, 0, "month", year, MONTHS[name])
        else:
            item = TimeExpression(0, 0, "season", year, name.replace("fall", "autumn"))
        candidate = resolve_period(item, options.southern)
        start_time, end_time = candidate.start, candidate.end
        if start_time is None or end_time is None:
            continue
        if which == "next" and start_time > options.now:
            match_period = candidate
            break
        if which != "next" and (end_time if which == "last" else start_time) <= options.now:
            match_period = candidate
    if match_period is None or match_period.start is None or match_period.end is None:
        return None
    return _create_relative(match, match_period.start, match_period.end)


_NAMES = "|".join(
    sorted({*MONTHS, *WEEKDAYS, "spring", "summer", "autumn", "fall", "winter"}, key=len)[::-1]
)


def time_rule(
    pattern: str, build_expression: Callable[[TextMatch, TimeOptions], TimeExpression | None]
) -> TimeRule:
    """Create a scanner rule from a regular expression and the function that parses a match."""
    return re.compile(rf"(?<![\w.]){pattern}(?!\w)", re.IGNORECASE), build_expression


RELATIVE_RULES = [
    time_rule(r"(?:the\s+)?day before yesterday", _parse_day_word),
    time_rule(r"today|yesterday|tomorrow", _parse_day_word),
    time_rule(
        rf"(?:the\s+)?(?P<which>last|past|previous|next)\s+{_COUNT}\s+{_UNIT}s?(?!\s+(?:of|in)\s)"
        rf"{_NOT_OF_DATA}",
        _parse_rolling_window,
    ),
    time_rule(rf"{_COUNT}\s+{_UNIT}s?\s+ago", _parse_units_ago),
    time_rule(r"(?P<unit>year|month|week|quarter)[\s-]to[\s-]date", _parse_to_date),
    # "The last month of 2012" and "last week in June" are parts of other expressions.
    time_rule(
        rf"(?P<which>this|last|past|previous|current|next)\s+{_UNIT}(?!s|\s+(?:of|in)\b)"
        rf"{_NOT_OF_DATA}",
        _parse_this_or_last,
    ),
    time_rule(
        rf"(?P<which>last|this|next)\s+(?P<name>{_NAMES})(?!\s+(?:of\s+)?\d)", _parse_month_or_day
    ),
]
