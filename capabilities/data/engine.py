"""Computes a query: DuckDB SQL of bound values and quoted names, and rows of answers."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from capgraph.capabilities.contexts import ResultRow
from capgraph.capabilities.data.profile import TableProfile
from capgraph.capabilities.data.scope import Scope, replan
from capgraph.capabilities.data.session import Session
from capgraph.capabilities.data.units import conversion
from capgraph.capabilities.query import TIME_PARTS, TIME_UNITS, Query
from capgraph.capabilities.wording import bucket_text, date_range, listed

MOST_GROUPS = 60
MOST_ROWS = 15
_AGGREGATES = {
    "rows": "count(*)", "count": "count(v)", "sum": "sum(v)", "mean": "avg(v)",
    "median": "median(v)", "min": "min(v)", "max": "max(v)", "std": "stddev_samp(v)",
    "percentile": "quantile_cont(v, $percentile)", "distinct": "count(DISTINCT v)",
    "missing": "count(*) - count(v)", "correlation": "corr(v, w)",
    # Seconds of a mean year, so that the slope is the change in a year.
    "slope": "regr_slope(v, epoch(t) / 31557600)", "first": "arg_min(v, t)",
    "last": "arg_max(v, t)",
}  # fmt: skip
_COUNTS = ("rows", "count", "distinct", "missing", "streak", "gaps")
_DIFFERENCES = ("std", "slope")
_TESTS = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq,
    "!=": operator.ne,
}  # fmt: skip


@dataclass
class Computed:
    """What a query gave.

    Attributes:
        query: The query.
        rows: The rows of the answer.
        unit: Unit of the values.
        decimals: Decimals that the data has.
        profile: The table that was asked.
        more: How many rows are not among ``rows``.
        ties: How many rows share the extreme.
        tied: The other groups that share it.
        notes: What the reader should know.
    """

    query: Query
    rows: list[ResultRow]
    unit: str | None
    decimals: int
    profile: TableProfile
    more: int = 0
    ties: int = 1
    tied: Sequence[str] = ()
    notes: tuple[str, ...] = ()


def compute(
    session: Session, profiles: Sequence[TableProfile], query: Query, most: int = MOST_GROUPS
) -> Computed:
    """Compute a query.

    Args:
        session: Where the tables are open.
        profiles: The tables at hand.
        query: What to compute.
        most: How many groups are listed where the query sets no limit.

    Raises:
        ValidationError: A name, a value or a period is not in the data; says what is.
    """
    return _Run(session, profiles, query, most).computed()


class _Run:
    def __init__(
        self, session: Session, profiles: Sequence[TableProfile], query: Query, most: int
    ) -> None:
        self.session = session
        self.most = most
        self.query = query
        self.scope = Scope(session, profiles, query)
        self.more = 0
        self.ties = 1
        self.tied: list[str] = []
        query = self.query
        self.extreme = query.aggregate in ("min", "max") and not (
            query.group_by or query.change or query.share or query.having
        )
        self.groups = [self.scope.group(name) for name in query.group_by]
        self.value = self._value_sql()
        self.divisor = self.scope.value(query.by) if query.by else "NULL"
        self.shown = self._shown()
        self.tests = [self.scope.test(given) for given in query.where]
        self.aggregate = _AGGREGATES.get(query.aggregate, "")
        if query.by and query.aggregate == "sum":
            self.aggregate = "sum(v) / nullif(sum(w), 0)"
        if query.percentile is not None:
            self.scope.parameters["percentile"] = query.percentile / 100
        if query.aggregate in ("first", "last", "slope", "gaps", "streak") or query.rolling:
            self.scope.time()

    def _value_sql(self) -> str:
        query, scope = self.query, self.scope
        if query.value is None:
            return "1"
        text = query.aggregate in ("distinct", "count", "missing", "values", "first", "last")
        found = scope.find(query.value)
        if text and (found is not None or query.value in (*TIME_UNITS, *TIME_PARTS, "time")):
            number = found is not None and (
                found.column is not None and found.column.kind in ("number", "flag")
            )
            return scope.number(query.value) if number else scope.text(query.value)
        return scope.value(query.value)

    def _shown(self) -> list[str]:
        """Return the columns that say which row it is."""
        if not (self.extreme or self.query.aggregate == "values"):
            return []
        profile, names = self.scope.profile, list(self.query.show)
        filtered = {f.column for f in self.query.where if f.op == "="}
        if not names:
            label = profile.label_column
            names = [*([label] if label else []), *(s for s in profile.series if s not in filtered)]
        return [n for n in dict.fromkeys(names) if n not in {self.query.value, *filtered}]

    def computed(self) -> Computed:
        """Compute every period and put the rows together."""
        query = self.query
        rows: list[ResultRow] = []
        profile = self.scope.profile
        for start, end in query.periods or [(None, None)]:
            late = start is not None and profile.last is not None and start > profile.last
            early = end is not None and profile.first is not None and end <= profile.first
            if late or early:  # a count of 0 would say that nothing happened
                self._nothing(start, end)
            inside = self._inside(start, end)
            found = self._period(inside)
            if not found:
                self._nothing(start, end)
            label = _period_label(start, end) if query.periods else None
            rows += [row.model_copy(update={"period": label}) for row in found]
        self._compare_periods(rows)
        unit = self.scope.unit(query.value) if query.aggregate not in _COUNTS else None
        unit = None if query.by else unit
        factor, offset = conversion(unit, query.unit) if query.unit else (1.0, 0.0)
        for row in rows:
            _convert(row, factor, 0.0 if query.aggregate in _DIFFERENCES else offset)
        known = self.scope.find(query.value) if query.value else None
        decimals = known.column.decimals if known and known.column else 2
        if query.unit and query.unit != unit:
            decimals = 2
        return Computed(
            query, rows, query.unit or unit, decimals, self.scope.profile, self.more, self.ties,
            self.tied, tuple(self._notes()),
        )  # fmt: skip

    # --- one period ----------------------------------------------------------------------------

    def _inside(self, start: datetime | None, end: datetime | None) -> list[str]:
        tests = []
        for moment, sign in ((start, ">="), (end, "<")):
            if moment is not None:
                tests.append(f"{self.scope.time()} {sign} {self.scope.bind(moment)}")
        return tests

    def _period(self, inside: list[str]) -> list[ResultRow]:
        aggregate = self.query.aggregate
        if aggregate == "streak":
            return self._streak(inside)
        if aggregate == "gaps":
            return self._gaps(inside)
        if aggregate == "values" or self.extreme:
            return self._listed(inside)
        return self._grouped(inside)

    def _base(self, tests: list[str], inside: list[str]) -> str:
        """Return the query of the rows that count."""
        moment = self.scope.moment or "CAST(NULL AS TIMESTAMP)"
        groups = "".join(f", {sql} AS g{n}" for n, (sql, _) in enumerate(self.groups))
        shown = "".join(f", {self.scope.text(name)} AS s{n}" for n, name in enumerate(self.shown))
        value = self.value
        within = inside
        if self.query.rolling:
            # The mean reaches back before the period, so the period is cut out afterwards.
            window = (
                f"OVER ({self._partition()}ORDER BY {moment} ROWS BETWEEN"
                f" {self.query.rolling - 1} PRECEDING AND CURRENT ROW)"
            )
            value = (
                f"CASE WHEN count({value}) {window} = {self.query.rolling}"
                f" THEN avg({value}) {window} END"
            )
            within = []
        where = " AND ".join([*tests, *within]) or "TRUE"
        base = (  # names are quoted, values bound
            f"SELECT {value} AS v, {moment} AS t, {self.divisor} AS w{groups}{shown}"  # noqa: S608
            f" FROM {self.scope.source} WHERE {where}"
        )
        if self.query.rolling and inside:
            later = " AND ".join(test.replace(moment, "t") for test in inside)
            base = f"SELECT * FROM ({base}) WHERE {later}"  # noqa: S608
        return base

    def _partition(self) -> str:
        listed = ", ".join(sql for sql, _ in self.groups)
        if not listed and not self.scope.profile.unique_times and not self.query.where:
            raise replan(
                f"{self.scope.profile.table.label} has several rows for each time.",
                "Keep one series with a filter, or group by"
                f" {' or '.join(self.scope.profile.series) or 'a column'}.",
            )
        return f"PARTITION BY {listed} " if listed else ""

    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        used = {key: v for key, v in self.scope.parameters.items() if f"${key}" in sql}
        return self.session.query(sql, used, label=self.scope.profile.table.label)

    def _grouped(self, inside: list[str]) -> list[ResultRow]:
        query = self.query
        base = self._base(self.tests, inside)
        names = ", ".join(f"g{n}" for n in range(len(self.groups)))
        grouped = f" GROUP BY {names} ORDER BY {names}" if names else ""
        sql = f"SELECT {self.aggregate}, count(*){', ' + names if names else ''} FROM ({base})"  # noqa: S608
        found = [
            ResultRow(
                value=_plain(value),
                group=self._group_names(keys),
                time=next((key for key in keys if isinstance(key, datetime)), None),
            )
            for value, count, *keys in self._run(sql + grouped)
            if value is not None
            and (names or count or query.aggregate in _COUNTS)
            and (query.order == "group" or None not in keys)  # what has no name is not ranked
        ]
        if query.share:
            total = self._run(f"SELECT {self.aggregate} FROM ({self._base([], inside)})")[0][0]  # noqa: S608
            for row in found:
                row.percent = 100 * _number(row.value) / total if total else None
        if query.change and names:
            found = _changes(found)
        if query.having is not None:
            test, limit = _TESTS[query.having.op], float(query.having.value)  # type: ignore[arg-type]
            found = [row for row in found if test(_number(row.value), limit)]
        if query.order != "group":
            found.sort(key=lambda row: _number(row.value), reverse=query.order == "highest")
        limit = query.limit or self.most
        self.more = max(0, len(found) - limit) if query.limit is None else 0
        if query.limit == 1 and found:
            self.ties = sum(row.value == found[0].value for row in found)
            self.tied = [", ".join(r.group) for r in found[1 : self.ties][:MOST_ROWS] if names]
        return found[:limit]

    def _group_names(self, keys: Sequence[Any]) -> list[str]:
        return [
            _group_name(key, part, name)
            for key, (_, part), name in zip(keys, self.groups, self.query.group_by, strict=True)
        ]

    def _listed(self, inside: list[str]) -> list[ResultRow]:
        query = self.query
        order = {"max": "highest", "min": "lowest"}.get(query.aggregate, query.order)
        by = {"highest": "v DESC, t", "lowest": "v, t"}.get(order, "t, v")
        limit = 1 if self.extreme else query.limit or MOST_ROWS
        base = self._base(self.tests, inside)
        names = "".join(f", s{n}" for n in range(len(self.shown)))
        rows = self._run(
            f"SELECT v, t{names} FROM ({base}) WHERE v IS NOT NULL"  # noqa: S608
            f" ORDER BY {by} NULLS LAST LIMIT {limit}"
        )
        total, best = self._run(
            f"SELECT count(*), {'min' if order == 'lowest' else 'max'}(v) FROM ({base})"  # noqa: S608
            " WHERE v IS NOT NULL"
        )[0]
        if limit == 1 and rows and order != "group":
            place = self.scope.bind(best)
            self.ties = self._run(f"SELECT count(*) FROM ({base}) WHERE v = {place}")[0][0]  # noqa: S608
        elif query.limit is None:
            self.more = max(0, total - limit)
        return [
            ResultRow(
                value=_plain(value),
                time=moment,
                shown={
                    name: text
                    for name, text in zip(self.shown, texts, strict=True)
                    if text is not None
                },
            )
            for value, moment, *texts in rows
        ]

    def _streak(self, inside: list[str]) -> list[ResultRow]:
        """Find the longest run of rows in a row that pass the tests."""
        partition = self._partition() if self.query.group_by else ""
        if not self.scope.profile.unique_times and not partition:
            self._partition()
        hit = " AND ".join(self.tests)
        where = " AND ".join(inside) or "TRUE"
        rows = self._run(
            "SELECT min(t), max(t), count(*) AS n FROM (SELECT t, hit, row_number() OVER (ORDER BY"  # noqa: S608
            " t) - row_number() OVER (PARTITION BY hit ORDER BY t) AS run FROM (SELECT"
            f" {self.scope.time()} AS t, coalesce({hit}, FALSE) AS hit FROM {self.scope.source}"
            f" WHERE {where}) WHERE t IS NOT NULL) WHERE hit GROUP BY run ORDER BY n DESC, 1"
        )
        if rows:
            self.ties = sum(row[2] == rows[0][2] for row in rows)
        return [ResultRow(value=n, time=start, until=end) for start, end, n in rows[:1]]

    def _gaps(self, inside: list[str]) -> list[ResultRow]:
        """Count the times that are missing between the first and the last one."""
        base = self._base(self.tests, inside)
        count, first, last, gap = self._run(
            "SELECT count(*), min(t), max(t), median(gap) FROM (SELECT t, epoch(t) - lag(epoch(t))"  # noqa: S608
            f" OVER (ORDER BY t) AS gap FROM (SELECT DISTINCT t FROM ({base}) WHERE t IS NOT NULL))"
        )[0]
        if not gap:
            return []
        steps = round((last - first).total_seconds() / gap) + 1
        return [ResultRow(value=steps - count, time=first, until=last)]

    # --- around it -----------------------------------------------------------------------------

    def _compare_periods(self, rows: list[ResultRow]) -> None:
        if not self.query.change or len(self.query.periods) < 2:
            return
        first = {tuple(row.group): row for row in rows if row.period == rows[0].period}
        for row in rows:
            base = first.get(tuple(row.group))
            if base is None or base is row:
                continue
            before = _number(base.value)
            row.change = _number(row.value) - before
            row.percent = 100 * row.change / abs(before) if before else None

    def _nothing(self, start: datetime | None, end: datetime | None) -> None:
        """Say that there are no rows, and what there is.

        Raises:
            ValidationError: Always.
        """
        profile = self.scope.profile
        label = f"{profile.table.label} has no rows"
        if start or end:
            label += f" for {_period_label(start, end)}"
        if self.query.where:
            label += " that pass the filters"
        if profile.first and profile.last:
            covered = date_range(profile.first, profile.last, profile.frequency)
            raise replan(f"{label}; the data covers {covered}.", "Ask about a time inside it.")
        raise replan(f"{label}.", "Ask with other filters.")

    def _notes(self) -> list[str]:
        query, profile = self.query, self.scope.profile
        notes = []
        tables: dict[str, TableProfile] = {profile.table.label: profile}
        tables |= {k.profile.table.label: k.profile for k in self.scope.used.values()}
        timed = self.scope.moment is not None and (
            query.periods or query.rolling or any(part for _, part in self.groups)
        )
        if timed and profile.others and profile.time and query.time is None:
            others = listed([p.time.columns[0] for p in profile.others if p.time], "or")
            notes.append(f"Times are those of {profile.time.columns[0]}, not of {others}")
        for table in tables.values():
            notes += table.unread(self.scope.used, timed=bool(timed))
        guessed = [
            known.column.name
            for known in self.scope.used.values()
            if known.column and known.column.unit_guessed
        ]
        if guessed:
            unit = self.scope.unit(guessed[0])
            notes.append(f"The unit {unit} of {', '.join(guessed)} is inferred from the values")
        assumed = [f for f in query.where if f.unit and self.scope.unit(f.column) is None]
        notes += [f"{f.column} names no unit; {f.unit} is taken for it" for f in assumed]
        for start, end in query.periods:
            if profile.last and end and profile.last < end and start and start <= profile.last:
                step = {"year": 366, "quarter": 92, "month": 31, "week": 7}
                slack = step.get(profile.frequency or "", 1)
                if (end - profile.last).days > slack:
                    last = date_range(profile.last, profile.last, profile.frequency)
                    notes.append(f"The data ends with {last}")
        return list(dict.fromkeys(notes))


def _convert(row: ResultRow, factor: float, offset: float) -> None:
    if (factor, offset) != (1.0, 0.0) and isinstance(row.value, int | float):
        row.value = row.value * factor + offset
        row.change = None if row.change is None else row.change * factor


def _changes(rows: list[ResultRow]) -> list[ResultRow]:
    """Turn values of groups that follow each other into their differences."""
    found = []
    for before, row in pairwise(rows):
        difference = _number(row.value) - _number(before.value)
        base = abs(_number(before.value))
        percent = 100 * difference / base if base else None
        found.append(row.model_copy(update={"value": difference, "percent": percent}))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    return value


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


def _group_name(key: Any, part: str | None, name: str) -> str:
    if key is None:
        return f"no {name}"
    if part is not None:
        return bucket_text(key, {"iso_week": "week number"}.get(part, part))
    if isinstance(key, float):
        return f"{name} {key:g}"
    return str(key)


def _period_label(start: datetime | None, end: datetime | None) -> str:
    """Name a period as people do.

    >>> _period_label(datetime(2015, 7, 1), datetime(2015, 8, 1)), _period_label(None, None)
    ('July 2015', 'all times')
    """
    if start is None and end is None:
        return "all times"
    from capgraph.capabilities.wording import date_text, end_of

    if start is None:
        assert end is not None
        return f"before {date_text(end)}"
    if end is None:
        return f"since {date_text(start)}"
    for unit, months in (("year", 12), ("quarter", 3), ("month", 1)):
        whole = start.day == 1 and (start.month - 1) % months == 0 and not start.time().hour
        index = start.year * 12 + start.month - 1 + months
        if whole and end == datetime(index // 12, index % 12 + 1, 1):
            return date_text(start, unit)
    if (end - start).total_seconds() <= 3600:
        return date_text(start, "hour")
    last = end if (end.hour, end.minute) != (0, 0) else end_of(end)
    return date_range(start, last, "day")
