"""What a table holds: which column is the time, which are numbers, which tell series apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import combinations
from typing import Literal

from capabilities.contexts import ColumnRef, TableRef, TimeRef
from capabilities.data.readings import (
    number_reading,
    number_sql,
    parse_number,
    time_sql,
    unread_time_sql,
    unreadable_sql,
)
from capabilities.data.session import Session, identifier
from capabilities.data.time_columns import find_time
from capabilities.data.units import guess_temperature_unit, unit_in_name
from capabilities.data.words import name_words
from framework.base import ValidationError

Kind = Literal["number", "category", "text", "flag", "empty"]
Frequency = Literal["minute", "hour", "day", "week", "month", "quarter", "year"]
_TEMPERATURES = frozenset({"temp", "temperature", "tmin", "tmax", "tavg", "dewpoint"})
_SAMPLE = 2000
_CELLS = 400_000
_LOOKED_THROUGH = 200
MAX_VALUES = 1000
_LISTED = 40
_UNITS = ("year", "quarter", "month", "day", "hour")
_NUMERIC = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "REAL", "HUGEINT")


@dataclass(frozen=True)
class Column:
    """A column as the question may mean it.

    Attributes:
        name: Its name in the file.
        kind: What it holds.
        reading: How its text becomes a number.
        values: Its distinct values, for a category.
        unread: How many values cannot be read, and some of them.
        complete: Whether ``values`` are all of them.
    """

    name: str
    kind: Kind
    reading: str = "plain"
    values: tuple[str, ...] = ()
    decimals: int = 0
    low: float | None = None
    high: float | None = None
    unread: tuple[int, tuple[str, ...]] = (0, ())
    complete: bool = True

    @property
    def unit(self) -> str | None:
        """Its unit: from the name, or for temperatures from the range; see ``unit_guessed``."""
        return unit_in_name(self.name) or self.unit_guessed

    @property
    def unit_guessed(self) -> str | None:
        """The unit that only the range of temperatures tells."""
        if self.low is None or self.high is None or unit_in_name(self.name):
            return None
        if not _TEMPERATURES.intersection(name_words(self.name)):
            return None
        return guess_temperature_unit(self.low, self.high)

    @property
    def ref(self) -> ColumnRef:
        """The column as it stands in the state."""
        return ColumnRef(name=self.name, reading=self.reading)


@dataclass
class TableProfile:
    """What is known of a table.

    Attributes:
        table: Where it is.
        columns: All columns but those of the time.
        time: The time, if the table has one.
        rows: Number of rows.
        first: Earliest time.
        last: Latest time.
        frequency: Usual distance between two times.
        precision: The coarsest unit that all times are whole in.
        series: Columns that tell rows of the same time apart (long layout).
        unique_times: Whether no two rows have the same time.
        unread_times: How many times cannot be read, and some of them.
    """

    table: TableRef
    columns: list[Column]
    time: TimeRef | None = None
    rows: int = 0
    first: datetime | None = None
    last: datetime | None = None
    frequency: Frequency | None = None
    precision: str = "minute"
    series: list[str] = field(default_factory=list)
    unique_times: bool = True
    unread_times: tuple[int, tuple[str, ...]] = (0, ())

    @property
    def label_column(self) -> str | None:
        """The column that names a row, where rows are things and not moments."""
        if self.series or (self.time is not None and self.unique_times):
            return None
        texts = [c for c in self.columns if c.kind in ("text", "category")]
        named = [c for c in texts if set(name_words(c.name)) & {"name", "title", "label"}]
        many = [c for c in texts if c.kind == "text" or len(c.values) > 0.7 * self.rows]
        return next((column.name for column in [*named, *many]), None)

    @property
    def numbers(self) -> list[Column]:
        """Columns that can be measured."""
        return [column for column in self.columns if column.kind == "number"]

    @property
    def categories(self) -> list[Column]:
        """Columns that sort rows into groups."""
        return [column for column in self.columns if column.kind in ("category", "flag")]

    def names(self) -> str:
        """The column names, for messages; of very many only the first."""
        timed = [] if self.time is None else self.time.columns
        names = [*timed, *(c.name for c in self.columns if c.name not in timed)]
        more = len(names) - _LISTED
        shown = ", ".join(name[:80] for name in names[:_LISTED])
        return f"{shown} and {more:,} more" if more > 0 else shown

    def unread(self, columns: Iterable[str], *, timed: bool = True) -> list[str]:
        """Say what cannot be read of some columns, and of the time, a sentence for each."""
        label, wanted = self.table.label, set(columns)
        found = []
        if timed and self.unread_times[0] and self.time is not None:
            found.append((self.unread_times, self.time.columns[0], "no date that can be read"))
        found += [
            (column.unread, column.name, "no number that can be read")
            for column in self.columns
            if column.unread[0] and column.name in wanted
        ]
        return [
            f"{count:,} value{'s' if count > 1 else ''} of {name} in {label}"
            f" ({', '.join(map(repr, examples))}) {'are' if count > 1 else 'is'} {why} and"
            f" {'are' if count > 1 else 'is'} not counted"
            for (count, examples), name, why in found
        ]


def profile_table(
    session: Session, table: TableRef, zone: str = "UTC", day_first: bool = False
) -> TableProfile:
    """Look at a table.

    Args:
        session: Where to read.
        table: What to read.
        zone: Zone that moments with a zone of their own are shown in.
        day_first: Whether 03/04/2015 is the third of April when the rows do not tell.
    """
    typed = session.columns(table)
    relation = session.relation(table)
    names = ", ".join(f"CAST({identifier(name)} AS VARCHAR)" for name, _ in typed)
    size = min(_SAMPLE, max(20, _CELLS // max(1, len(typed))))
    rows = session.query(f"SELECT {names} FROM {relation} LIMIT {size}", label=table.label)  # noqa: S608
    samples = {
        name: [row[index] for row in rows if row[index] is not None]
        for index, (name, _) in enumerate(typed)
    }
    time = find_time(typed, samples, zone, day_first)
    used = set() if time is None else set(time.columns)
    columns = [
        # Past so many columns the sample must do: a query for each would take for ever.
        _column(session if place < _LOOKED_THROUGH else None, table, name, kind, samples[name])
        for place, (name, kind) in enumerate(typed)
        if name not in used
    ]
    profile = TableProfile(table, columns, time)
    _measure(session, profile)
    return profile


def _column(
    session: Session | None, table: TableRef, name: str, kind: str, sample: list[str]
) -> Column:
    if not sample:
        return Column(name, "empty")
    if kind == "BOOLEAN":
        return Column(name, "flag", "flag", ("true", "false"))
    native = kind.startswith(_NUMERIC) or (kind.startswith("U") and "INT" in kind)
    reading = "native" if native else number_reading(sample, table.delimiter)
    if reading is not None and not _is_code(name, sample):
        decimals = max((_decimals(value, reading) for value in sample[:500]), default=0)
        numbers = [n for value in sample if (n := parse_number(value, reading)) is not None]
        low, high = (min(numbers), max(numbers)) if numbers else (None, None)
        return Column(name, "number", reading, (), min(decimals, 4), low, high)
    if session is None:
        values = tuple(sorted({v for v in sample if v.strip()}))
        return Column(name, "category", values=values, complete=False)
    column = identifier(name)
    rows = session.query(
        f"SELECT DISTINCT CAST({column} AS VARCHAR) AS v FROM {session.relation(table)}"  # noqa: S608
        f" WHERE v IS NOT NULL AND trim(v) <> '' LIMIT {MAX_VALUES + 1}",
        label=table.label,
    )
    found = sorted(row[0] for row in rows)
    if len(found) > MAX_VALUES:
        return Column(name, "text")
    return Column(name, "category", values=tuple(found))


def _is_code(name: str, sample: list[str]) -> bool:
    """Recognise numbers that only name things: identifiers, postal codes, coordinates' keys."""
    words = set(name_words(name))
    if words & {"id", "zip", "zipcode", "postcode", "postal", "fip", "uuid", "phone", "isbn"}:
        return True
    return any(len(value) > 1 and value[0] == "0" and value.isdigit() for value in sample[:200])


