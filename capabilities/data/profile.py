"""Profiles of tables: the columns, time range, value ranges, and series."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import combinations
from typing import Literal

from capgraph.base import ValidationError
from capgraph.capabilities.data.cell_formats import (
    MISSING_MARKS_SQL,
    TimeColumns,
    find_time_columns,
    number_sql,
    time_sql,
    unreadable_sql,
)
from capgraph.capabilities.data.session import DataSession, DataTable, quote_identifier
from capgraph.capabilities.data.units import guess_temperature_unit, unit_in_name
from capgraph.capabilities.data.words import split_name

Kind = Literal["number", "category", "text", "flag", "empty"]
Frequency = Literal["minute", "hour", "day", "week", "month", "quarter", "year"]
_TEMPERATURES = frozenset({"temp", "temperature", "tmin", "tmax", "tavg", "dewpoint"})
_SAMPLE_ROWS = 2000
_MAX_SAMPLE_CELLS = 400_000
_MAX_SCANNED_COLUMNS = 200
MAX_CATEGORY_VALUES = 1000
_MAX_LISTED_NAMES = 40
_UNITS = ("year", "quarter", "month", "day", "hour")
_KEY_WORDS = frozenset({"id", "no", "nr", "number", "key", "code"})
_NUMERIC_TYPES = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "REAL", "HUGEINT")


@dataclass(frozen=True)
class TableColumn:
    """Table column with the type and range of its values.

    Attributes:
        name: Name in the file.
        kind: Kind of the values: numbers, categories, flags, or text.
        number_format: Format of the numbers, if the column contains numbers as text.
        values: Distinct values of a category column.
        decimals: Maximum number of decimal places.
        low: Lowest number.
        high: Highest number.
        unreadable_values: Number of values that cannot be parsed, with examples.
        has_all_values: True if ``values`` contains all distinct values.
    """

    name: str
    kind: Kind
    number_format: str = "plain"
    values: tuple[str, ...] = ()
    decimals: int = 0
    low: float | None = None
    high: float | None = None
    unreadable_values: tuple[int, tuple[str, ...]] = (0, ())
    has_all_values: bool = True

    @property
    def unit(self) -> str | None:
        """Unit that the column name states, or the temperature unit inferred from the values."""
        return unit_in_name(self.name) or self.inferred_unit

    @property
    def inferred_unit(self) -> str | None:
        """Temperature unit inferred from the value range.

        ``None`` if the column name states a unit or the column does not contain temperatures.
        """
        if self.low is None or self.high is None or unit_in_name(self.name):
            return None
        if not _TEMPERATURES.intersection(split_name(self.name)):
            return None
        return guess_temperature_unit(self.low, self.high)


@dataclass
class TableProfile:
    """Profile of a table, which describes its columns and the times of its rows.

    Attributes:
        table: Table that the profile describes.
        columns: All columns except time columns.
        time: Columns that contain the time of a row, if any.
        rows: Number of rows.
        first: Earliest time.
        last: Latest time.
        frequency: Usual interval between consecutive times.
        precision: Finest unit in which all times are whole.
        series: Columns that distinguish rows of the same time (long format).
        unique_times: True if no two rows have the same time.
        unreadable_times: Number of unreadable times, and examples of them.
        alternate_profiles: Profiles of the same table with another date column as its time.
        date_columns: Names of all date columns.
    """

    table: DataTable
    columns: list[TableColumn]
    time: TimeColumns | None = None
    rows: int = 0
    first: datetime | None = None
    last: datetime | None = None
    frequency: Frequency | None = None
    precision: str = "minute"
    series: list[str] = field(default_factory=list)
    unique_times: bool = True
    unreadable_times: tuple[int, tuple[str, ...]] = (0, ())
    alternate_profiles: list[TableProfile] = field(default_factory=list)
    date_columns: frozenset[str] = frozenset()

    @property
    def label_column(self) -> str | None:
        """Name of the column that labels each row, or ``None`` if rows represent times."""
        if self.series:
            return None
        texts = [c for c in self.columns if c.kind in ("text", "category")]
        named = [c for c in texts if set(split_name(c.name)) & {"name", "title", "label"}]
        if self.time is not None and self.unique_times:
            return next((c.name for c in named if len(c.values) == self.rows), None)
        many = [c for c in texts if c.kind == "text" or len(c.values) > 0.7 * self.rows]
        return next((column.name for column in [*named, *many]), None)

    @property
    def item_nouns(self) -> set[str]:
        """Nouns for the items in the rows, taken from the name of a unique first column."""
        first = (
            self.columns[0]
            if self.columns and self.columns[0].name not in self.date_columns
            else None
        )
        if first is None or first.kind == "number" or len(first.values) not in (0, self.rows):
            return set()
        words = split_name(first.name)
        return (
            {*words} - _KEY_WORDS
            if first.number_format != "plain" or _KEY_WORDS & {*words}
            else set()
        )

    @property
    def numeric_columns(self) -> list[TableColumn]:
        """Columns that contain numbers."""
        return [column for column in self.columns if column.kind == "number"]

    @property
    def category_columns(self) -> list[TableColumn]:
        """Columns that contain categories or flags."""
        return [column for column in self.columns if column.kind in ("category", "flag")]

    def column_list(self) -> str:
        """Format the column names of the table for a message, with long lists shortened."""
        timed = [] if self.time is None else self.time.columns
        names = [*timed, *(c.name for c in self.columns if c.name not in timed)]
        more = len(names) - _MAX_LISTED_NAMES
        shown = ", ".join(name[:80] for name in names[:_MAX_LISTED_NAMES])
        return f"{shown} and {more:,} more" if more > 0 else shown

    def unreadable_notes(self, columns: Iterable[str], *, include_time: bool = True) -> list[str]:
        """Return a note for each given column that has values that cannot be parsed.

        With ``include_time``, the time column is checked as well.
        """
        label, selected = self.table.label, set(columns)
        problems = []
        if include_time and self.unreadable_times[0] and self.time is not None:
            problems.append(
                (self.unreadable_times, self.time.columns[0], "cannot be read as a date")
            )
        problems += [
            (column.unreadable_values, column.name, "cannot be read as a number")
            for column in self.columns
            if column.unreadable_values[0] and column.name in selected
        ]
        return [
            f"{count:,} value{'s' if count > 1 else ''} of {name} in {label}"
            f" ({', '.join(map(repr, examples))}) {problem} and"
            f" {'are' if count > 1 else 'is'} not counted"
            for (count, examples), name, problem in problems
        ]


def profile_table(
    session: DataSession, table: DataTable, timezone: str = "UTC", day_first: bool = False
) -> TableProfile:
    """Analyze the columns and the time range of a table.

    Args:
        session: Data session that reads the table.
        table: Table to profile.
        timezone: Target time zone for timestamps with a UTC offset.
        day_first: True to read ambiguous dates such as 03/04/2015 with the day first.

    Raises:
        ValidationError: The table has too many rows or columns, or cannot be read.
    """
    relation, label = session.relation(table), table.label
    column_types = [row[:2] for row in session.query(f"DESCRIBE FROM {relation}", label=label)]
    (counted,) = session.query(f"SELECT count(*) FROM {relation}", label=label)[0]  # noqa: S608
    bounds = session.operation.limits
    for number, limit, noun in (
        (len(column_types), bounds.max_columns, "columns"), (counted, bounds.max_rows, "rows"),
    ):  # fmt: skip
        if number > limit:
            raise ValidationError(
                f"The table {label} has {number:,} {noun}: the limit is {limit:,}.",
                fix=f"Pass a file with only the required {noun}, or raise 'max_{noun}' in the settings.",
            )
    names = ", ".join(f"CAST({quote_identifier(name)} AS VARCHAR)" for name, _ in column_types)
    size = min(_SAMPLE_ROWS, max(20, _MAX_SAMPLE_CELLS // max(1, len(column_types))))
    rows = session.query(f"SELECT {names} FROM {relation} LIMIT {size}", label=label)  # noqa: S608
    samples = {
        name: [value for value in values if value is not None]
        for (name, _), values in zip(column_types, zip(*rows, strict=True), strict=True)
    } if rows else {name: [] for name, _ in column_types}  # fmt: skip
    times = find_time_columns(column_types, samples, timezone, day_first)
    main = times[0].columns if times else ()
    columns = _profile_columns(session, table, column_types, samples, main)
    dates = frozenset(name for time in times for name in time.columns[:1])
    profile = TableProfile(table, columns, times[0] if times else None, counted, date_columns=dates)
    _measure_numbers(session, profile)
    _measure_time(session, profile)
    for other in times[1:]:
        columns_left = [c for c in profile.columns if c.name not in other.columns]
        columns_left += [TableColumn(name, "text") for name in main]
        another = TableProfile(table, columns_left, other, counted, date_columns=dates)
        _measure_time(session, another)
        profile.alternate_profiles += [another] if another.time else []
    return profile


def _profile_columns(
    session: DataSession,
    table: DataTable,
    column_types: list[tuple[str, str]],
    samples: dict[str, list[str]],
    time_columns: tuple[str, ...],
) -> list[TableColumn]:
    """Classify the columns of a table as numbers, categories, flags, or text."""
    native = {name for name, kind in column_types if kind.lstrip("U").startswith(_NUMERIC_TYPES)}
    texts = [name for name, kind in column_types if name not in native and kind != "BOOLEAN"]
    written = _detect_text_numbers(
        session, {name: samples[name] for name in texts}, table.has_semicolons
    )
    columns: list[TableColumn] = []
    for place, (name, kind) in enumerate(column_types):
        sample = samples[name]
        if name in time_columns:
            continue
        if not sample:
            columns.append(TableColumn(name, "empty"))
        elif kind == "BOOLEAN":
            columns.append(TableColumn(name, "flag", "flag", ("true", "false")))
        elif (name in native or name in written) and not (
            _is_code(name, sample) or (not place and _is_row_counter(sample))
        ):
            reading, decimals = written.get(name) or ("native", _count_decimals(sample))
            columns.append(TableColumn(name, "number", reading, decimals=min(decimals, 4)))
        elif place >= _MAX_SCANNED_COLUMNS:
            # A query for each of thousands of columns is too slow; use the sample.
            values = tuple(sorted({v for v in sample if v.strip()}))
            columns.append(TableColumn(name, "category", values=values, has_all_values=False))
        else:
            column = quote_identifier(name)
            rows = session.query(
                # The subquery prevents a clash with a column named "v".
                f"SELECT v FROM (SELECT DISTINCT CAST({column} AS VARCHAR) AS v"  # noqa: S608
                f" FROM {session.relation(table)})"
                f" WHERE v IS NOT NULL AND trim(v) <> '' LIMIT {MAX_CATEGORY_VALUES + 1}",
                label=table.label,
            )
            found = tuple(sorted(row[0] for row in rows))
            many = len(found) > MAX_CATEGORY_VALUES
            reading = "native" if name in native else written.get(name, ("plain", 0))[0]
            sort: Kind = "text" if many else "category"
            columns.append(TableColumn(name, sort, reading, () if many else found))
    return columns


def _detect_text_numbers(
    session: DataSession, samples: dict[str, list[str]], semicolons: bool
) -> dict[str, tuple[str, int]]:
    """Find text columns that contain numbers, and detect their number formats.

    Returns the number format and the number of decimal places by column name.
    """
    order = ("comma", "plain") if semicolons else ("plain", "comma")
    cells = [(name, value) for name, values in samples.items() for value in values]
    readings = ("simple", *order)
    counted = ", ".join(f"count({number_sql(reading, 'v')})" for reading in readings)
    rows = session.query(
        f"SELECT n, count(*), {counted} FROM (SELECT unnest($n) AS n, unnest($v) AS v)"  # noqa: S608
        f" WHERE lower(trim(v)) NOT IN ({MISSING_MARKS_SQL}) GROUP BY n",
        {"n": [name for name, _ in cells], "v": [value for _, value in cells]},
    )
    found = {}
    for name, present, *fitting in rows if cells else ():
        reading = next(
            (r for r, n in zip(readings, fitting, strict=True) if n >= 0.9 * present), None
        )
        if reading is not None:
            mark = "," if reading == "comma" else "."
            found[name] = reading, _count_decimals(samples[name], mark)
    return found


def _count_decimals(sample: list[str], mark: str = ".") -> int:
    parts = [value.strip().rstrip("%$€£ )").partition(mark)[2] for value in sample[:500]]
    return max((len(part.rstrip("0")) for part in parts if part.isdigit()), default=0)


def _is_code(name: str, sample: list[str]) -> bool:
    """Return True if the numbers in a column are identifiers, such as postal codes."""
    words = set(split_name(name))
    if words & {"id", "zip", "zipcode", "postcode", "postal", "fip", "uuid", "phone", "isbn"}:
        return True
    return any(len(value) > 1 and value[0] == "0" and value.isdigit() for value in sample[:200])


def _is_row_counter(sample: list[str]) -> bool:
    """Return True if a column only numbers the rows: 1, 2, 3, and so on."""
    start = sample[0] if sample[0] in ("0", "1") else "1"
    return len(sample) > 9 and sample == [str(int(start) + n) for n in range(len(sample))]


def _measure_time(session: DataSession, profile: TableProfile) -> None:
    """Set the time range and frequency of a table profile.

    The columns that distinguish the time series of the table are set as well.
    """
    if profile.time is None:
        return
    relation, label = session.relation(profile.table), profile.table.label
    moment, name = time_sql(profile.time), quote_identifier(profile.time.columns[0])
    whole_unit_tests = ", ".join(f"bool_and(t = date_trunc('{unit}', t))" for unit in _UNITS)
    row = session.query(
        f"SELECT count(*), min(t), max(t), count(DISTINCT t), count(*) FILTER (unread),"  # noqa: S608
        f" min(text) FILTER (unread), {whole_unit_tests} FROM (SELECT {moment} AS t,"
        f" {unreadable_sql(name, moment)} AS unread, left(CAST({name} AS VARCHAR), 40) AS text"
        f" FROM {relation})",
        label=label,
    )[0]
    profile.rows, profile.first, profile.last, distinct = row[:4]
    profile.unreadable_times = _list_examples(*row[4:6])
    profile.precision = next((u for u, w in zip(_UNITS, row[6:], strict=True) if w), "minute")
    if profile.first is None:
        profile.time = None
        return
    limit = "" if profile.rows <= 1_000_000 else " LIMIT 20000"
    gap = session.query(
        "SELECT median(gap) FROM (SELECT epoch(t) - lag(epoch(t)) OVER (ORDER BY t) AS gap"  # noqa: S608
        f" FROM (SELECT DISTINCT t FROM (SELECT {moment} AS t FROM {relation}{limit})"
        " WHERE t IS NOT NULL))",
        label=label,
    )[0][0]
    profile.frequency = frequency_of(gap)
    profile.unique_times = distinct >= 0.98 * profile.rows
    if not profile.unique_times:
        profile.series = _find_series_columns(session, profile, moment)


def _measure_numbers(session: DataSession, profile: TableProfile) -> None:
    """Compute the range and the number of unparsable values of each numeric column.

    All rows are read. Columns of plain numbers need only one pass. The other columns are read
    again.
    """
    places = [i for i, c in enumerate(profile.columns) if c.kind == "number"][:_MAX_SCANNED_COLUMNS]
    _measure_columns(session, profile, places)
    odd = [i for i in places if profile.columns[i].unreadable_values[0]]
    for place in odd:
        if profile.columns[place].number_format == "simple":
            profile.columns[place] = replace(profile.columns[place], number_format="plain")
    _measure_columns(session, profile, odd)


def _measure_columns(session: DataSession, profile: TableProfile, indexes: list[int]) -> None:
    parts = []
    for place in indexes:
        column = profile.columns[place]
        name = quote_identifier(column.name)
        value = number_sql(column.number_format, name)
        unread = unreadable_sql(name, value)
        shown = f"left(CAST({name} AS VARCHAR), 40)"
        parts.append(
            f"min({value}), max({value}), count(*) FILTER ({unread}), min({shown}) FILTER ({unread})"
        )
    rows = session.query(
        f"SELECT {', '.join(parts)} FROM {session.relation(profile.table)}",  # noqa: S608
        label=profile.table.label,
    ) if parts else []  # fmt: skip
    for number, place in enumerate(indexes):
        low, high, count, example = rows[0][4 * number : 4 * number + 4]
        profile.columns[place] = replace(
            profile.columns[place],
            low=low,
            high=high,
            unreadable_values=_list_examples(count, example),
        )


def _list_examples(count: int, example: str | None) -> tuple[int, tuple[str, ...]]:
    return count, (example,) if example is not None else ()


def frequency_of(seconds: float | None) -> Frequency | None:
    """Return the name of a sampling interval that is given in seconds.

    >>> frequency_of(3600), frequency_of(86400), frequency_of(31 * 86400)
    ('hour', 'day', 'month')
    """
    if seconds is None:
        return None
    day = 86400.0
    limits: list[tuple[float, Frequency]] = [
        (1800.0, "minute"), (12 * 3600.0, "hour"), (4.5 * day, "day"), (20 * day, "week"),
        (45 * day, "month"), (200 * day, "quarter"),
    ]  # fmt: skip
    return next((name for limit, name in limits if seconds <= limit), "year")


def _find_series_columns(session: DataSession, profile: TableProfile, moment: str) -> list[str]:
    """Find the smallest set of columns that, together with the time, identifies each row."""
    candidates = [
        column
        for column in profile.category_columns
        if 1 < len(column.values) <= min(500, max(2, profile.rows // 3))
    ]
    candidates.sort(key=lambda column: len(column.values).bit_length())
    for size in (1, 2):
        for group in list(combinations(candidates[:8], size)):
            names = ", ".join(quote_identifier(column.name) for column in group)
            distinct = session.query(
                f"SELECT count(*) FROM (SELECT DISTINCT {moment}, {names}"  # noqa: S608
                f" FROM {session.relation(profile.table)})"
            )[0][0]
            if distinct >= 0.98 * profile.rows:
                return [column.name for column in group]
    return []
