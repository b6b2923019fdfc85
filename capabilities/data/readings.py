"""How the text of a cell becomes a number or a moment: detection, and the SQL that does it.

A reading is a short name that stands in the state, never SQL itself, so that what comes back
from a stored state can do no more than select columns.
"""

from __future__ import annotations

import re
from datetime import datetime
from itertools import pairwise

from capabilities.contexts import ColumnRef, TimeRef
from capabilities.data.files import identifier, literal
from capabilities.data.words import fold, name_words
from framework.base import ValidationError

MISSING = ("", "-", "--", "na", "n/a", "nan", "null", "none", "nil", "?", ".", "missing", "-999.0")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_COMMA = re.compile(r"[-+]?\d{1,3}(?:[.\s]\d{3})+(?:,\d+)?|[-+]?\d+(?:,\d+)?")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?|[-+]?\d+(?:\.\d+)?")
_SYMBOL = re.compile(r"[-+]?\s*[$€£¥]?\s*[-+]?\d[\d,]*(?:\.\d+)?\s*[%$€£¥]?")
_ISO = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}(?:[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)?\s*Z?")
_ISO_ZONE = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?\s*[+-]\d{2}:?\d{0,2}"
)
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p", "T%H:%M:%S", ", %H:%M")
_DATES = (
    "%b %d %Y", "%B %d %Y", "%b %d, %Y", "%B %d, %Y", "%d %b %Y", "%d %B %Y", "%d-%b-%Y",
    "%d-%b-%y", "%d.%m.%Y", "%d.%m.%y", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y",
    "%d-%m-%Y", "%m-%d-%Y", "%a %b %d %Y", "%a, %d %b %Y", "%Y.%m.%d",
)  # fmt: skip
# A clock without a mark before it stands only behind a date of fixed width: else the century of
# 05/14/2021 would pass for the year 20.
_FORMATS = [date + clock for date in _DATES for clock in _CLOCKS]
_FORMATS += ["%Y%m%d" + clock for clock in ("", " %H:%M", " %H:%M:%S", "T%H%M%S", "%H", "%H%M")]
_FORMATS += ["%Y-%m", "%Y/%m", "%b %Y", "%B %Y", "%b-%Y", "%b-%y", "%Y %b", "%Y %B", "%m/%Y"]
_FORMATS += ["%Y-%m-%d %H"]
_TIME_NAMES = frozenset(
    [
        "date",
        "time",
        "datetime",
        "timestamp",
        "ts",
        "day",
        "month",
        "year",
        "yr",
        "week",
        "period",
        "when",
        "datum",
        "zeit",
        "jahr",
        "tag",
        "monat",
        "fecha",
        "data",
        "dia",
        "hora",
        "anio",
        "ano",
        "annee",
        "jour",
        "mois",
        "stamp",
        "epoch",
        "unix",
        "created",
        "dt",
        "at",
        "quarter",
    ]
)


def number_reading(values: list[str], delimiter: str = ",") -> str | None:
    """Say how texts become numbers, or ``None`` when they are no numbers.

    >>> number_reading(["1.5", "2"]), number_reading(["1,5", "2"], ";"), number_reading(["a"])
    ('plain', 'comma', None)
    """
    present = [value.strip() for value in values if fold(value.strip()) not in MISSING]
    if not present:
        return None

    def share(pattern: re.Pattern[str]) -> float:
        return sum(bool(pattern.fullmatch(value)) for value in present) / len(present)

    if share(_NUMBER) >= 0.9:
        return "plain"
    readings = [("thousands", _THOUSANDS), ("comma", _COMMA), ("symbol", _SYMBOL)]
    if delimiter == ";":
        readings[:2] = reversed(readings[:2])
    return next((name for name, pattern in readings if share(pattern) >= 0.9), None)


def number_sql(column: ColumnRef) -> str:
    """Return SQL for the number in a column; ``NULL`` where there is none."""
    name = identifier(column.name)
    text = f"trim(CAST({name} AS VARCHAR))"
    sources = {
        "plain": text,
        "comma": f"replace(regexp_replace({text}, '[.\\s]', '', 'g'), ',', '.')",
        "thousands": f"replace({text}, ',', '')",
        "symbol": f"regexp_replace({text}, '[^0-9.eE+-]', '', 'g')",
        "native": name,
        "flag": f"CAST({name} AS INTEGER)",
    }
    if column.reading == "rows":
        return "1.0"
    source = sources.get(column.reading)
    if source is None:
        raise ValidationError(
            f"{column.reading!r} is no way to read a number.", fix=f"Use one of {sorted(sources)}."
        )
    value = f"TRY_CAST({source} AS DOUBLE)"
    return f"(CASE WHEN isfinite({value}) THEN {value} END)"


def has_time_name(name: str) -> bool:
    """Say whether a column name speaks of time.

    >>> has_time_name("Death_Date"), has_time_name("price")
    (True, False)
    """
    return bool(_TIME_NAMES.intersection(name_words(name)))


