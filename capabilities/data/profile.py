"""What a table holds: which column is the time, which are numbers, which tell series apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import combinations
from typing import Literal

from capgraph.base import ValidationError
from capgraph.capabilities.data.readings import (
    MARKS,
    Time,
    find_times,
    number_sql,
    time_sql,
    unread_sql,
)
from capgraph.capabilities.data.session import Session, Table, identifier
from capgraph.capabilities.data.units import guess_temperature_unit, unit_in_name
from capgraph.capabilities.data.words import name_words

Kind = Literal["number", "category", "text", "flag", "empty"]
Frequency = Literal["minute", "hour", "day", "week", "month", "quarter", "year"]
_TEMPERATURES = frozenset({"temp", "temperature", "tmin", "tmax", "tavg", "dewpoint"})
_SAMPLE = 2000
_CELLS = 400_000
_LOOKED_THROUGH = 200
MAX_VALUES = 1000
_LISTED = 40
_UNITS = ("year", "quarter", "month", "day", "hour")
_KEYS = frozenset({"id", "no", "nr", "number", "key", "code"})
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
        others: The same table by each further column of dates.
        dates: All columns of dates.
    """

    table: Table
    columns: list[Column]
    time: Time | None = None
    rows: int = 0
    first: datetime | None = None
    last: datetime | None = None
    frequency: Frequency | None = None
    precision: str = "minute"
    series: list[str] = field(default_factory=list)
    unique_times: bool = True
    unread_times: tuple[int, tuple[str, ...]] = (0, ())
    others: list[TableProfile] = field(default_factory=list)
    dates: frozenset[str] = frozenset()

    @property
    def label_column(self) -> str | None:
        """The column that names a row, where rows are things and not moments."""
        if self.series:
            return None
        texts = [c for c in self.columns if c.kind in ("text", "category")]
        named = [c for c in texts if set(name_words(c.name)) & {"name", "title", "label"}]
        if self.time is not None and self.unique_times:
            return next((c.name for c in named if len(c.values) == self.rows), None)
        many = [c for c in texts if c.kind == "text" or len(c.values) > 0.7 * self.rows]
        return next((column.name for column in [*named, *many]), None)

    @property
    def things(self) -> set[str]:
        """What a row is, by the name of a first column that tells all of them apart."""
        first = self.columns[0] if self.columns and self.columns[0].name not in self.dates else None
        if first is None or first.kind == "number" or len(first.values) not in (0, self.rows):
            return set()
        words = name_words(first.name)
        return {*words} - _KEYS if first.reading != "plain" or _KEYS & {*words} else set()

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
    session: Session, table: Table, zone: str = "UTC", day_first: bool = False
) -> TableProfile:
    """Look at a table.

    Args:
        session: Where to read.
        table: What to read.
        zone: Zone that moments with a zone of their own are shown in.
        day_first: Whether 03/04/2015 is the third of April when the rows do not tell.
    """
    relation, label = session.relation(table), table.label
    typed = [row[:2] for row in session.query(f"DESCRIBE FROM {relation}", label=label)]
    (counted,) = session.query(f"SELECT count(*) FROM {relation}", label=label)[0]  # noqa: S608
    bounds = session.work.bounds
    for number, limit, what in (
        (len(typed), bounds.columns, "columns"), (counted, bounds.rows, "rows"),
    ):  # fmt: skip
        if number > limit:
            raise ValidationError(
                f"{label} has {number:,} {what}; the limit is {limit:,}.",
                fix=f"Give a file with the {what} that are needed, or raise 'max_{what}' in the"
                " settings.",
            )
    names = ", ".join(f"CAST({identifier(name)} AS VARCHAR)" for name, _ in typed)
    size = min(_SAMPLE, max(20, _CELLS // max(1, len(typed))))
    rows = session.query(f"SELECT {names} FROM {relation} LIMIT {size}", label=label)  # noqa: S608
    samples = {
        name: [value for value in values if value is not None]
        for (name, _), values in zip(typed, zip(*rows, strict=True), strict=True)
    } if rows else {name: [] for name, _ in typed}  # fmt: skip
    times = find_times(typed, samples, zone, day_first)
    main = times[0].columns if times else ()
    columns = _columns(session, table, typed, samples, main)
    dates = frozenset(name for time in times for name in time.columns[:1])
    profile = TableProfile(table, columns, times[0] if times else None, counted, dates=dates)
    _measure_numbers(session, profile)
    _measure_time(session, profile)
    for other in times[1:]:
        left = [c for c in profile.columns if c.name not in other.columns]
        left += [Column(name, "text") for name in main]
        another = TableProfile(table, left, other, counted, dates=dates)
        _measure_time(session, another)
        profile.others += [another] if another.time else []
    return profile


def _columns(
    session: Session,
    table: Table,
    typed: list[tuple[str, str]],
    samples: dict[str, list[str]],
    timed: tuple[str, ...],
) -> list[Column]:
    """Tell numbers from categories and texts."""
    native = {name for name, kind in typed if kind.lstrip("U").startswith(_NUMERIC)}
    texts = [name for name, kind in typed if name not in native and kind != "BOOLEAN"]
    written = _written(session, {name: samples[name] for name in texts}, table.semicolons)
    columns: list[Column] = []
    for place, (name, kind) in enumerate(typed):
        sample = samples[name]
        if name in timed:
            continue
        if not sample:
            columns.append(Column(name, "empty"))
        elif kind == "BOOLEAN":
            columns.append(Column(name, "flag", "flag", ("true", "false")))
        elif (name in native or name in written) and not (
            _is_code(name, sample) or (not place and _numbers_rows(sample))
        ):
            reading, decimals = written.get(name) or ("native", _decimals(sample))
            columns.append(Column(name, "number", reading, decimals=min(decimals, 4)))
        elif place >= _LOOKED_THROUGH:
            # Past so many columns the sample must do: a query for each would take for ever.
            values = tuple(sorted({v for v in sample if v.strip()}))
            columns.append(Column(name, "category", values=values, complete=False))
        else:
            column = identifier(name)
            rows = session.query(
                # In a query of its own, since a column called "v" would be meant otherwise.
                f"SELECT v FROM (SELECT DISTINCT CAST({column} AS VARCHAR) AS v"  # noqa: S608
                f" FROM {session.relation(table)})"
                f" WHERE v IS NOT NULL AND trim(v) <> '' LIMIT {MAX_VALUES + 1}",
                label=table.label,
            )
            found = tuple(sorted(row[0] for row in rows))
            many = len(found) > MAX_VALUES
            reading = "native" if name in native else written.get(name, ("plain", 0))[0]
            sort: Kind = "text" if many else "category"
            columns.append(Column(name, sort, reading, () if many else found))
    return columns


def _written(
    session: Session, samples: dict[str, list[str]], semicolons: bool
) -> dict[str, tuple[str, int]]:
    """Return the columns of text that hold numbers: how they are read, and their decimals."""
    order = ("comma", "plain") if semicolons else ("plain", "comma")
    cells = [(name, value) for name, values in samples.items() for value in values]
    readings = ("simple", *order)
    counted = ", ".join(f"count({number_sql(reading, 'v')})" for reading in readings)
    rows = session.query(
        f"SELECT n, count(*), {counted} FROM (SELECT unnest($n) AS n, unnest($v) AS v)"  # noqa: S608
        f" WHERE lower(trim(v)) NOT IN ({MARKS}) GROUP BY n",
        {"n": [name for name, _ in cells], "v": [value for _, value in cells]},
    )
    found = {}
    for name, present, *fitting in rows if cells else ():
        reading = next(
            (r for r, n in zip(readings, fitting, strict=True) if n >= 0.9 * present), None
        )
        if reading is not None:
            mark = "," if reading == "comma" else "."
            found[name] = reading, _decimals(samples[name], mark)
    return found


def _decimals(sample: list[str], mark: str = ".") -> int:
    parts = [value.strip().rstrip("%$€£ )").partition(mark)[2] for value in sample[:500]]
    return max((len(part.rstrip("0")) for part in parts if part.isdigit()), default=0)


def _is_code(name: str, sample: list[str]) -> bool:
    """Recognise numbers that only name things: identifiers, postal codes, coordinates' keys."""
    words = set(name_words(name))
    if words & {"id", "zip", "zipcode", "postcode", "postal", "fip", "uuid", "phone", "isbn"}:
        return True
    return any(len(value) > 1 and value[0] == "0" and value.isdigit() for value in sample[:200])


def _numbers_rows(sample: list[str]) -> bool:
    """Recognise a first column that counts the rows: 1, 2, 3 and so on."""
    start = sample[0] if sample[0] in ("0", "1") else "1"
    return len(sample) > 9 and sample == [str(int(start) + n) for n in range(len(sample))]


def _measure_time(session: Session, profile: TableProfile) -> None:
    """Find what the times cover, how far they lie apart, and which columns tell series apart."""
    if profile.time is None:
        return
    relation, label = session.relation(profile.table), profile.table.label
    moment, name = time_sql(profile.time), identifier(profile.time.columns[0])
    whole = ", ".join(f"bool_and(t = date_trunc('{unit}', t))" for unit in _UNITS)
    row = session.query(
        f"SELECT count(*), min(t), max(t), count(DISTINCT t), count(*) FILTER (unread),"  # noqa: S608
        f" min(text) FILTER (unread), {whole} FROM (SELECT {moment} AS t,"
        f" {unread_sql(name, moment)} AS unread, left(CAST({name} AS VARCHAR), 40) AS text"
        f" FROM {relation})",
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

    Most columns hold plain numbers only, which a quick pass shows; the others are read again.
    """
    places = [i for i, c in enumerate(profile.columns) if c.kind == "number"][:_LOOKED_THROUGH]
    _measure_pass(session, profile, places)
    odd = [i for i in places if profile.columns[i].unread[0]]
    for place in odd:
        if profile.columns[place].reading == "simple":
            profile.columns[place] = replace(profile.columns[place], reading="plain")
    _measure_pass(session, profile, odd)


def _measure_pass(session: Session, profile: TableProfile, places: list[int]) -> None:
    parts = []
    for place in places:
        column = profile.columns[place]
        name = identifier(column.name)
        value = number_sql(column.reading, name)
        unread = unread_sql(name, value)
        shown = f"left(CAST({name} AS VARCHAR), 40)"
        parts.append(
            f"min({value}), max({value}), count(*) FILTER ({unread}), min({shown}) FILTER ({unread})"
        )
    rows = session.query(
        f"SELECT {', '.join(parts)} FROM {session.relation(profile.table)}",  # noqa: S608
        label=profile.table.label,
    ) if parts else []  # fmt: skip
    for number, place in enumerate(places):
        low, high, count, example = rows[0][4 * number : 4 * number + 4]
        profile.columns[place] = replace(
            profile.columns[place], low=low, high=high, unread=_unread(count, example)
        )


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
    candidates.sort(key=lambda column: len(column.values).bit_length())
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
