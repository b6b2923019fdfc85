"""Expressions that count from now: "yesterday", "last week", "past 30 days"."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta

from capgraph.capabilities.periods.items import (
    MONTHS,
    NUMBERS,
    WEEKDAYS,
    Item,
    Options,
    Period,
    floor,
    resolve,
    shift,
)
from capgraph.capabilities.wording import date_text

Match = re.Match[str]
Rule = tuple[re.Pattern[str], Callable[[Match, Options], Item | None]]

_COUNT = r"(?P<count>\d+|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|a|an)"
_UNIT = r"(?P<unit>minute|hour|day|week|month|quarter|year|decade)"
# "The last 5 years of the data" counts from the data and not from now.
_NOT_OF_DATA = r"(?!\s+(?:of|in|on)\s+(?:the\s+)?(?:data|record|file|series|measurements|dataset))"


def number_of(text: str) -> int:
    """Read a number in digits or words; "a" is 1."""
    return int(text) if text.isdigit() else NUMBERS.get(text.lower(), 1)


def fixed(match: Match, start: datetime, end: datetime, label: str) -> Item:
    """Return an expression that stands for one stretch of time."""
    return Item(*match.span(), "fixed", interval=Period(start, end, label), text=match[0])


def _named(match: Match, start: datetime, end: datetime) -> Item:
    words = " ".join(match[0].lower().split()).removeprefix("the ")
    last = floor(end - timedelta(microseconds=1), "day")
    dates = date_text(start) if floor(start, "day") == last else ""
    dates = dates or f"{date_text(start)} to {date_text(last)}"
    return fixed(match, start, end, f"{words} ({dates})")


def _day_word(match: Match, options: Options) -> Item:
    offset = {"today": 0, "yesterday": -1, "tomorrow": 1}.get(match[0].lower(), -2)
    start = floor(options.now, "day") + timedelta(days=offset)
    return _named(match, start, start + timedelta(days=1))


def _this_or_last(match: Match, options: Options) -> Item:
    unit = match["unit"].lower()
    if match["which"].lower() == "past":
        end = floor(options.now, "day") + timedelta(days=1)
        return _named(match, shift(end, -1, unit), end)
    step = {"this": 0, "current": 0, "next": 1}.get(match["which"].lower(), -1)
    start = shift(floor(options.now, unit), step, unit)
    return _named(match, start, shift(start, 1, unit))


def _past(match: Match, options: Options) -> Item:
    unit, count = match["unit"].lower(), number_of(match["count"])
    if match["which"].lower() == "next":
        start = options.now
        return _named(match, start, shift(start, count, unit))
    if unit in ("minute", "hour"):
        return _named(match, shift(options.now, -count, unit), options.now)
    # Whole days, the current one included, so that daily data gives as many rows as days.
    end = floor(options.now, "day") + timedelta(days=1)
    return _named(match, shift(end, -count, unit), end)


def _ago(match: Match, options: Options) -> Item:
    unit = match["unit"].lower()
    start = shift(floor(options.now, unit), -number_of(match["count"]), unit)
    return _named(match, start, shift(start, 1, unit))


def _to_date(match: Match, options: Options) -> Item:
    start = floor(options.now, match["unit"].lower())
    return _named(match, start, floor(options.now, "day") + timedelta(days=1))


def _last_name(match: Match, options: Options) -> Item | None:
    """Read "last June", "this summer", "last Monday"."""
    name, which = match["name"].lower(), match["which"].lower()
    if name in WEEKDAYS:
        today = floor(options.now, "day")
        back = (today.weekday() - WEEKDAYS[name]) % 7
        if which == "last" and back == 0:
            back = 7
        start = today - timedelta(days=back) + timedelta(days=7 if which == "next" else 0)
        return _named(match, start, start + timedelta(days=1))
    found: Period | None = None
    for year in range(options.now.year - 2, options.now.year + 2):
        if name in MONTHS:
            item = Item(0, 0, "month", year, MONTHS[name])
        else:
            item = Item(0, 0, "season", year, name.replace("fall", "autumn"))
        candidate = resolve(item, options.southern)
        begins, ends = candidate.start, candidate.end
        if begins is None or ends is None:
            continue
        if which == "next" and begins > options.now:
            found = candidate
            break
        if which != "next" and (ends if which == "last" else begins) <= options.now:
            found = candidate
    if found is None or found.start is None or found.end is None:
        return None
    return _named(match, found.start, found.end)


_NAMES = "|".join(
    sorted({*MONTHS, *WEEKDAYS, "spring", "summer", "autumn", "fall", "winter"}, key=len)[::-1]
)


def rule(pattern: str, build: Callable[[Match, Options], Item | None]) -> Rule:
    """Pair what an expression of time looks like, as whole words, with what it means."""
    return re.compile(rf"(?<![\w.]){pattern}(?!\w)", re.IGNORECASE), build


RELATIVE = [
    rule(r"(?:the\s+)?day before yesterday", _day_word),
    rule(r"today|yesterday|tomorrow", _day_word),
    rule(
        rf"(?:the\s+)?(?P<which>last|past|previous|next)\s+{_COUNT}\s+{_UNIT}s?(?!\s+(?:of|in)\s)"
        rf"{_NOT_OF_DATA}",
        _past,
    ),
    rule(rf"{_COUNT}\s+{_UNIT}s?\s+ago", _ago),
    rule(r"(?P<unit>year|month|week|quarter)[\s-]to[\s-]date", _to_date),
    # "The last month of 2012" and "last week in June" are parts of something else.
    rule(
        rf"(?P<which>this|last|past|previous|current|next)\s+{_UNIT}(?!s|\s+(?:of|in)\b)"
        rf"{_NOT_OF_DATA}",
        _this_or_last,
    ),
    rule(rf"(?P<which>last|this|next)\s+(?P<name>{_NAMES})(?!\s+(?:of\s+)?\d)", _last_name),
]
