"""Functions that find time expressions in a text."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from capgraph.base import ValidationError
from capgraph.capabilities.formatting import date_text
from capgraph.capabilities.periods.expressions import (
    MONTHS,
    ORDINALS,
    Period,
    TimeExpression,
    TimeOptions,
    parse_day,
)
from capgraph.capabilities.periods.relative import (
    RELATIVE_RULES,
    TextMatch,
    TimeRule,
    fixed_expression,
    parse_count,
    time_rule,
)

_MONTH = (
    r"(?P<month>january|february|march|april|may|june|july|august|september|october|november"
    r"|december|jan|feb|mar|apr|jun|jul|aug|sept|sep|oct|nov|dec)\b\.?"
)
_YEAR = r"(?P<year>1[5-9]\d\d|20\d\d|21\d\d)"
_DAY = r"(?P<day>[0-3]?\d)(?:st|nd|rd|th)?"
_DAY2 = r"(?P<day2>[0-3]?\d)(?:st|nd|rd|th)?"
_TO = r"\s*(?:-|\u2013|\u2014|to|through|until|till|and)\s*(?:the\s+)?"
_CLOCK = r"(?:(?:T|\s+|,\s*|\s+at\s+)(?P<hour>[0-2]?\d):(?P<minute>[0-5]\d)(?::\d\d)?(?!\d))?"
_SEASON = r"(?P<season>spring|summer|autumn|fall|winter)s?"
_ORDINAL = r"(?P<ordinal>first|second|third|fourth|1st|2nd|3rd|4th|last)"
_OF = r"(?:\s+(?:of|in)(?:\s+the)?(?:\s+year)?|,)?\s+"


def _read_month_and_day(match: TextMatch) -> tuple[int, int]:
    return MONTHS[match["month"].lower().rstrip(".")], int(match["day"])


def _read_year(match: TextMatch) -> int | None:
    text = match.groupdict().get("year")
    return int(text) if text else None


def _parse_iso_day(match: TextMatch, _options: TimeOptions) -> TimeExpression:
    year, month, day = int(match["year"]), int(match["m"]), int(match["d"])
    return _parse_clock_time(match, year, month, day)


def _parse_clock_time(match: TextMatch, year: int, month: int, day: int) -> TimeExpression:
    start = parse_day(year, month, day, match[0])
    if match.groupdict().get("hour") is None:
        return TimeExpression(*match.span(), "day", year, (month, day), text=match[0])
    at = start.replace(hour=int(match["hour"]) % 24, minute=int(match["minute"]))
    until = at + (timedelta(hours=1) if at.minute == 0 else timedelta(minutes=1))
    return TimeExpression(*match.span(), "fixed", period=Period(at, until, date_text(at)))


def _parse_named_day(match: TextMatch, _options: TimeOptions) -> TimeExpression:
    month, day = _read_month_and_day(match)
    year = _read_year(match)
    parse_day(year or 0, month, day, match[0])
    if year and match.groupdict().get("hour"):
        return _parse_clock_time(match, year, month, day)
    return TimeExpression(*match.span(), "day", year, (month, day), text=match[0])


def _parse_day_range(match: TextMatch, _options: TimeOptions) -> TimeExpression | None:
    month, first = _read_month_and_day(match)
    last, year = int(match["day2"]), _read_year(match)
    if year is None or last <= first:
        return None
    start = parse_day(year, month, first, match[0])
    end = parse_day(year, month, last, match[0]) + timedelta(days=1)
    label = f"{date_text(start)} to {date_text(end - timedelta(days=1))}"
    return fixed_expression(match, start, end, label)


def _parse_numeric_day(match: TextMatch, options: TimeOptions) -> TimeExpression:
    a, b, year = int(match["a"]), int(match["b"]), int(match["year"])
    day_first = match["sep"] == "." or options.day_first
    if a > 12 >= b:
        day_first = True
    elif b > 12 >= a:
        day_first = False
    day, month = (a, b) if day_first else (b, a)
    return _parse_clock_time(match, year, month, day)


def _parse_month(match: TextMatch, _options: TimeOptions) -> TimeExpression:
    number = MONTHS[match["month"].lower().rstrip(".")]
    return TimeExpression(*match.span(), "month", _read_year(match), number, text=match[0])


def _parse_iso_month(match: TextMatch, _options: TimeOptions) -> TimeExpression | None:
    month = int(match["m"])
    if not 1 <= month <= 12:
        return None
    return TimeExpression(*match.span(), "month", _read_year(match), month, text=match[0])


def _parse_season(match: TextMatch, _options: TimeOptions) -> TimeExpression | None:
    name = match["season"].lower().replace("fall", "autumn")
    verb = match["season"].lower() in ("fall", "spring") and match.start() > 0
    if verb and not _BEFORE_BARE.search(_read_text_before(match.string, match.start())):
        # In "How much did the price fall in 2008", "fall" is not a season.
        return None
    year = _read_year(match)
    second = match.groupdict().get("year2")
    if year is not None and second:
        # "Winter 2012/13" names both years; the season belongs to the second one.
        year = int(str(year)[: 4 - len(second)] + second)
    return TimeExpression(*match.span(), "season", year, name, text=match[0])


def _parse_quarter(match: TextMatch, _options: TimeOptions, last: int = 4) -> TimeExpression:
    text = match.groupdict().get("ordinal")
    number = ORDINALS.get(text.lower(), last) if text else int(match["number"])
    unit = "quarter" if last == 4 else "half"
    return TimeExpression(*match.span(), unit, _read_year(match), min(number, last), text=match[0])


_half = partial(_parse_quarter, last=2)


def _parse_decade(match: TextMatch, _options: TimeOptions) -> TimeExpression:
    start = int(match["decade"]) * 10
    return TimeExpression(*match.span(), "decade", start, text=match[0])


def _parse_century(match: TextMatch, _options: TimeOptions) -> TimeExpression:
    first = (int(match["century"]) - 1) * 100
    return fixed_expression(
        match, datetime(first, 1, 1), datetime(first + 100, 1, 1), match[0].lower()
    )


def _parse_week(match: TextMatch, _options: TimeOptions) -> TimeExpression:
    year, week = int(match["year"]), int(match["week"])
    try:
        start = datetime.fromisocalendar(year, week, 1)
    except ValueError:
        raise ValidationError(
            f"The week {match[0]!r} does not exist.",
            fix="Name a week from 1 to 52, or 53 in a long year.",
        ) from None
    return fixed_expression(match, start, start + timedelta(days=7), f"week {week} of {year}")


def _parse_holiday(match: TextMatch, _options: TimeOptions) -> TimeExpression:
    name = " ".join(match["holiday"].lower().replace("\u2019", "'").split())
    return TimeExpression(*match.span(), "day", int(match["year"]), _HOLIDAYS[name], text=match[0])


_HOLIDAYS = {
    "new year's day": (1, 1), "new years day": (1, 1), "christmas day": (12, 25),
    "christmas eve": (12, 24), "christmas": (12, 25), "boxing day": (12, 26),
    "new year's eve": (12, 31), "new years eve": (12, 31), "independence day": (7, 4),
    "valentine's day": (2, 14), "halloween": (10, 31),
}  # fmt: skip


def _parse_year_range(match: TextMatch, _options: TimeOptions) -> TimeExpression | None:
    first, last = int(match["year"]), match["year2"]
    second = int(str(first)[: 4 - len(last)] + last)
    if second <= first:
        return None
    end = datetime(second + 1, 1, 1)
    return fixed_expression(match, datetime(first, 1, 1), end, f"{first} to {second}")


def _parse_bare_year(match: TextMatch, _options: TimeOptions) -> TimeExpression | None:
    text = match.string
    before, after = text[: match.start()].lower(), text[match.end() :].lower()
    if _QUANTITY_BEFORE.search(before) or _QUANTITY_AFTER.match(after):
        return None
    return TimeExpression(*match.span(), "year", int(match["year"]), text=match[0])


# A four-digit number after or before these words is a quantity, not a year.
_QUANTITY_BEFORE = re.compile(
    r"(?:above|below|over|under|exceed(?:s|ed|ing)?|reach(?:es|ed|ing)?|at least|at most|top \d*"
    r"|(?:more|less|fewer|greater|higher|lower|larger|smaller) than|[$€£><=]"
    r"|cross(?:es|ed|ing)?|pass(?:es|ed)?|equals?|hits?|surpass(?:es|ed)?|threshold(?: of)?)\s*$"
)
_QUANTITY_AFTER = re.compile(
    r"\s*(?:°|%|\$|€|degrees|mm\b|ppm\b|kwh?\b|mwh?\b|gwh\b|w\b|kg\b|km\b|jobs|workers|people"
    r"|units|dollars|usd|euros?|points|times|rows|hours|days|m\b|thousand|million)|[.,]\d"
)


# Longer expressions precede the expressions that they contain.
_RULES: list[TimeRule] = [
    time_rule(rf"{_YEAR}(?P<s>[-/.])(?P<m>\d\d?)(?P=s)(?P<d>\d\d?){_CLOCK}", _parse_iso_day),
    time_rule(rf"(?P<a>\d\d?)(?P<sep>[/.])(?P<b>\d\d?)(?P=sep){_YEAR}{_CLOCK}", _parse_numeric_day),
    time_rule(rf"{_DAY}{_TO}{_DAY2}(?:\s+of)?\s+{_MONTH},?\s+{_YEAR}", _parse_day_range),
    time_rule(rf"{_MONTH}\s+{_DAY}{_TO}{_DAY2},?\s+{_YEAR}", _parse_day_range),
    time_rule(rf"{_DAY}(?:\s+of)?\s+{_MONTH}(?:,?(?:\s+of)?\s+{_YEAR}{_CLOCK})?", _parse_named_day),
    time_rule(
        rf"{_MONTH}\s+(?:the\s+)?{_DAY}(?:,?\s+{_YEAR}{_CLOCK})?(?!:|\.\d)", _parse_named_day
    ),
    time_rule(
        rf"(?P<holiday>{'|'.join(sorted(_HOLIDAYS, key=len)[::-1])})(?:,?\s+(?:of\s+|in\s+)?){_YEAR}",
        _parse_holiday,
    ),
    time_rule(r"(?:the\s+)?(?P<century>1[6-9]|2[01])(?:st|th)\s+century", _parse_century),
    time_rule(
        rf"(?:calendar\s+|iso\s+)?week\s+(?P<week>\d\d?)(?:\s+of|\s+in|,)?\s+{_YEAR}", _parse_week
    ),
    *RELATIVE_RULES,
    time_rule(rf"{_MONTH}(?:\s+(?:of|in)|,)?\s+{_YEAR}", _parse_month),
    time_rule(rf"{_YEAR}\s+{_MONTH}", _parse_month),
    time_rule(
        rf"{_SEASON}{_OF}{_YEAR}(?:\s*[-/\u2013]\s*(?P<year2>\d\d(?:\d\d)?))?", _parse_season
    ),
    time_rule(rf"Q(?P<number>[1-4])(?:{_OF}|\s*[-/]?\s*){_YEAR}", _parse_quarter),
    time_rule(rf"{_YEAR}\s*-?\s*Q(?P<number>[1-4])", _parse_quarter),
    time_rule(rf"{_ORDINAL}\s+quarter{_OF}{_YEAR}", _parse_quarter),
    time_rule(rf"{_ORDINAL}\s+half{_OF}{_YEAR}", _half),
    time_rule(rf"H(?P<number>[12]){_OF}{_YEAR}", _half),
    time_rule(r"(?:the\s+)?(?P<decade>1[5-9]\d|20\d)0'?s", _parse_decade),
    time_rule(rf"{_YEAR}-(?P<m>\d\d)(?!-?\d)", _parse_iso_month),
    time_rule(rf"{_YEAR}\s*[-\u2013\u2014/]\s*(?P<year2>(?:\d\d)?\d\d)", _parse_year_range),
    time_rule(r"Q(?P<number>[1-4])", _parse_quarter),
    time_rule(rf"{_ORDINAL}\s+quarter", _parse_quarter),
    time_rule(rf"{_YEAR}", _parse_bare_year),
]
_CONTEXT_CHARS = 60  # longer than any expression that can precede a month or season


def _read_text_before(text: str, end: int) -> str:
    return text[max(0, end - _CONTEXT_CHARS) : end]


_BARE_MONTH = re.compile(rf"(?<![\w.]){_MONTH}", re.IGNORECASE)
_BARE_SEASON = re.compile(rf"(?<!\w){_SEASON}\b", re.IGNORECASE)
# Words that identify a following "May" or "fall" as a month or season rather than a verb.
_BEFORE_BARE = re.compile(
    r"(?:(?:\b(?:in|of|during|since|until|till|before|after|by|from|to|and|or|between|vs\.?|versus"
    r"|than|for|the|every|each|through|with|this|next|last|early|late|mid|per|over|an?|average"
    r"|typical)|[,\u2013(])[\s-]*|-\s*)$",
    re.IGNORECASE,
)
_PORTION = re.compile(
    r"(?:the\s+)?(?:(?P<time>early|mid|late|(?:the\s+)?(?:beginning|start|end|middle)\s+of"
    r"(?:\s+the)?)|(?P<which>first|last|second|third|fourth|1st|2nd|3rd|4th|final)\s+"
    r"(?:(?P<count>\d+|two|three|four|five|six|seven|eight|nine|ten)\s+)?"
    r"(?P<unit>hour|day|week|month|quarter|half|year)s?\s+(?:of|in)(?:\s+the)?(?:\s+year)?)"
    r"[\s-]+$",
    re.IGNORECASE,
)


def find_expressions(text: str, options: TimeOptions) -> list[TimeExpression]:
    """Find all non-overlapping time expressions in a text, in order of appearance.

    >>> options = TimeOptions(datetime(2020, 1, 1))
    >>> [item.text for item in find_expressions("June 2014 or 3 May 2015", options)]
    ['June 2014', '3 May 2015']
    """
    is_used = [False] * len(text)
    expressions: list[TimeExpression] = []
    for pattern, build in _RULES:
        for match in pattern.finditer(text):
            if any(is_used[match.start() : match.end()]):
                continue
            expression = build(match, options)
            if expression is not None:
                expressions.append(expression)
                is_used[match.start() : match.end()] = [True] * len(match[0])
    expressions += _find_bare_names(text, is_used)
    expressions.sort(key=lambda expression: expression.start_index)
    return [_include_qualifier(text, expression) for expression in expressions]


def _find_bare_names(text: str, is_used: list[bool]) -> list[TimeExpression]:
    found: list[TimeExpression] = []
    for pattern in (_BARE_MONTH, _BARE_SEASON):
        for match in pattern.finditer(text):
            if any(is_used[match.start() : match.end()]):
                continue
            word = match[0].lower()
            has_context = bool(_BEFORE_BARE.search(_read_text_before(text, match.start())))
            if word in ("may", "march", "mar") and not (
                has_context or (match[0][0].isupper() and match.start() > 0)
            ):
                continue
            if word in ("may", "fall", "spring", "dec", "sun") and not has_context:
                continue
            before = _read_text_before(text, match.start())
            joined = word == "fall" and re.search(r"(?:and|or|to|the)\s+$", before, re.IGNORECASE)
            if joined and not re.search(r"\bin\s+the\s+$", before, re.IGNORECASE):
                # In "rise and fall" and "the fall in price", "fall" is not a season.
                continue
            if pattern is _BARE_MONTH:
                number = MONTHS[word.rstrip(".")]
                found.append(TimeExpression(*match.span(), "month", None, number, text=match[0]))
            else:
                name = match["season"].lower().replace("fall", "autumn")
                found.append(TimeExpression(*match.span(), "season", None, name, text=match[0]))
    return found


def _include_qualifier(text: str, expression: TimeExpression) -> TimeExpression:
    """Extend a time expression with a preceding qualifier, such as "early" in "early 2008"."""
    match = _PORTION.search(text[: expression.start_index])
    if match is None or expression.unit == "day":
        return expression
    if match["time"]:
        word = match["time"].lower().removeprefix("the ").split()[0]
        which = {"beginning": "early", "start": "early", "end": "late", "middle": "mid"}.get(
            word, word
        )
        portion = (which, 1, "")
    else:
        count = match["count"]
        amount = parse_count(count or "one")
        which = match["which"].lower().replace("final", "last")
        portion = (which, amount, match["unit"].lower())
    return replace(expression, start_index=match.start(), portion=portion)