def time_reading(name: str, values: list[str], day_first: bool = False) -> str | None:
    """Say how texts become moments, or ``None`` when they are none.

    >>> time_reading("d", ["Jan 1 2000"]), time_reading("year", ["1931", "1932"])
    ('format:%b %d %Y', 'year')
    """
    present = [value.strip() for value in values if fold(value.strip()) not in MISSING]
    if not present:
        return None
    needed = max(1, round(0.9 * len(present)))
    if sum(bool(_ISO.fullmatch(value)) for value in present) >= needed:
        return "iso"
    if (
        sum(bool(_ISO.fullmatch(value) or _ISO_ZONE.fullmatch(value)) for value in present)
        >= needed
    ):
        return "zoned"
    if all(_NUMBER.fullmatch(value) for value in present):
        return _numeric_time(name, present)
    if all(re.fullmatch(r"\d{4}[- ]?Q[1-4]", value) for value in present):
        return "quarter"
    fitting = [fmt for fmt in _FORMATS if _count(fmt, present[:200]) >= min(needed, 180)]
    if not fitting:
        return None
    if len(fitting) > 1:
        # 03/04/2015: the order of the rows tells which number is the month.
        fitting.sort(key=lambda fmt: (_descents(fmt, present[:200]), _prefers(fmt, day_first)))
    return f"format:{fitting[0]}"


def _prefers(fmt: str, day_first: bool) -> int:
    return 0 if (fmt.find("%d") < fmt.find("%m")) == day_first else 1


def _parse(fmt: str, value: str) -> datetime | None:
    try:
        return datetime.strptime(value, fmt)
    except ValueError:
        return None


def _count(fmt: str, values: list[str]) -> int:
    if _parse(fmt, values[0]) is None and len(values) > 20 and _parse(fmt, values[1]) is None:
        return 0
    return sum(_parse(fmt, value) is not None for value in values)


def _descents(fmt: str, values: list[str]) -> int:
    moments = [moment for value in values if (moment := _parse(fmt, value))]
    return sum(b < a for a, b in pairwise(moments))


def _numeric_time(name: str, values: list[str]) -> str | None:
    numbers = [float(value) for value in values]
    low, high = min(numbers), max(numbers)
    whole = all(number == int(number) for number in numbers)
    named = has_time_name(name)
    words = set(name_words(name))
    if whole and low >= 1000 and high <= 2200 and words & {"year", "yr", "jahr", "anno", "ano"}:
        return "year"
    if whole and low >= 1500 and high <= 2200 and named and not words & {"day", "week", "month"}:
        return "year"
    if whole and low >= 15000101 and high <= 22001231 and named:
        return "format:%Y%m%d" if _count("%Y%m%d", values) >= 0.9 * len(values) else None
    if whole and low >= 150001 and high <= 220012 and named:
        return "yearmonth"
    if not named:
        return None
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)):
        # Between 1980 and 2100, counted in this unit since 1970.
        if 3.1e8 * factor <= low and high <= 4.2e9 * factor:
            return f"epoch_{unit}"
    return None


def time_sql(time: TimeRef) -> str:
    """Return SQL for the moment of a row, as a local ``TIMESTAMP``."""
    names = [identifier(column) for column in time.columns]
    text = f"trim(CAST({names[0]} AS VARCHAR))"
    reading, _, extra = time.reading.partition("+")
    zone = literal(time.zone or "UTC")
    if reading == "parts":
        numbers = [f"TRY_CAST({name} AS BIGINT)" for name in names]
        year, month, day, hour = [*numbers, *["1", "1", "1", "0"][len(numbers) :]]
        date = f"TRY(make_timestamp({year}, {month}, {day}, 0, 0, 0))"
        return f"({date} + to_hours({hour}))"
    if reading.startswith("format:"):
        base = f"try_strptime({text}, {literal(reading.removeprefix('format:'))})"
    else:
        integer = f"TRY_CAST({text} AS BIGINT)"
        real = f"TRY_CAST({text} AS DOUBLE)"
        seconds = {"epoch_s": "1", "epoch_ms": "1e3", "epoch_us": "1e6", "epoch_ns": "1e9"}
        sources = {
            "iso": f"TRY_CAST({text} AS TIMESTAMP)",
            "native": f"CAST({names[0]} AS TIMESTAMP)",
            "zoned": f"(TRY_CAST({text} AS TIMESTAMPTZ) AT TIME ZONE {zone})",
            "nativetz": f"({names[0]} AT TIME ZONE {zone})",
            "year": f"TRY(make_timestamp({integer}, 1, 1, 0, 0, 0))",
            "yearmonth": f"TRY(make_timestamp({integer} // 100, {integer} % 100, 1, 0, 0, 0))",
            "quarter": (
                f"TRY(make_timestamp(TRY_CAST(left({text}, 4) AS BIGINT),"
                f" TRY_CAST(right({text}, 1) AS BIGINT) * 3 - 2, 1, 0, 0, 0))"
            ),
        }
        if reading in seconds:
            base = f"(to_timestamp({real} / {seconds[reading]}) AT TIME ZONE {zone})"
        elif reading in sources:
            base = sources[reading]
        else:
            raise ValidationError(
                f"{reading!r} is no way to read a time.", fix=f"Use one of {sorted(sources)}."
            )
    if extra == "hour":
        return f"({base} + to_hours(TRY_CAST({names[1]} AS BIGINT)))"
    if extra == "time":
        clock = f"TRY_CAST(trim(CAST({names[1]} AS VARCHAR)) AS TIME)"
        return f"({base} + (coalesce({clock}, TIME '00:00') - TIME '00:00'))"
    return base
