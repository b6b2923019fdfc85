"""Time expressions and the calendar arithmetic that resolves them to periods."""

from __future__ import annotations

import calendar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked

from capgraph.base import ValidationError
from capgraph.capabilities.formatting import date_text

# The names in ``calendar`` depend on the locale of the application.
_MONTHS = "january february march april may june july august september october november december"
MONTH_NAMES = _MONTHS.split()
DAY_NAMES = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
MONTHS = {name: number for number, name in enumerate(MONTH_NAMES, 1)}
MONTHS |= {name[:3]: number for name, number in MONTHS.items()} | {"sept": 9}
WEEKDAYS = {name: number for number, name in enumerate(DAY_NAMES)}
WEEKDAYS |= {name[:3]: number for name, number in WEEKDAYS.items()}
WEEKDAYS |= {"tues": 1, "thurs": 3, "thur": 3, "weds": 2}
_NUMBERS = "one two three four five six seven eight nine ten eleven twelve"
NUMBERS = {name: number for number, name in enumerate(_NUMBERS.split(), 1)}
_DAYS_OF_YEAR = 365
ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "1st": 1, "2nd": 2, "3rd": 3}
ORDINALS["4th"] = 4

# First month of each season in the northern hemisphere. In the southern one it is 6 months later.
_SEASON_START = {"spring": 3, "summer": 6, "autumn": 9, "winter": 12}


@dataclass(frozen=True)
class TimeOptions:
    """Options of the parser for natural-language time expressions.

    Attributes:
        now: Reference time for relative expressions such as "last week", without a time zone.
        day_first: True to read ambiguous dates such as 03/04/2015 with the day first.
        southern: True for the southern hemisphere, where summer is December to February.
        year: Default year for parts of a month or season. If omitted, parts without a year are
            ignored.
    """

    now: datetime
    day_first: bool = False
    southern: bool = False
    year: int | None = None


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class Period:
    """Period of local time with an exclusive end.

    If ``start`` or ``end`` is ``None``, the period is unbounded on that side.
    """

    start: datetime | None = None
    end: datetime | None = None
    label: str = ""


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class DataWindow:
    """Window at the beginning or end of the data's time range, such as the last five years."""

    edge: Literal["first", "last"]
    amount: Annotated[int, Field(ge=1)]
    unit: Literal["hour", "day", "week", "month", "quarter", "year", "decade"]


@dataclass
class ParsedTime:
    """Periods and recurring times that a text contains.

    Attributes:
        periods: Periods in the order of the text. An empty list means all data.
        endpoints: For one range "from A to B", A and B as separate periods.
        months: Months of any year ("in March").
        days: Days of any year ("on 4 July"), as ``MM-DD``.
        weekdays: Days of the week; 0 is Monday.
        hours: Hours of the day.
        window: First or last part of the data's time range.
        spans: Start and end indexes of the time expressions in the text.
        label: Description of all times in words.
    """

    periods: list[Period] = field(default_factory=list)
    endpoints: list[Period] = field(default_factory=list)
    months: list[int] = field(default_factory=list)
    days: list[str] = field(default_factory=list)
    weekdays: list[int] = field(default_factory=list)
    hours: list[int] = field(default_factory=list)
    window: DataWindow | None = None
    spans: list[tuple[int, int]] = field(default_factory=list)
    label: str = "the whole data"


@dataclass(frozen=True)
class TimeExpression:
    """Time expression in a text, with its position and parsed parts.

    Attributes:
        start_index: Start index in the text.
        end_index: End index in the text.
        unit: ``day``, ``month``, ``quarter``, ``half``, ``season``, ``year``, ``decade``, or
            ``fixed``.
        year: Year, if the text states one.
        part: Number of the month, quarter, or half; ``(month, day)``; or name of the season.
        portion: Part of the period, such as ``("first", 2, "week")`` or ``("early", 1, "")``.
        period: Period of a ``fixed`` expression.
        text: Text of the expression.
    """

    start_index: int
    end_index: int
    unit: str
    year: int | None = None
    part: int | str | tuple[int, int] | None = None
    portion: tuple[str, int, str] | None = None
    period: Period | None = None
    text: str = ""

    @property
    def lacks_year(self) -> bool:
        """True if the expression has no year, so that the year must come from elsewhere."""
        return self.unit != "fixed" and self.year is None


def add_months(moment: datetime, months: int) -> datetime:
    """Add a number of months to a time, with the day limited to the length of the month.

    >>> add_months(datetime(2012, 1, 31), 1)
    datetime.datetime(2012, 2, 29, 0, 0)
    """
    index = moment.year * 12 + moment.month - 1 + months
    year, month = divmod(index, 12)
    day = min(moment.day, calendar.monthrange(year, month + 1)[1])
    return moment.replace(year=year, month=month + 1, day=day)


def shift(moment: datetime, amount: int, unit: str) -> datetime:
    """Add a number of time units to a time, such as three weeks or two decades."""
    if unit in ("minute", "hour", "day", "week"):
        return moment + timedelta(**{f"{unit}s": amount})
    return add_months(
        moment, amount * {"month": 1, "quarter": 3, "half": 6, "year": 12, "decade": 120}[unit]
    )


