"""Functions that detect the formats of numbers and times in cells, and return SQL that parses them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from capgraph.capabilities.data.session import quote_identifier, quote_literal
from capgraph.capabilities.data.words import fold, split_name, word_set

MISSING_MARKS = (
    "",
    "-",
    "--",
    "na",
    "n/a",
    "nan",
    "null",
    "none",
    "nil",
    "?",
    ".",
    "missing",
    "-999.0",
)
MISSING_MARKS_SQL = ", ".join(quote_literal(mark) for mark in MISSING_MARKS)
"""``MISSING_MARKS``, the texts of empty cells, as a list of SQL literals."""
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
# Affixes of a number: signs, currencies, a percent sign; brackets mean a minus sign.
_NUMBER_PREFIX = r"^[-+]?\s*(?:[$€£¥]|USD|EUR|GBP|CHF)?\s*[-+]?\s*"
_NUMBER_SUFFIX = r"\s*(?:[%$€£¥]|USD|EUR|GBP|CHF)?$"
_GROUP_SEPARATORS = "\u00a0\u202f' "
_GROUPED_DIGITS = {
    "plain": rf"(?:\d{{1,3}}(?:[,{_GROUP_SEPARATORS}]\d{{3}})+|\d+)(?:\.\d*)?|\.\d+",
    "comma": rf"(?:\d{{1,3}}(?:[.{_GROUP_SEPARATORS}]\d{{3}})+|\d+)(?:,\d*)?|,\d+",
}
_WRITTEN_NUMBERS = {
    name: (
        rf"{_NUMBER_PREFIX}(?:{body}){_NUMBER_SUFFIX}",
        rf"^\(\s*{_NUMBER_PREFIX[1:]}(?:{body}){_NUMBER_SUFFIX[:-1]}\s*\)$",
    )
    for name, body in _GROUPED_DIGITS.items()
}
_ISO = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}(?:[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)?\s*Z?")
_ISO_ZONE = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?\s*[+-]\d{2}:?\d{0,2}"
)
_CLOCK_FORMATS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p", "T%H:%M:%S", ", %H:%M")
_DATE_FORMATS = (
    "%b %d %Y", "%B %d %Y", "%b %d, %Y", "%B %d, %Y", "%d %b %Y", "%d %B %Y", "%d-%b-%Y",
    "%d-%b-%y", "%d.%m.%Y", "%d.%m.%y", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y",
    "%d-%m-%Y", "%m-%d-%Y", "%a %b %d %Y", "%a, %d %b %Y", "%Y.%m.%d",
)  # fmt: skip
# A time without a separator may only follow a date of fixed width. Otherwise 05/14/2021 would
# parse as the year 20 and a time.
_FORMATS = [date + clock for date in _DATE_FORMATS for clock in _CLOCK_FORMATS]
_FORMATS += ["%Y%m%d" + clock for clock in ("", " %H:%M", " %H:%M:%S", "T%H%M%S", "%H", "%H%M")]
_FORMATS += ["%Y-%m", "%Y/%m", "%b %Y", "%B %Y", "%b-%Y", "%b-%y", "%Y %b", "%Y %B", "%m/%Y"]
_FORMATS += ["%Y-%m-%d %H"]
# Unambiguous formats, accepted in addition to the main format of a column.
_UNAMBIGUOUS_FORMATS = [
    date + clock
    for date in ("%d %b %Y", "%d %B %Y", "%b %d %Y", "%B %d %Y", "%b %d, %Y", "%B %d, %Y",
                 "%d-%b-%Y", "%d.%m.%Y", "%Y/%m/%d", "%Y.%m.%d")
    for clock in ("", " %H:%M", " %H:%M:%S")
]  # fmt: skip
_TIME_NAMES = word_set(
    "date time datetime timestamp ts day month year yr week period when datum zeit jahr "
    "tag monat fecha data dia hora anio ano annee jour mois stamp epoch unix created "
    "occurred dt at quarter"
)
_MAX_SCANNED_COLUMNS = 200
_EPOCHS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
# Prefixes of month names in several European languages, which no strptime format covers.
_MONTHS = (
    "jan|ene|gen", "feb|fev|fév", "mar|mär|maer|mrz", "apr|avr|abr", "may|mai|mag", "jun|jui?n|giu",
    "jul|juil|lug", "aug|ago|aoû|aou", "sep|set", "oct|okt|ott|out", "nov", "dec|dez|dic|déc",
)  # fmt: skip
_NAMED_MONTH = re.compile(rf"(?:{'|'.join(_MONTHS)})[^\W\d]*\.?[ -]\d{{4}}", re.IGNORECASE)


@dataclass(frozen=True)
class TimeColumns:
    """One or more table columns that together contain the timestamp of a row.

    Attributes:
        columns: Names of the columns.
        format: Format of the text.
        timezone: Target time zone for times that state a zone.
    """

    columns: tuple[str, ...]
    format: str
    timezone: str


def number_sql(number_format: str, name: str) -> str:
    """Return SQL that converts a column to numbers, with ``NULL`` for cells that are not numeric.

    >>> number_sql("native", "x")
    '(CASE WHEN isfinite(TRY_CAST(x AS DOUBLE)) THEN TRY_CAST(x AS DOUBLE) END)'
    """
    text = f"trim(CAST({name} AS VARCHAR))"
    if number_format == "flag":
        return f"CAST(CAST({name} AS INTEGER) AS DOUBLE)"
    value = f"TRY_CAST({name if number_format == 'native' else text} AS DOUBLE)"
    if number_format in _WRITTEN_NUMBERS:
        written = _formatted_number_sql(text, number_format)
        # With decimal commas, 1.250 means 1250.
        value = written if number_format == "comma" else f"coalesce({value}, {written})"
    return f"(CASE WHEN isfinite({value}) THEN {value} END)"


def _formatted_number_sql(text: str, number_format: str) -> str:
    """Return SQL that parses formatted numbers.

    The numbers may have thousands separators, currency signs, or accounting-style parentheses.
    """
    bare = f"regexp_replace({text}, '[^0-9,.+-]', '', 'g')"
    if number_format == "comma":
        bare = f"replace(replace({bare}, '.', ''), ',', '.')"
    else:
        bare = f"replace({bare}, ',', '')"
    signed, bracketed = (quote_literal(form) for form in _WRITTEN_NUMBERS[number_format])
    return (
        f"TRY_CAST(CASE WHEN regexp_matches({text}, {signed}) THEN {bare}"
        f" WHEN regexp_matches({text}, {bracketed}) THEN '-' || {bare} END AS DOUBLE)"
    )


def unreadable_sql(name: str, value: str) -> str:
    """Return a SQL condition that selects cells that cannot be parsed.

    Empty cells and markers for missing values, such as ``n/a``, are not selected.
    """
    text = f"lower(trim(CAST({name} AS VARCHAR)))"
    return f"({value} IS NULL AND {text} IS NOT NULL AND {text} NOT IN ({MISSING_MARKS_SQL}))"


def has_time_name(name: str) -> bool:
    """Return True if a column name suggests that the column contains dates or times.

    >>> has_time_name("Death_Date"), has_time_name("price")
    (True, False)
    """
    return bool(_TIME_NAMES.intersection(split_name(name)))


def detect_time_format(name: str, values: Sequence[str], day_first: bool = False) -> str | None:
    """Detect the date or time format of a column's values, or return ``None`` if there is none.

    >>> detect_time_format("d", ["Jan 1 2000"]), detect_time_format("year", ["1931", "1932"])
    ('format:%b %d %Y', 'year')
    """
    present = [value.strip() for value in values if fold(value.strip()) not in MISSING_MARKS]
    if not present:
        return None
    needed = max(1, round(0.9 * len(present)))
    iso = sum(bool(_ISO.fullmatch(value)) for value in present)
    if iso + sum(bool(_ISO_ZONE.fullmatch(value)) for value in present) >= needed:
        return "iso" if iso >= needed else "zoned"
    if all(_NUMBER.fullmatch(value) for value in present):
        return _detect_numeric_format(name, present)
    if all(re.fullmatch(r"\d{4}[- ]?Q[1-4]", value) for value in present):
        return "quarter"
    fitting = [fmt for fmt in _FORMATS if _count_parsed(fmt, present[:200]) >= min(needed, 180)]
    if not fitting:
        if sum(bool(_NAMED_MONTH.fullmatch(value)) for value in present) >= needed:
            return "named month"
        clear = [
            value for value in present[:200] if _ISO.fullmatch(value) or _is_unambiguous(value)
        ]
        return "iso" if len(clear) >= min(needed, 180) else None
    if len(fitting) > 1:
        # For 03/04/2015, the order of the rows shows which number is the month.
        fitting.sort(
            key=lambda fmt: (
                _count_descents(fmt, present[:200]),
                _get_order_penalty(fmt, day_first),
            )
        )
    return f"format:{fitting[0]}"


def _is_unambiguous(value: str) -> bool:
    return any(_parse_time(fmt, value) is not None for fmt in _UNAMBIGUOUS_FORMATS)


def _get_order_penalty(fmt: str, day_first: bool) -> int:
    return 0 if (fmt.find("%d") < fmt.find("%m")) == day_first else 1


def _parse_time(fmt: str, value: str) -> datetime | None:
    try:
        return datetime.strptime(value, fmt)
    except ValueError:
        return None


def _count_parsed(fmt: str, values: list[str]) -> int:
    if (
        _parse_time(fmt, values[0]) is None
        and len(values) > 20
        and _parse_time(fmt, values[1]) is None
    ):
        return 0
    return sum(_parse_time(fmt, value) is not None for value in values)


def _count_descents(fmt: str, values: list[str]) -> int:
    moments = [moment for value in values if (moment := _parse_time(fmt, value))]
    return sum(b < a for a, b in pairwise(moments))


def _detect_numeric_format(name: str, values: list[str]) -> str | None:
    numbers = [float(value) for value in values]
    low, high = min(numbers), max(numbers)
    is_whole = all(number == int(number) for number in numbers)
    has_name = has_time_name(name)
    words = set(split_name(name))
    if is_whole and low >= 1000 and high <= 2200 and words & {"year", "yr", "jahr", "anno", "ano"}:
        return "year"
    if (
        is_whole
        and low >= 1500
        and high <= 2200
        and has_name
        and not words & {"day", "week", "month"}
    ):
        return "year"
    if is_whole and low >= 15000101 and high <= 22001231 and has_name:
        return "format:%Y%m%d" if _count_parsed("%Y%m%d", values) >= 0.9 * len(values) else None
    if is_whole and low >= 150001 and high <= 220012 and has_name:
        return "yearmonth"
    if not has_name:
        return None
    for unit, factor in _EPOCHS.items():
        # Unix times between 1980 and 2100 in this unit.
        if 3.1e8 * factor <= low and high <= 4.2e9 * factor:
            return f"epoch_{unit}"
    return None


def _month_number_sql(text: str) -> str:
    cases = " ".join(
        f"WHEN regexp_matches({text}, {quote_literal(f'(?i)^({names})')}) THEN {number}"
        for number, names in enumerate(_MONTHS, 1)
    )
    return f"CASE {cases} END"


def _parse_date_sql(text: str) -> str:
    """Return SQL that parses dates in ISO 8601 or another unambiguous format."""
    forms = ", ".join(quote_literal(fmt) for fmt in _UNAMBIGUOUS_FORMATS)
    return f"coalesce(TRY_CAST({text} AS TIMESTAMP), try_strptime({text}, [{forms}]))"


def time_sql(time: TimeColumns, alias: str = "") -> str:
    """Return a SQL expression that converts a row's time columns to a local ``TIMESTAMP``."""
    names = [alias + quote_identifier(column) for column in time.columns]
    text = f"trim(CAST({names[0]} AS VARCHAR))"
    reading, _, extra = time.format.partition("+")
    zone = quote_literal(time.timezone)
    integer = f"TRY_CAST({text} AS BIGINT)"
    if reading == "parts":
        numbers = [f"TRY_CAST({name} AS BIGINT)" for name in names]
        year, month, day, hour = [*numbers, *["1", "1", "1", "0"][len(numbers) :]]
        base = f"(TRY(make_timestamp({year}, {month}, {day}, 0, 0, 0)) + to_hours({hour}))"
    elif reading.startswith("format:"):
        fmt = reading.removeprefix("format:")
        base = f"try_strptime({text}, {quote_literal(fmt)})"
        if "%d" in fmt and re.search("%[Yy]", fmt) and fmt.count("%") > 1 and fmt != "%Y%m%d":
            base = f"coalesce({base}, {_parse_date_sql(text)})"
    elif reading.startswith("epoch_"):
        factor = _EPOCHS[reading.removeprefix("epoch_")]
        seconds = f"TRY_CAST({text} AS DOUBLE) / {factor!r}"
        base = f"(to_timestamp({seconds}) AT TIME ZONE {zone})"
    else:
        base = {
            "iso": _parse_date_sql(text),
            "native": f"CAST({names[0]} AS TIMESTAMP)",
            "zoned": f"(TRY_CAST({text} AS TIMESTAMPTZ) AT TIME ZONE {zone})",
            "nativetz": f"({names[0]} AT TIME ZONE {zone})",
            "year": _month_start_sql(integer, "1"),
            "yearmonth": _month_start_sql(f"{integer} // 100", f"{integer} % 100"),
            "named month": _month_start_sql(
                f"TRY_CAST(right({text}, 4) AS BIGINT)", _month_number_sql(text)
            ),
            "quarter": _month_start_sql(
                f"TRY_CAST(left({text}, 4) AS BIGINT)",
                f"TRY_CAST(right({text}, 1) AS BIGINT) * 3 - 2",
            ),
        }[reading]
    if extra == "time":
        clock = f"TRY_CAST(trim(CAST({names[1]} AS VARCHAR)) AS TIME)"
        return f"({base} + (coalesce({clock}, TIME '00:00') - TIME '00:00'))"
    if extra:
        number = f"TRY_CAST({names[1]} AS INTEGER)"
        added = f"to_months(3 * {number} - 3)" if extra == "quarter" else f"to_hours({number})"
        return f"({base} + {added})"
    return base


