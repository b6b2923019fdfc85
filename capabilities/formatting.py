"""Formatting of numbers, dates, and counts for people."""

from __future__ import annotations

import calendar
from datetime import datetime, timedelta


def number_text(value: float, decimals: int) -> str:
    """Format a number with fixed decimals, and with thousands separators from 10,000 on.

    >>> number_text(35, 1), number_text(7601.0, 0), number_text(135450.25, 1)
    ('35.0', '7601', '135,450.2')
    """
    if value != 0 and abs(value) < 0.5 * 10**-decimals:
        return f"{value:.3g}"
    text = f"{value:,.{decimals}f}" if abs(value) >= 10_000 else f"{value:.{decimals}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.,") else text


def value_text(value: float, decimals: int, unit: str | None = None) -> str:
    """Format a number with its unit.

    >>> value_text(35, 1, "°C"), value_text(12, 0, "%")
    ('35.0 °C', '12%')
    """
    text = number_text(value, decimals)
    if unit is None:
        return text
    return f"{text}%" if unit == "%" else f"{text} {unit}"


def signed_value_text(value: float, decimals: int, unit: str | None = None) -> str:
    """Format a difference between two values with a sign and a unit.

    >>> signed_value_text(2.5, 1, "°C")
    '+2.5 °C'
    """
    return ("+" if value > 0 else "") + value_text(value, decimals, unit)


def date_text(moment: datetime, frequency: str | None = "day") -> str:
    """Format a date or time with the precision of the data's sampling interval.

    >>> date_text(datetime(2015, 7, 19)), date_text(datetime(2008, 3, 1), "month")
    ('19 July 2015', 'March 2008')
    """
    if frequency == "year" and (moment.month, moment.day) == (1, 1):
        return str(moment.year)
    if frequency == "quarter" and moment.day == 1 and moment.month % 3 == 1:
        return f"Q{moment.month // 3 + 1} {moment.year}"
    month = calendar.month_name[moment.month]
    edge = moment.day in (1, 28, 29, 30, 31) and (moment.hour, moment.minute) == (0, 0)
    if frequency in ("month", "quarter", "year") and edge:
        return f"{month} {moment.year}"
    text = f"{moment.day} {month} {moment.year}"
    if frequency in ("hour", "minute") or (moment.hour, moment.minute) != (0, 0):
        text += f" at {moment:%H:%M}"
    return text


def date_range_text(first: datetime, last: datetime, frequency: str | None = "day") -> str:
    """Format the range between two dates.

    >>> date_range_text(datetime(2001, 1, 1), datetime(2017, 1, 1), "year")
    '2001 to 2017'
    """
    frequency = "day" if frequency in ("hour", "minute") else frequency
    if frequency == "day":
        first, last = (
            datetime(first.year, first.month, first.day),
            datetime(last.year, last.month, last.day),
        )
    start, end = date_text(first, frequency), date_text(last, frequency)
    return start if start == end else f"{start} to {end}"


def bucket_text(key: object, unit: str) -> str:
    """Format the label of a time group, such as a month, a weekday, or an hour of the day.

    >>> bucket_text(3, "month_of_year"), bucket_text(0, "weekday"), bucket_text(15, "hour_of_day")
    ('March', 'Monday', '15:00')
    """
    if isinstance(key, datetime):
        if unit == "week":
            return f"the week of {date_text(key)}"
        if unit == "decade":
            return f"the {key.year}s"
        return date_text(key, unit)
    if isinstance(key, (int, float)):
        number = int(key)
        if unit == "month_of_year":
            return calendar.month_name[number]
        if unit == "weekday":
            return calendar.day_name[number]
        if unit == "hour_of_day":
            return f"{number:02d}:00"
    return str(key)


def count_text(number: int, noun: str) -> str:
    """Format a count with its noun in the singular or plural.

    >>> count_text(1, "day"), count_text(1461, "day"), count_text(2, "entry")
    ('1 day', '1461 days', '2 entries')
    """
    text = f"{number:,}" if abs(number) >= 10_000 else str(number)
    if number == 1:
        return f"{text} {noun}"
    return f"{text} {noun[:-1]}ies" if noun.endswith("ry") else f"{text} {noun}s"


def join_list(items: list[str], conjunction: str = "and") -> str:
    """Join strings with commas and a final conjunction, as in a sentence.

    >>> join_list(["a", "b", "c"])
    'a, b and c'
    """
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {conjunction} {items[-1]}"


def last_day_before(end: datetime) -> datetime:
    """Return the last moment before the exclusive end of a time period.

    The result is one microsecond earlier than ``end``.
    """
    return end - timedelta(microseconds=1)
