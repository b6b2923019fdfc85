"""Recurring times, such as Mondays, weekends, and mornings, and parts of the data's time range."""

from __future__ import annotations

import re
from typing import Any

from capgraph.capabilities.periods.expressions import (
    DAY_NAMES,
    NUMBERS,
    WEEKDAYS,
    DataWindow,
    ParsedTime,
)

_DAY_NAMES = "|".join(DAY_NAMES)
_WEEKDAY = re.compile(
    rf"\b(?:(?:on\s+)?(?P<plural>{_DAY_NAMES})s|on\s+(?:an?\s+|the\s+)?(?P<single>{_DAY_NAMES}))\b",
    re.IGNORECASE,
)
_WEEKEND = re.compile(r"\b(?:on\s+|at\s+|during\s+)?(?:the\s+)?weekends?\b(?!\s+effect)", re.I)
_WORKDAY = re.compile(r"\b(?:on\s+|during\s+)?(?:weekdays|working days|workdays)\b", re.I)
_GROUPING_BEFORE = re.compile(
    r"\b(?:by|which|what|per|each|every|vs\.?|versus|than|with|compare)\s*$", re.I
)
_AT_NAME = re.compile(r"\b(?:at|around|by)\s+(?P<name>noon|midday|midnight)\b", re.I)
_AT_CLOCK = re.compile(
    r"\bat\s+(?:(?P<hour>\d{1,2})(?::00)?\s*(?P<half>[ap]\.?m\.?|o['\u2019]clock)|(?P<full>\d{1,2}):00)",
    re.I,
)
_BETWEEN_CLOCK = re.compile(
    r"\b(?:between|from)\s+(?P<a>\d{1,2})(?::00)?\s*+(?P<ah>[ap]\.?m\.?)?\s*+(?:and|to|until|-|\u2013)\s*"
    r"(?P<b>\d{1,2})(?::00)?\s*(?P<bh>[ap]\.?m\.?)|\b(?:between|from)\s+(?P<c>\d{1,2}):00\s*"
    r"(?:and|to|until|-|\u2013)\s*(?P<d>\d{1,2}):00",
    re.I,
)
_PART_OF_DAY = re.compile(
    r"\b(?:in the (?P<a>morning|afternoon|evening)s?|(?P<b>morning|afternoon|evening)s"
    r"|(?P<night>at night|by night|overnight|during the night|in the night|nights))\b",
    re.I,
)
_PARTS = {"morning": range(6, 12), "afternoon": range(12, 18), "evening": range(18, 24)}
_UNIT = r"(?P<unit>hour|day|week|month|quarter|year|decade)"
_OF_DATA = (
    r"(?:\s+(?:of|in|on)\s+(?:the\s+|this\s+)?(?:data(?:set)?|records?|file|series|measurements))"
)
_WINDOW = re.compile(
    rf"(?:the\s+)?(?P<which>first|last|latest|final|most recent|earliest)\s+"
    rf"(?:(?P<count>\d+|{'|'.join(NUMBERS)})\s+)?{_UNIT}s?{_OF_DATA}"
    rf"|(?:in|over|during|for)\s+the\s+(?P<edge>latest|most recent|earliest|first)\s+"
    rf"(?:(?P<amount>\d+|{'|'.join(NUMBERS)})\s+)?(?P<unit2>hour|day|week|month|quarter|year)s?"
    r"(?!\s+(?:of|in)\b)",
    re.I,
)


def find_recurring(text: str) -> ParsedTime:
    """Find weekdays, hours of the day, and data windows such as "the last five years" in a text.

    >>> find_recurring("average load on Mondays at 3 pm").hours
    [15]
    """
    found = ParsedTime()
    _find_weekdays(text, found)
    _find_hours(text, found)
    match = _WINDOW.search(text)
    if match:
        edge = (match["which"] or match["edge"]).lower()
        amount = match["count"] or match["amount"] or "1"
        number = int(amount) if amount.isdigit() else NUMBERS[amount.lower()]
        side: Any = "first" if edge in ("first", "earliest") else "last"
        unit: Any = (match["unit"] or match["unit2"]).lower()
        found.window = DataWindow(side, max(number, 1), unit)
        found.spans.append(match.span())
    found.weekdays, found.hours = sorted(set(found.weekdays)), sorted(set(found.hours))
    return found


def _find_weekdays(text: str, result: ParsedTime) -> None:
    for match in _WEEKDAY.finditer(text):
        # "On Monday 4 July 2011" is a date, not a recurring day.
        if match["single"] and re.match(r",?\s++(?:the\s++)?\d", text[match.end() :]):
            continue
        result.weekdays.append(WEEKDAYS[(match["plural"] or match["single"]).lower()])
        result.spans.append(match.span())
    ends, works = list(_WEEKEND.finditer(text)), list(_WORKDAY.finditer(text))
    if ends and works:
        return
    for matches, days in ((ends, [5, 6]), (works, [0, 1, 2, 3, 4])):
        for match in matches:
            if not _GROUPING_BEFORE.search(text[: match.start()]):
                result.weekdays += [day for day in days if day not in result.weekdays]
                result.spans.append(match.span())


def _hour_of_day(hour: str, meridiem: str | None) -> int:
    number = int(hour) % 24
    if meridiem and meridiem.lower().startswith("p"):
        return number % 12 + 12
    return number % 12 if meridiem and meridiem.lower().startswith("a") else number


def _find_hours(text: str, result: ParsedTime) -> None:
    for match in _BETWEEN_CLOCK.finditer(text):
        if match["c"]:
            first, last = int(match["c"]), int(match["d"])
        else:
            first = _hour_of_day(match["a"], match["ah"] or match["bh"])
            last = _hour_of_day(match["b"], match["bh"])
            if first > last and match["bh"] and not match["ah"]:  # "from 10 to 12 pm"
                first = (first + 12) % 24
        result.hours += [(first + n) % 24 for n in range((last - first) % 24)]
        result.spans.append(match.span())
    for match in _AT_NAME.finditer(text):
        result.hours.append(0 if match["name"].lower() == "midnight" else 12)
        result.spans.append(match.span())
    if not result.hours:
        for match in _AT_CLOCK.finditer(text):
            result.hours.append(_hour_of_day(match["hour"] or match["full"], match["half"]))
            result.spans.append(match.span())
    for match in _PART_OF_DAY.finditer(text):
        name = (match["a"] or match["b"] or "").lower()
        result.hours += [*_PARTS[name]] if name else [22, 23, 0, 1, 2, 3, 4, 5]
        result.spans.append(match.span())