def _month_start_sql(year: str, month: str) -> str:
    return f"TRY(make_timestamp({year}, {month}, 1, 0, 0, 0))"


def find_time_columns(
    column_types: Sequence[tuple[str, str]],
    samples: Mapping[str, Sequence[str]],
    timezone: str,
    day_first: bool,
) -> list[TimeColumns]:
    """Find the columns that may contain the timestamp of each row, most likely first.

    Args:
        column_types: Name and DuckDB type of each column.
        samples: Sample values by column name.
        timezone: Target time zone for times that state a zone.
        day_first: True to read ambiguous dates such as 03/04/2015 with the day first.
    """
    found = []
    for place, (name, kind) in enumerate(column_types):
        if place >= _MAX_SCANNED_COLUMNS and not has_time_name(name):
            continue  # trying every format on thousands of columns takes minutes
        if kind == "DATE" or kind.startswith("TIMESTAMP"):
            reading: str | None = "nativetz" if "ZONE" in kind else "native"
        else:
            reading = detect_time_format(name, samples[name], day_first)
        if reading:
            found.append(TimeColumns((name,), reading, timezone))
    parts = _find_date_parts(samples, timezone)
    if parts is not None and all(time.format == "year" for time in found):
        return [parts]
    if parts is not None and len(parts.columns) > 2:  # a separate timestamp may be in another zone
        return [parts, *(time for time in found if _has_day_precision(time))]
    rows = max(map(len, samples.values()), default=0)

    def rank(time: TimeColumns) -> tuple[bool, bool, bool, bool]:
        """Return the sort key that ranks candidate time columns, with the best candidate first.

        If several columns rank equally, the first column without missing values is chosen.
        """
        values = samples[time.columns[0]]
        named, filled = has_time_name(time.columns[0]), len(values) >= 0.98 * rows
        return not _has_day_precision(time), not named, not filled, len(set(values)) == 1

    found.sort(key=rank)
    others = [time for time in found[1:5] if _has_day_precision(time)]
    return [_add_clock_column(found[0], column_types, samples), *others] if found else []


