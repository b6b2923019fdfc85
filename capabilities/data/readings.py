"""How the text of a cell becomes a number or a moment: detection, and the SQL that does it.

A reading is a short name that stands in the state, never SQL itself, so that what comes back
from a stored state can do no more than select columns.
"""

from __future__ import annotations

import re
from datetime import datetime
from itertools import pairwise

from capabilities.contexts import ColumnRef, TimeRef
from capabilities.data.session import identifier, literal
from capabilities.data.words import fold, name_words, words_set
from framework.base import ValidationError

MISSING = ("", "-", "--", "na", "n/a", "nan", "null", "none", "nil", "?", ".", "missing", "-999.0")
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
# Months by the names that no format knows: their first letters, in the languages around.
_MONTHS = (
    "jan|ene|gen", "feb|fev|fév", "mar|mär|maer|mrz", "apr|avr|abr", "may|mai|mag", "jun|jui?n|giu",
    "jul|juil|lug", "aug|ago|aoû|aou", "sep|set", "oct|okt|ott|out", "nov", "dec|dez|dic|déc",
)  # fmt: skip
_NAMED_MONTH = re.compile(rf"(?:{'|'.join(_MONTHS)})[^\W\d]*\.?[ -]\d{{4}}", re.IGNORECASE)


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
    order = ["comma", "plain"] if delimiter == ";" else ["plain", "comma"]
    for name in order:
        if share(re.compile("|".join(f"(?:{form})" for form in _WRITTEN[name]))) >= 0.9:
            return name
    return None


def parse_number(text: str, reading: str) -> float | None:
    """Read one number as :func:`number_sql` does.

    >>> parse_number("$1,250.50", "plain"), parse_number("(900)", "plain"), parse_number("x", "plain")
    (1250.5, -900.0, None)
    """
    text = text.strip()
    if reading == "comma" or not _NUMBER.fullmatch(text):
        forms = _WRITTEN.get(reading, ())
        fitting = next((place for place, form in enumerate(forms) if re.match(form, text)), None)
        if fitting is None:
            return None
        text = re.sub(r"[^0-9,.+-]", "", text)
        text = (
            text.replace(",", "") if reading == "plain" else text.replace(".", "").replace(",", ".")
        )
        text = f"-{text}" if fitting else text
    try:
        return float(text)
    except ValueError:
        return None


def number_sql(column: ColumnRef, alias: str = "") -> str:
    """Return SQL for the number in a column; ``NULL`` where there is none."""
    name = alias + identifier(column.name)
    text = f"trim(CAST({name} AS VARCHAR))"
    if column.reading == "rows":
        return "1.0"
    if column.reading == "native":
        value = f"TRY_CAST({name} AS DOUBLE)"
    elif column.reading == "simple":
        value = f"TRY_CAST({text} AS DOUBLE)"
    elif column.reading == "flag":
        value = f"CAST(CAST({name} AS INTEGER) AS DOUBLE)"
    elif column.reading in _WRITTEN:
        value = _written_sql(text, column.reading)
    else:
        raise ValidationError(
            f"{column.reading!r} is no way to read a number.",
            fix=f"Use one of {['comma', 'flag', 'native', 'plain', 'rows', 'simple']}.",
        )
    return f"(CASE WHEN isfinite({value}) THEN {value} END)"


def _written_sql(text: str, reading: str) -> str:
    """Return SQL for a number as people write it; plain numbers take the quick way."""
    bare = f"regexp_replace({text}, '[^0-9,.+-]', '', 'g')"
    if reading == "comma":
        bare = f"replace(replace({bare}, '.', ''), ',', '.')"
    else:
        bare = f"replace({bare}, ',', '')"
    signed, bracketed = (literal(form) for form in _WRITTEN[reading])
    written = (
        f"TRY_CAST(CASE WHEN regexp_matches({text}, {signed}) THEN {bare}"
        f" WHEN regexp_matches({text}, {bracketed}) THEN '-' || {bare} END AS DOUBLE)"
    )
    if reading == "comma":  # 1.250 is a thousand and more here
        return written
    return f"coalesce(TRY_CAST({text} AS DOUBLE), {written})"


def unreadable_sql(column: ColumnRef) -> str:
    """Return SQL that is true where a value stands that is no number and no mark for none."""
    text = f"lower(trim(CAST({identifier(column.name)} AS VARCHAR)))"
    return _unread(text, number_sql(column))


def unread_time_sql(time: TimeRef) -> str:
    """Return SQL that is true where a time stands that cannot be read."""
    text = f"lower(trim(CAST({identifier(time.columns[0])} AS VARCHAR)))"
    return _unread(text, time_sql(time))


def _unread(text: str, value: str) -> str:
    marks = ", ".join(literal(mark) for mark in MISSING)
    return f"({value} IS NULL AND {text} IS NOT NULL AND {text} NOT IN ({marks}))"


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
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)):
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


def time_sql(time: TimeRef, alias: str = "") -> str:
    """Return SQL for the moment of a row, as a local ``TIMESTAMP``."""
    names = [alias + identifier(column) for column in time.columns]
    text = f"trim(CAST({names[0]} AS VARCHAR))"
    reading, _, extra = time.reading.partition("+")
    zone = literal(time.zone or "UTC")
    if reading == "parts":
        numbers = [f"TRY_CAST({name} AS BIGINT)" for name in names]
        year, month, day, hour = [*numbers, *["1", "1", "1", "0"][len(numbers) :]]
        date = f"TRY(make_timestamp({year}, {month}, {day}, 0, 0, 0))"
        return f"({date} + to_hours({hour}))"
    if reading.startswith("format:"):
        fmt = reading.removeprefix("format:")
        base = f"try_strptime({text}, {literal(fmt)})"
        if "%d" in fmt and re.search("%[Yy].*%|%.*%[Yy]", fmt) and fmt != "%Y%m%d":
            base = f"coalesce({base}, {_dated(text)})"
    else:
        integer = f"TRY_CAST({text} AS BIGINT)"
        real = f"TRY_CAST({text} AS DOUBLE)"
        seconds = {"epoch_s": "1", "epoch_ms": "1e3", "epoch_us": "1e6", "epoch_ns": "1e9"}
        sources = {
            "iso": _dated(text),
            "native": f"CAST({names[0]} AS TIMESTAMP)",
            "zoned": f"(TRY_CAST({text} AS TIMESTAMPTZ) AT TIME ZONE {zone})",
            "nativetz": f"({names[0]} AT TIME ZONE {zone})",
            "year": f"TRY(make_timestamp({integer}, 1, 1, 0, 0, 0))",
            "yearmonth": f"TRY(make_timestamp({integer} // 100, {integer} % 100, 1, 0, 0, 0))",
            "named month": (
                f"TRY(make_timestamp(TRY_CAST(right({text}, 4) AS BIGINT),"
                f" {_month_number(text)}, 1, 0, 0, 0))"
            ),
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
    if extra == "quarter":
        return f"({base} + to_months(3 * TRY_CAST({names[1]} AS INTEGER) - 3))"
    if extra == "hour":
        return f"({base} + to_hours(TRY_CAST({names[1]} AS BIGINT)))"
    if extra == "time":
        clock = f"TRY_CAST(trim(CAST({names[1]} AS VARCHAR)) AS TIME)"
        return f"({base} + (coalesce({clock}, TIME '00:00') - TIME '00:00'))"
    return base