def _decimals(value: str, reading: str) -> int:
    mark = "," if reading == "comma" else "."
    _, found, fraction = value.strip().rstrip("%$€£ ").partition(mark)
    return len(fraction.rstrip("0")) if found and fraction.isdigit() else 0


def _measure(session: Session, profile: TableProfile) -> None:
    relation, label = session.relation(profile.table), profile.table.label
    counted = session.query(f"SELECT count(*) FROM {relation}", label=label)[0][0]  # noqa: S608
    most = session.work.bounds.rows
    if counted > most:
        raise ValidationError(
            f"{label} has {counted:,} rows; the limit is {most:,}.",
            fix="Give a file with the rows that are needed, or raise 'max_rows' in the settings.",
        )
    _measure_numbers(session, profile)
    if profile.time is None:
        profile.rows = counted
        return
    moment = time_sql(profile.time)
    unread = unread_time_sql(profile.time)
    whole = ", ".join(f"bool_and(t = date_trunc('{unit}', t))" for unit in _UNITS)
    row = session.query(
        f"SELECT count(*), min(t), max(t), count(DISTINCT t), count(*) FILTER (unread),"  # noqa: S608
        f" min(text) FILTER (unread), {whole} FROM (SELECT {moment} AS t, {unread} AS unread,"
        f" {_shown(profile.time.columns[0])} AS text FROM {relation})",
        label=label,
    )[0]
    profile.rows, profile.first, profile.last, distinct = row[:4]
    profile.unread_times = _unread(*row[4:6])
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
        profile.series = _series_columns(session, profile, moment)