def floor(moment: datetime, unit: str) -> datetime:
    """Round a time down to the start of a time unit, such as an hour, a quarter, or a decade.

    >>> floor(datetime(2015, 8, 19, 7), "quarter")
    datetime.datetime(2015, 7, 1, 0, 0)
    """
    if unit == "hour":
        return moment.replace(minute=0, second=0, microsecond=0)
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit == "day":
        return day
    if unit == "week":
        return day - timedelta(days=day.weekday())
    if unit == "year":
        return day.replace(month=1, day=1)
    if unit == "decade":
        return day.replace(year=day.year // 10 * 10, month=1, day=1)
    step = {"month": 1, "quarter": 3, "half": 6}[unit]
    return day.replace(month=(day.month - 1) // step * step + 1, day=1)


def parse_day(year: int, month: int, day: int, text: str) -> datetime:
    """Return a date, or raise an error if the date does not exist.

    Raises:
        ValidationError: The month or the day does not exist.
    """
    if not 1 <= month <= 12:
        raise ValidationError(
            f"{text.strip()!r} is not a date: month {month} does not exist.",
            fix="Write it as 2015-07-19 or 19 July 2015.",
        )
    last = calendar.monthrange(year, month)[1] if year else 29
    if not 1 <= day <= last:
        raise ValidationError(
            f"{text.strip()!r} is not a valid date, because {calendar.month_name[month]}{(f' {year}' if year else '')} "
            f"has {last} days.",
            fix="Write an existing date, such as 28 February 2015.",
        )
    return datetime(year or 2000, month, day)


def season_months(season: str, southern: bool) -> list[int]:
    """Return the numbers of the three months in a season.

    >>> season_months("winter", southern=False)
    [12, 1, 2]
    """
    first = _SEASON_START[season] + (6 if southern else 0)
    return [(first + offset - 1) % 12 + 1 for offset in range(3)]


def resolve_period(expression: TimeExpression, southern: bool = False) -> Period:
    """Convert a time expression with a year to a period with start and end dates.

    Raises:
        ValidationError: The expression has no year or does not name an existing period.
    """
    if expression.period is not None:
        period = expression.period
    else:
        year = expression.year
        if year is None:
            raise ValidationError(
                f"The time expression {expression.text!r} must include a year.", fix="Add the year."
            )
        period = _whole_period(expression, year, southern)
    return _select_portion(period, expression.portion) if expression.portion else period


def _whole_period(expression: TimeExpression, year: int, southern: bool) -> Period:
    part = expression.part
    if expression.unit == "year":
        return Period(datetime(year, 1, 1), datetime(year + 1, 1, 1), str(year))
    if expression.unit == "decade":
        return Period(datetime(year, 1, 1), datetime(year + 10, 1, 1), f"the {year}s")
    if expression.unit == "day" and isinstance(part, tuple):
        start = parse_day(year, part[0], part[1], expression.text)
        return Period(start, start + timedelta(days=1), date_text(start))
    if expression.unit == "season" and isinstance(part, str):
        months = season_months(part, southern)
        # A season that spans two years belongs to the year of its January.
        start = datetime(year - 1 if months[0] == 12 else year, months[0], 1)
        end = add_months(start, 3)
        days = f"{date_text(start)} to {date_text(end - timedelta(days=1))}"
        return Period(start, end, f"{part} {year} ({days})")
    if not isinstance(part, int):
        raise ValidationError(
            f"The time expression {expression.text!r} does not name a period.",
            fix="Write dates instead.",
        )
    length = {"month": 1, "quarter": 3, "half": 6}[expression.unit]
    start = datetime(year, (part - 1) * length + 1, 1)
    name = {
        "month": f"{calendar.month_name[start.month]} {year}",
        "quarter": f"Q{part} {year}",
        "half": f"the {'first' if part == 1 else 'second'} half of {year}",
    }[expression.unit]
    return Period(start, add_months(start, length), name)


def _select_portion(period: Period, portion: tuple[str, int, str]) -> Period:
    which, amount, unit = portion
    start, end = period.start, period.end
    if start is None or end is None:
        return period
    if which in ("early", "mid", "late"):
        third = {"early": 0, "mid": 1, "late": 2}[which]
        months = (end.year - start.year) * 12 + end.month - start.month
        if months >= 3:
            cuts = [add_months(start, months * n // 3) for n in range(4)]
        else:
            days = (end - start).days
            cuts = [start + timedelta(days=round(days * n / 3)) for n in range(4)]
        days_text = f"{date_text(cuts[third])} to {date_text(cuts[third + 1] - timedelta(days=1))}"
        return Period(cuts[third], cuts[third + 1], f"{which} {period.label} ({days_text})")
    plural = f"{amount} {unit}s" if amount > 1 else unit
    parts = {"half": 2, "quarter": 4}.get(unit, 0)
    if parts and (end - start).days < _DAYS_OF_YEAR:
        # Halves and quarters of shorter periods are not calendar units.
        days = (end - start).days
        first = parts - amount if which == "last" else ORDINALS.get(which, 1) - 1
        begin = start + timedelta(days=days * first // parts)
        finish = start + timedelta(days=days * (first + amount) // parts)
    elif which == "last":
        begin, finish = shift(end, -amount, unit), end
    else:
        # "The second week" is one unit after the first; "the first two weeks" are two units.
        skip = ORDINALS.get(which, 1) - 1
        begin = shift(start, skip, unit)
        finish = shift(begin, amount, unit)
    if begin >= end or finish <= start:
        raise ValidationError(
            f"There is no {which} {unit} in the period {period.label}.",
            fix="Name a part that exists.",
        )
    return Period(max(begin, start), min(finish, end), f"the {which} {plural} of {period.label}")
