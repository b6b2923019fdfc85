"""How the text of a cell becomes a number or a moment: detection, and the SQL that does it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from capgraph.capabilities.data.session import identifier, literal
from capgraph.capabilities.data.words import fold, name_words, words_set

MISSING = ("", "-", "--", "na", "n/a", "nan", "null", "none", "nil", "?", ".", "missing", "-999.0")
MARKS = ", ".join(literal(mark) for mark in MISSING)
"""What stands for no value, as SQL."""
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
# What may stand around a number: a sign, a currency, a percent sign, brackets for a minus.
_BEFORE = r"^[-+]?\s*(?:[$€£¥]|USD|EUR|GBP|CHF)?\s*[-+]?\s*"
_AFTER = r"\s*(?:[%$€£¥]|USD|EUR|GBP|CHF)?$"
_SPACE = "\u00a0\u202f' "
_GROUPED = {
    "plain": rf"(?:\d{{1,3}}(?:[,{_SPACE}]\d{{3}})+|\d+)(?:\.\d*)?|\.\d+",
    "comma": rf"(?:\d{{1,3}}(?:[.{_SPACE}]\d{{3}})+|\d+)(?:,\d*)?|,\d+",
}
_WRITTEN = {
    name: (rf"{_BEFORE}(?:{body}){_AFTER}", rf"^\(\s*{_BEFORE[1:]}(?:{body}){_AFTER[:-1]}\s*\)$")
    for name, body in _GROUPED.items()
}
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
# Forms that mean one day whatever stands around them; read beside the usual form of a column.
_CLEAR = [
    date + clock
    for date in ("%d %b %Y", "%d %B %Y", "%b %d %Y", "%B %d %Y", "%b %d, %Y", "%B %d, %Y",
                 "%d-%b-%Y", "%d.%m.%Y", "%Y/%m/%d", "%Y.%m.%d")
    for clock in ("", " %H:%M", " %H:%M:%S")
]  # fmt: skip
_TIME_NAMES = words_set(
    "date time datetime timestamp ts day month year yr week period when datum zeit jahr "
    "tag monat fecha data dia hora anio ano annee jour mois stamp epoch unix created "
    "occurred dt at quarter"
)
_LOOKED_THROUGH = 200
_EPOCHS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
# Months by the names that no format knows: their first letters, in the languages around.
_MONTHS = (
    "jan|ene|gen", "feb|fev|fév", "mar|mär|maer|mrz", "apr|avr|abr", "may|mai|mag", "jun|jui?n|giu",
    "jul|juil|lug", "aug|ago|aoû|aou", "sep|set", "oct|okt|ott|out", "nov", "dec|dez|dic|déc",
)  # fmt: skip
_NAMED_MONTH = re.compile(rf"(?:{'|'.join(_MONTHS)})[^\W\d]*\.?[ -]\d{{4}}", re.IGNORECASE)


@dataclass(frozen=True)
class Time:
    """The column or columns that hold the time.

    Attributes:
        columns: Their names.
        reading: How their text becomes a moment.
        zone: Zone that moments with a zone of their own are shown in.
    """

    columns: tuple[str, ...]
    reading: str
    zone: str


def number_sql(reading: str, name: str) -> str:
    """Return SQL for the number in a column; ``NULL`` where there is none.

    >>> number_sql("native", "x")
    '(CASE WHEN isfinite(TRY_CAST(x AS DOUBLE)) THEN TRY_CAST(x AS DOUBLE) END)'
    """
    text = f"trim(CAST({name} AS VARCHAR))"
    if reading == "flag":
        return f"CAST(CAST({name} AS INTEGER) AS DOUBLE)"
    value = f"TRY_CAST({name if reading == 'native' else text} AS DOUBLE)"
    if reading in _WRITTEN:
        written = _written_sql(text, reading)
        # 1.250 is a thousand and more where commas are decimal.
        value = written if reading == "comma" else f"coalesce({value}, {written})"
    return f"(CASE WHEN isfinite({value}) THEN {value} END)"


def _written_sql(text: str, reading: str) -> str:
    """Return SQL for a number as people write it."""
    bare = f"regexp_replace({text}, '[^0-9,.+-]', '', 'g')"
    if reading == "comma":
        bare = f"replace(replace({bare}, '.', ''), ',', '.')"
    else:
        bare = f"replace({bare}, ',', '')"
    signed, bracketed = (literal(form) for form in _WRITTEN[reading])
    return (
        f"TRY_CAST(CASE WHEN regexp_matches({text}, {signed}) THEN {bare}"
        f" WHEN regexp_matches({text}, {bracketed}) THEN '-' || {bare} END AS DOUBLE)"
    )


def unread_sql(name: str, value: str) -> str:
    """Return SQL that is true where a text stands that gives no value and is no mark for none."""
    text = f"lower(trim(CAST({name} AS VARCHAR)))"
    return f"({value} IS NULL AND {text} IS NOT NULL AND {text} NOT IN ({MARKS}))"


def has_time_name(name: str) -> bool:
    """Say whether a column name speaks of time.

    >>> has_time_name("Death_Date"), has_time_name("price")
    (True, False)
    """
    return bool(_TIME_NAMES.intersection(name_words(name)))


def time_reading(name: str, values: Sequence[str], day_first: bool = False) -> str | None:
    """Say how texts become moments, or ``None`` when they are none.

    >>> time_reading("d", ["Jan 1 2000"]), time_reading("year", ["1931", "1932"])
    ('format:%b %d %Y', 'year')
    """
    present = [value.strip() for value in values if fold(value.strip()) not in MISSING]
    if not present:
        return None
    needed = max(1, round(0.9 * len(present)))
    iso = sum(bool(_ISO.fullmatch(value)) for value in present)
    if iso + sum(bool(_ISO_ZONE.fullmatch(value)) for value in present) >= needed:
        return "iso" if iso >= needed else "zoned"
    if all(_NUMBER.fullmatch(value) for value in present):
        return _numeric_time(name, present)
    if all(re.fullmatch(r"\d{4}[- ]?Q[1-4]", value) for value in present):
        return "quarter"
    fitting = [fmt for fmt in _FORMATS if _count(fmt, present[:200]) >= min(needed, 180)]
    if not fitting:
        if sum(bool(_NAMED_MONTH.fullmatch(value)) for value in present) >= needed:
            return "named month"
        clear = [value for value in present[:200] if _ISO.fullmatch(value) or _is_clear(value)]
        return "iso" if len(clear) >= min(needed, 180) else None
    if len(fitting) > 1:
        # 03/04/2015: the order of the rows tells which number is the month.
        fitting.sort(key=lambda fmt: (_descents(fmt, present[:200]), _prefers(fmt, day_first)))
    return f"format:{fitting[0]}"


def _is_clear(value: str) -> bool:
    return any(_parse(fmt, value) is not None for fmt in _CLEAR)


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
    for unit, factor in _EPOCHS.items():
        # Between 1980 and 2100, counted in this unit since 1970.
        if 3.1e8 * factor <= low and high <= 4.2e9 * factor:
            return f"epoch_{unit}"
    return None


def _month_number(text: str) -> str:
    cases = " ".join(
        f"WHEN regexp_matches({text}, {literal(f'(?i)^({names})')}) THEN {number}"
        for number, names in enumerate(_MONTHS, 1)
    )
    return f"CASE {cases} END"


def _dated(text: str) -> str:
    """Return SQL for a date in ISO form or another one that can mean one day only."""
    forms = ", ".join(literal(fmt) for fmt in _CLEAR)
    return f"coalesce(TRY_CAST({text} AS TIMESTAMP), try_strptime({text}, [{forms}]))"


def time_sql(time: Time, alias: str = "") -> str:
    """Return SQL for the moment of a row, as a local ``TIMESTAMP``."""
    names = [alias + identifier(column) for column in time.columns]
    text = f"trim(CAST({names[0]} AS VARCHAR))"
    reading, _, extra = time.reading.partition("+")
    zone = literal(time.zone)
    integer = f"TRY_CAST({text} AS BIGINT)"
    if reading == "parts":
        numbers = [f"TRY_CAST({name} AS BIGINT)" for name in names]
        year, month, day, hour = [*numbers, *["1", "1", "1", "0"][len(numbers) :]]
        base = f"(TRY(make_timestamp({year}, {month}, {day}, 0, 0, 0)) + to_hours({hour}))"
    elif reading.startswith("format:"):
        fmt = reading.removeprefix("format:")
        base = f"try_strptime({text}, {literal(fmt)})"
        if "%d" in fmt and re.search("%[Yy]", fmt) and fmt.count("%") > 1 and fmt != "%Y%m%d":
            base = f"coalesce({base}, {_dated(text)})"
    elif reading.startswith("epoch_"):
        factor = _EPOCHS[reading.removeprefix("epoch_")]
        seconds = f"TRY_CAST({text} AS DOUBLE) / {factor!r}"
        base = f"(to_timestamp({seconds}) AT TIME ZONE {zone})"
    else:
        base = {
            "iso": _dated(text),
            "native": f"CAST({names[0]} AS TIMESTAMP)",
            "zoned": f"(TRY_CAST({text} AS TIMESTAMPTZ) AT TIME ZONE {zone})",
            "nativetz": f"({names[0]} AT TIME ZONE {zone})",
            "year": _first_of(integer, "1"),
            "yearmonth": _first_of(f"{integer} // 100", f"{integer} % 100"),
            "named month": _first_of(f"TRY_CAST(right({text}, 4) AS BIGINT)", _month_number(text)),
            "quarter": _first_of(
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


def _first_of(year: str, month: str) -> str:
    return f"TRY(make_timestamp({year}, {month}, 1, 0, 0, 0))"


def find_times(
    typed: Sequence[tuple[str, str]],
    samples: Mapping[str, Sequence[str]],
    zone: str,
    day_first: bool,
) -> list[Time]:
    """Return what may be the time of a row, that which most probably is before the others.

    Args:
        typed: Names and DuckDB types of the columns.
        samples: Some values of each.
        zone: Zone that moments with a zone of their own are shown in.
        day_first: Whether 03/04/2015 is the third of April when the rows do not tell.
    """
    found = []
    for place, (name, kind) in enumerate(typed):
        if place >= _LOOKED_THROUGH and not has_time_name(name):
            continue  # trying every form on thousands of columns takes minutes
        if kind == "DATE" or kind.startswith("TIMESTAMP"):
            reading: str | None = "nativetz" if "ZONE" in kind else "native"
        else:
            reading = time_reading(name, samples[name], day_first)
        if reading:
            found.append(Time((name,), reading, zone))
    parts = _date_parts(samples, zone)
    if parts is not None and all(time.reading == "year" for time in found):
        return [parts]
    if parts is not None and len(parts.columns) > 2:  # a moment beside them may be of another zone
        return [parts, *(time for time in found if _precise(time))]
    rows = max(map(len, samples.values()), default=0)

    def rank(time: Time) -> tuple[bool, bool, bool, bool]:
        """Of several equal ones the first column counts, unless rows lack it."""
        values = samples[time.columns[0]]
        named, filled = has_time_name(time.columns[0]), len(values) >= 0.98 * rows
        return not _precise(time), not named, not filled, len(set(values)) == 1

    found.sort(key=rank)
    others = [time for time in found[1:5] if _precise(time)]
    return [_with_clock(found[0], typed, samples), *others] if found else []


def _precise(time: Time) -> bool:
    return time.reading.startswith(("iso", "zoned", "native", "epoch")) or "%d" in time.reading


def _date_parts(samples: Mapping[str, Sequence[str]], zone: str) -> Time | None:
    """Recognise dates that are spread over columns named year, month, day, hour."""
    found: list[str] = []
    for names, low, high in (
        ("year yr yyyy jahr", 1000, 2200), ("month mon mo mm monat", 1, 12),
        ("day dy dd dom tag", 1, 31), ("hour hr hh", 0, 24),
    ):  # fmt: skip
        fitting = [
            name
            for name, values in samples.items()
            if name_words(name) in [[n] for n in names.split()] and _all_between(values, low, high)
        ]
        if not fitting:
            break
        found.append(fitting[0])
    return Time(tuple(found), "parts", zone) if len(found) >= 2 else None


def _all_between(values: Sequence[str], low: int, high: int) -> bool:
    try:
        return bool(values) and all(low <= float(value) <= high for value in values)
    except ValueError:
        return False


def _with_clock(
    time: Time, typed: Sequence[tuple[str, str]], samples: Mapping[str, Sequence[str]]
) -> Time:
    """Add the column of quarters, hours or clock times that stands beside one of years or dates."""
    coarse = time.reading in ("year", "yearmonth", "quarter", "named month")
    clocks = [value for value in samples[time.columns[0]][:200] if ":" in value]
    if any(not value.endswith("00:00:00") for value in clocks):
        return time
    for name, kind in typed:
        words, values = name_words(name), samples[name]
        extra = None
        if time.reading == "year" and words in (["quarter"], ["qtr"]):
            extra = "quarter" if _all_between(values, 1, 4) else None
        elif not coarse and words in (["hour"], ["hr"], ["hh"]):
            extra = "hour" if _all_between(values, 0, 24) else None
        elif not coarse and (kind == "TIME" or "time" in words) and values:
            extra = "time" if all(v.count(":") in (1, 2) for v in values[:50]) else None
        if extra and name != time.columns[0]:
            return Time((time.columns[0], name), f"{time.reading}+{extra}", time.zone)
    return time