def _has_day_precision(time: TimeColumns) -> bool:
    return time.format.startswith(("iso", "zoned", "native", "epoch")) or "%d" in time.format


def _find_date_parts(samples: Mapping[str, Sequence[str]], timezone: str) -> TimeColumns | None:
    """Find separate year, month, day, and hour columns that together form a date.

    Returns ``None`` if the table has no such columns.
    """
    found: list[str] = []
    for names, low, high in (
        ("year yr yyyy jahr", 1000, 2200), ("month mon mo mm monat", 1, 12),
        ("day dy dd dom tag", 1, 31), ("hour hr hh", 0, 24),
    ):  # fmt: skip
        fitting = [
            name
            for name, values in samples.items()
            if split_name(name) in [[n] for n in names.split()]
            and _are_all_between(values, low, high)
        ]
        if not fitting:
            break
        found.append(fitting[0])
    return TimeColumns(tuple(found), "parts", timezone) if len(found) >= 2 else None


def _are_all_between(values: Sequence[str], low: int, high: int) -> bool:
    try:
        return bool(values) and all(low <= float(value) <= high for value in values)
    except ValueError:
        return False


def _add_clock_column(
    time: TimeColumns, column_types: Sequence[tuple[str, str]], samples: Mapping[str, Sequence[str]]
) -> TimeColumns:
    """Combine a year or date column with the column that makes the timestamp more precise.

    The added column contains quarters, hours, or times of day.
    """
    coarse = time.format in ("year", "yearmonth", "quarter", "named month")
    clocks = [value for value in samples[time.columns[0]][:200] if ":" in value]
    if any(not value.endswith("00:00:00") for value in clocks):
        return time
    for name, kind in column_types:
        words, values = split_name(name), samples[name]
        extra = None
        if time.format == "year" and words in (["quarter"], ["qtr"]):
            extra = "quarter" if _are_all_between(values, 1, 4) else None
        elif not coarse and words in (["hour"], ["hr"], ["hh"]):
            extra = "hour" if _are_all_between(values, 0, 24) else None
        elif not coarse and (kind == "TIME" or "time" in words) and values:
            extra = "time" if all(v.count(":") in (1, 2) for v in values[:50]) else None
        if extra and name != time.columns[0]:
            return TimeColumns((time.columns[0], name), f"{time.format}+{extra}", time.timezone)
    return time