def _measure_numbers(session: Session, profile: TableProfile) -> None:
    """Find ranges and what is no number, over all rows.

    Most columns hold plain numbers only, which one quick pass shows.
    """
    places = [i for i, c in enumerate(profile.columns) if c.kind == "number"][:_LOOKED_THROUGH]
    for place in places:
        if profile.columns[place].reading == "plain":
            profile.columns[place] = replace(profile.columns[place], reading="simple")
    _measure_pass(session, profile, places)
    odd = [i for i in places if profile.columns[i].unread[0]]
    for place in odd:
        if profile.columns[place].reading == "simple":
            profile.columns[place] = replace(profile.columns[place], reading="plain")
    _measure_pass(session, profile, odd)


def _measure_pass(session: Session, profile: TableProfile, places: list[int]) -> None:
    if not places:
        return
    parts = []
    for place in places:
        column = profile.columns[place].ref
        value = number_sql(column)
        unread = _unread_parts(unreadable_sql(column), column.name)
        parts.append(f"min({value}), max({value}), {unread}")
    row = session.query(
        f"SELECT {', '.join(parts)} FROM {session.relation(profile.table)}",  # noqa: S608
        label=profile.table.label,
    )[0]
    for number, place in enumerate(places):
        low, high, count, example = row[4 * number : 4 * number + 4]
        profile.columns[place] = replace(
            profile.columns[place], low=low, high=high, unread=_unread(count, example)
        )


def _unread_parts(test: str, name: str) -> str:
    return f"count(*) FILTER ({test}), min({_shown(name)}) FILTER ({test})"


def _shown(name: str) -> str:
    return f"left(CAST({identifier(name)} AS VARCHAR), 40)"


def _unread(count: int, example: str | None) -> tuple[int, tuple[str, ...]]:
    return count, (example,) if example is not None else ()


def frequency_of(seconds: float | None) -> Frequency | None:
    """Name the usual distance of two rows.

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


def _series_columns(session: Session, profile: TableProfile, moment: str) -> list[str]:
    """Find the fewest columns that, with the time, make every row unique."""
    candidates = [
        column
        for column in profile.categories
        if 1 < len(column.values) <= min(500, max(2, profile.rows // 3))
    ]
    candidates.sort(key=lambda column: len(column.values))
    for size in (1, 2):
        for group in list(combinations(candidates[:8], size)):
            names = ", ".join(identifier(column.name) for column in group)
            distinct = session.query(
                f"SELECT count(*) FROM (SELECT DISTINCT {moment}, {names}"  # noqa: S608
                f" FROM {session.relation(profile.table)})"
            )[0][0]
            if distinct >= 0.98 * profile.rows:
                return [column.name for column in group]
    return []
