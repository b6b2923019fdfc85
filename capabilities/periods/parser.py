"""Functions that combine time expressions: ranges, lists, "since", and years stated only once."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

from capgraph.capabilities.formatting import date_text, join_list
from capgraph.capabilities.periods.expressions import (
    ParsedTime,
    Period,
    TimeExpression,
    TimeOptions,
    resolve_period,
    season_months,
)
from capgraph.capabilities.periods.recurring import find_recurring
from capgraph.capabilities.periods.scanner import find_expressions

_RANGE = re.compile(
    r"^\s*+,?\s*+(?:up\s+)?(?:to|until|till|through|thru|-|\u2013|\u2014)\s*+(?:the\s+)?$", re.I
)
_LIST = re.compile(
    r"^\s*+,?\s*+(?:and|or|&|vs\.?|versus|against|with|than|to|,|(?:is |was )?compared (?:to|with))"
    r"\s*+(?:the\s+)?$|^,?\s*$",
    re.I,
)
_AND = re.compile(r"^\s*+(?:and|-|\u2013|\u2014|to)\s*+(?:the\s+)?$", re.I)
_BETWEEN = re.compile(r"\bbetween(?:\s+the)?\s*$", re.I)
_FROM = re.compile(
    r"\b(?:from|starting(?: in| on| from)?|beginning(?: in| on)?)(?:\s+the)?\s*$", re.I
)
_COMPARE = re.compile(
    r"\b(?:compar\w*|differ\w*|versus|vs\.?|than|contrast\w*)\b|\bdifference\b", re.I
)
_SINCE = re.compile(r"\b(?:since|from|starting(?: in| on)?|as of)(?:\s+the)?\s*$", re.I)
_AFTER = re.compile(r"\b(?:after|later than|following)(?:\s+the)?\s*$", re.I)
_BEFORE = re.compile(r"\b(?:before|prior to|earlier than|preceding)(?:\s+the)?\s*$", re.I)
_UNTIL = re.compile(r"\b(?:until|till|through|thru|up to|up until|by)(?:\s+the)?\s*$", re.I)


def parse_expressions(text: str, options: TimeOptions) -> ParsedTime:
    """Parse the periods and recurring times that a text refers to.

    >>> from datetime import datetime
    >>> options = TimeOptions(datetime(2020, 1, 1))
    >>> parse_expressions("between June and August 2015", options).periods[0].label
    '1 June 2015 to 31 August 2015'
    """
    expressions = find_expressions(text, options)
    # A part of a date ("5 January 2010 at 13:00") is not a recurring time.
    masked = text
    for expression in expressions:
        masked = (
            masked[: expression.start_index]
            + "\0" * (expression.end_index - expression.start_index)
            + masked[expression.end_index :]
        )
    result = find_recurring(masked)
    recurring = [" ".join(masked[begin:end].split()) for begin, end in result.spans]
    expressions = [
        _apply_assumed_year(expression, options.year)
        for expression in _fill_missing_years(text, expressions)
    ]
    result.spans += [(expression.start_index, expression.end_index) for expression in expressions]
    names: list[str] = []
    position = 0
    while position < len(expressions):
        count = _consume_expression(text, expressions, position, options, result, names)
        position += count
    _remove_enclosing_periods(text, result)
    result.label = _describe_times(result, [*names, *recurring])
    return result


def _text_between(text: str, first: TimeExpression, second: TimeExpression) -> str:
    return text[first.end_index : second.start_index]


def _is_range(text: str, first: TimeExpression, second: TimeExpression) -> bool:
    before, gap = text[: first.start_index], _text_between(text, first, second)
    comparing = bool(_COMPARE.search(before))
    if _BETWEEN.search(before):
        # "The difference between June 2014 and June 2015" is a comparison, not a range.
        return bool(_AND.match(gap)) and not comparing
    if not _RANGE.match(gap):
        return False
    return bool(_FROM.search(before)) or not (comparing and gap.strip().lower() == "to")


def _fill_missing_years(text: str, expressions: list[TimeExpression]) -> list[TimeExpression]:
    """Fill in missing years from neighboring time expressions, as in "June to August 2015"."""
    expressions = list(expressions)
    for index in range(len(expressions) - 2, -1, -1):
        first, second = expressions[index], expressions[index + 1]
        joined = _is_range(text, first, second) or _LIST.match(_text_between(text, first, second))
        if first.lacks_year and joined and second.year is not None and second.unit != "year":
            year = second.year
            if _is_range(text, first, second) and _sort_key_in_year(first) > _sort_key_in_year(
                second
            ):
                year -= 1
            expressions[index] = replace(first, year=year)
    for index in range(1, len(expressions)):
        first, second = expressions[index - 1], expressions[index]
        gap = _text_between(text, first, second)
        ranged = _is_range(text, first, second)
        if second.lacks_year and first.year is not None and (ranged or _LIST.match(gap)):
            year = first.year + (
                1 if ranged and _sort_key_in_year(second) < _sort_key_in_year(first) else 0
            )
            if first.unit != "year":
                expressions[index] = replace(second, year=year)
        elif (
            second.unit == "year"
            and first.unit in ("month", "season", "quarter", "half", "day")
            and first.year is not None
            and not ranged
            and _LIST.match(gap)
        ):
            # "June 2014 and 2015" means June of both years.
            expressions[index] = replace(
                second, unit=first.unit, part=first.part, portion=first.portion
            )
    return _spread_single_year(expressions)


def _apply_assumed_year(expression: TimeExpression, year: int | None) -> TimeExpression:
    """Apply the default year to a part of a month or season that has no year.

    Without a default year, the qualifier (such as "early" in "early June") is dropped.
    """
    if not expression.lacks_year or expression.portion is None:
        return expression
    if year is not None:
        return replace(expression, year=year)
    return replace(
        expression, portion=None, start_index=expression.end_index - len(expression.text)
    )


def _spread_single_year(expressions: list[TimeExpression]) -> list[TimeExpression]:
    """Apply the only year in a text, as in "In 2015, ... June ... July", to all expressions."""
    years = [item for item in expressions if item.unit == "year" and item.portion is None]
    lacking = [item for item in expressions if item.lacks_year]
    if len(years) != 1 or not lacking:
        return expressions
    return [
        replace(item, year=years[0].year) if item.lacks_year else item
        for item in expressions
        if item is not years[0]
    ]


def _sort_key_in_year(expression: TimeExpression) -> tuple[int, int]:
    if isinstance(expression.part, tuple):
        return expression.part
    if isinstance(expression.part, str):
        # The winter of a year starts before its spring.
        return {"winter": 0, "spring": 3, "summer": 6, "autumn": 9}[expression.part], 0
    return (expression.part or 0), 0


def _consume_expression(
    text: str,
    expressions: list[TimeExpression],
    position: int,
    options: TimeOptions,
    result: ParsedTime,
    names: list[str],
) -> int:
    """Add the time expression at an index, or the range that starts with it, to the result.

    Returns:
        The number of expressions used.
    """
    expression = expressions[position]
    following = expressions[position + 1] if position + 1 < len(expressions) else None
    before = text[: expression.start_index]
    if following is not None and _is_range(text, expression, following):
        result.spans.append((expression.start_index, following.end_index))
        if expression.lacks_year and following.lacks_year:
            _add_recurring_range(expression, following, options, result, names)
            return 2
        if not expression.lacks_year and not following.lacks_year:
            first, last = (
                resolve_period(expression, options.southern),
                resolve_period(following, options.southern),
            )
            if first.start and last.end and first.start < last.end:
                label = f"{date_text(first.start)} to {date_text(last.end - timedelta(days=1))}"
                result.periods.append(Period(first.start, last.end, label))
                result.endpoints = [first, last]
                return 2
    if expression.lacks_year:
        _add_recurring(expression, options, result, names)
        return 1
    result.periods.append(_apply_preposition(before, resolve_period(expression, options.southern)))
    return 1


def _apply_preposition(before: str, period: Period) -> Period:
    if _AFTER.search(before):
        return Period(period.end, None, f"after {period.label}")
    if _BEFORE.search(before):
        return Period(None, period.start, f"before {period.label}")
    if _FROM.search(before) and " to " in period.label:
        return period  # "from 3 to 5 May 2024"
    if _SINCE.search(before):
        return Period(period.start, None, f"since {period.label}")
    if _UNTIL.search(before):
        return Period(None, period.end, f"until the end of {period.label}")
    return period


def _list_months(expression: TimeExpression, southern: bool) -> list[int]:
    if isinstance(expression.part, str):
        return season_months(expression.part, southern)
    if not isinstance(expression.part, int):
        return []
    length = {"month": 1, "quarter": 3, "half": 6}[expression.unit]
    first = (expression.part - 1) * length + 1
    return list(range(first, first + length))


def _add_recurring(
    expression: TimeExpression, options: TimeOptions, result: ParsedTime, names: list[str]
) -> None:
    names.append(expression.text.strip())
    if isinstance(expression.part, tuple):
        result.days.append(f"{expression.part[0]:02d}-{expression.part[1]:02d}")
    else:
        result.months += [
            month
            for month in _list_months(expression, options.southern)
            if month not in result.months
        ]


def _add_recurring_range(
    first: TimeExpression,
    last: TimeExpression,
    options: TimeOptions,
    result: ParsedTime,
    names: list[str],
) -> None:
    names.append(f"{first.text.strip()} to {last.text.strip()}")
    if isinstance(first.part, tuple) and isinstance(last.part, tuple):
        month, day = first.part
        while True:
            result.days.append(f"{month:02d}-{day:02d}")
            if (month, day) == last.part:
                return
            day += 1
            if day > {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}.get(month, 31):
                month, day = month % 12 + 1, 1
    begin = _list_months(first, options.southern)
    finish = _list_months(last, options.southern)
    if not begin or not finish:
        _add_recurring(first, options, result, names)
        _add_recurring(last, options, result, names)
        return
    month = begin[0]
    while month != finish[-1]:
        result.months.append(month)
        month = month % 12 + 1
    result.months.append(finish[-1])


def _remove_enclosing_periods(text: str, result: ParsedTime) -> None:
    """Remove duplicate periods and those that only give the year or month of a different period."""
    if _COMPARE.search(text):
        unique: list[Period] = []
        for interval in result.periods:
            if interval not in unique:
                unique.append(interval)
        result.periods = unique
        return
    remaining: list[Period] = []
    for interval in result.periods:
        enclosed = [
            other
            for other in result.periods
            if other != interval
            and other.start
            and other.end
            and (interval.start is None or interval.start <= other.start)
            and (interval.end is None or interval.end >= other.end)
        ]
        if not enclosed and interval not in remaining:
            remaining.append(interval)
    # "Since 2010 until 2012" or "after May, before August": two open periods form one range.
    if len(remaining) == 2:
        starts = [i for i in remaining if i.start and i.end is None]
        ends = [i for i in remaining if i.end and i.start is None]
        if starts and ends and starts[0].start and ends[0].end and starts[0].start < ends[0].end:
            label = f"{starts[0].label}, {ends[0].label}"
            remaining = [Period(starts[0].start, ends[0].end, label)]
    result.periods = remaining


def _describe_times(result: ParsedTime, recurring: list[str]) -> str:
    text = join_list([period.label for period in result.periods])
    extra = ", ".join(recurring)
    if text and extra:
        return f"{extra}, {text}"
    return text or extra or "the whole data"
