"""Computation of queries with DuckDB. Names are quoted, and values are bound as parameters."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from capgraph.capabilities.contexts import ResultRow
from capgraph.capabilities.data.profile import TableProfile
from capgraph.capabilities.data.query_scope import QueryScope, query_error
from capgraph.capabilities.data.session import DataSession
from capgraph.capabilities.data.units import unit_conversion
from capgraph.capabilities.formatting import bucket_text, date_range_text, join_list
from capgraph.capabilities.query import TIME_PARTS, TIME_UNITS, Query

MAX_GROUPS = 60
MAX_ROWS = 15
_AGGREGATES = {
    "rows": "count(*)", "count": "count(v)", "sum": "sum(v)", "mean": "avg(v)",
    "median": "median(v)", "min": "min(v)", "max": "max(v)", "std": "stddev_samp(v)",
    "percentile": "quantile_cont(v, $percentile)", "distinct": "count(DISTINCT v)",
    "missing": "count(*) - count(v)", "correlation": "corr(v, w)",
    # Seconds of a mean year: the slope is the change per year.
    "slope": "regr_slope(v, epoch(t) / 31557600)", "first": "arg_min(v, t)",
    "last": "arg_max(v, t)",
}  # fmt: skip
_COUNTING_AGGREGATES = ("rows", "count", "distinct", "missing", "streak", "gaps")
_OFFSET_FREE_AGGREGATES = ("std", "slope")
_COMPARISONS = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq,
    "!=": operator.ne,
}  # fmt: skip


@dataclass
class ComputedQuery:
    """Query result with the details needed to describe the result in words.

    Attributes:
        query: Query that was computed.
        rows: Rows of the result.
        unit: Unit of the values.
        decimals: Number of decimal places in the data.
        profile: Profile of the table that the query read.
        omitted_count: Number of result rows that ``rows`` omits.
        tie_count: Number of rows that share the extreme value.
        tied_groups: Other groups that share the extreme value.
        notes: Remarks for the user.
    """

    query: Query
    rows: list[ResultRow]
    unit: str | None
    decimals: int
    profile: TableProfile
    omitted_count: int = 0
    tie_count: int = 1
    tied_groups: Sequence[str] = ()
    notes: tuple[str, ...] = ()


def compute_query(
    session: DataSession,
    profiles: Sequence[TableProfile],
    query: Query,
    max_groups: int = MAX_GROUPS,
) -> ComputedQuery:
    """Run a query over a table and return its result.

    Args:
        session: Session in which the tables are open.
        profiles: Profiles of the available tables.
        query: Query to compute.
        max_groups: Maximum number of groups for a query without a limit.

    Raises:
        ValidationError: A name, value, or period does not exist in the data. The message lists
            the valid names or values.
    """
    return _QueryRun(session, profiles, query, max_groups).compute()


class _QueryRun:
    """Computation of one query, period by period."""

    def __init__(
        self, session: DataSession, profiles: Sequence[TableProfile], query: Query, max_groups: int
    ) -> None:
        self.session = session
        self.max_groups = max_groups
        self.query = query
        self.scope = QueryScope(session, profiles, query)
        self.omitted_count = 0
        self.tie_count = 1
        self.tied_groups: list[str] = []
        query = self.query
        self.is_extreme = query.aggregate in ("min", "max") and not (
            query.group_by or query.change or query.share or query.having
        )
        self.groups = [self.scope.group_sql(name) for name in query.group_by]
        self.value = self._build_value_sql()
        self.divisor = self.scope.value_sql(query.by) if query.by else "NULL"
        self.label_columns = self._find_label_columns()
        self.tests = [self.scope.filter_sql(row_filter) for row_filter in query.where]
        self.aggregate = _AGGREGATES.get(query.aggregate, "")
        if query.by and query.aggregate == "sum":
            self.aggregate = "sum(v) / nullif(sum(w), 0)"
        if query.percentile is not None:
            self.scope.parameters["percentile"] = query.percentile / 100
        if query.aggregate in ("first", "last", "slope", "gaps", "streak") or query.rolling:
            self.scope.require_time_sql()

    def _build_value_sql(self) -> str:
        query, scope = self.query, self.scope
        if query.value is None:
            return "1"
        is_text = query.aggregate in ("distinct", "count", "missing", "values", "first", "last")
        found = scope.find_column(query.value)
        if is_text and (found is not None or query.value in (*TIME_UNITS, *TIME_PARTS, "time")):
            is_number = found is not None and (
                found.column is not None and found.column.kind in ("number", "flag")
            )
            return scope.number_sql(query.value) if is_number else scope.text_sql(query.value)
        return scope.value_sql(query.value)

    def _find_label_columns(self) -> list[str]:
        """Return the columns that identify a row."""
        if not (self.is_extreme or self.query.aggregate == "values"):
            return []
        profile, names = self.scope.profile, list(self.query.show)
        filtered = {f.column for f in self.query.where if f.op == "="}
        if not names:
            label = profile.label_column
            names = [*([label] if label else []), *(s for s in profile.series if s not in filtered)]
        return [n for n in dict.fromkeys(names) if n not in {self.query.value, *filtered}]

    def compute(self) -> ComputedQuery:
        """Run the query for each period and combine the rows into one result."""
        query = self.query
        rows: list[ResultRow] = []
        profile = self.scope.profile
        for start, end in query.periods or [(None, None)]:
            late = start is not None and profile.last is not None and start > profile.last
            early = end is not None and profile.first is not None and end <= profile.first
            if late or early:  # a count of 0 would be misleading
                self._raise_no_rows(start, end)
            inside = self._build_period_tests(start, end)
            found = self._compute_period(inside)
            if not found:
                self._raise_no_rows(start, end)
            label = _format_period(start, end) if query.periods else None
            rows += [row.model_copy(update={"period": label}) for row in found]
        self._compare_periods(rows)
        unit = (
            self.scope.unit_of(query.value) if query.aggregate not in _COUNTING_AGGREGATES else None
        )
        unit = None if query.by else unit
        factor, offset = unit_conversion(unit, query.unit) if query.unit else (1.0, 0.0)
        for row in rows:
            _convert_units(
                row, factor, 0.0 if query.aggregate in _OFFSET_FREE_AGGREGATES else offset
            )
        column = self.scope.find_column(query.value) if query.value else None
        decimals = column.column.decimals if column and column.column else 2
        if query.unit and query.unit != unit:
            decimals = 2
        return ComputedQuery(
            query, rows, query.unit or unit, decimals, self.scope.profile, self.omitted_count, self.tie_count,
            self.tied_groups, tuple(self._collect_notes()),
        )  # fmt: skip

    # --- one period ----------------------------------------------------------------------------

    def _build_period_tests(self, start: datetime | None, end: datetime | None) -> list[str]:
        tests = []
        for moment, sign in ((start, ">="), (end, "<")):
            if moment is not None:
                tests.append(
                    f"{self.scope.require_time_sql()} {sign} {self.scope.bind_value(moment)}"
                )
        return tests

    def _compute_period(self, period_tests: list[str]) -> list[ResultRow]:
        aggregate = self.query.aggregate
        if aggregate == "streak":
            return self._find_streak(period_tests)
        if aggregate == "gaps":
            return self._count_gaps(period_tests)
        if aggregate == "values" or self.is_extreme:
            return self._list_rows(period_tests)
        return self._group_rows(period_tests)

    def _build_rows_sql(self, tests: list[str], period_tests: list[str]) -> str:
        """Build a SQL query that selects the rows to aggregate."""
        moment = self.scope.moment_sql or "CAST(NULL AS TIMESTAMP)"
        groups = "".join(f", {sql} AS g{n}" for n, (sql, _) in enumerate(self.groups))
        shown = "".join(
            f", {self.scope.text_sql(name)} AS s{n}" for n, name in enumerate(self.label_columns)
        )
        value = self.value
        within = period_tests
        if self.query.rolling:
            # The window extends before the period, so the period is applied afterwards.
            window = (
                f"OVER ({self._build_partition_sql()}ORDER BY {moment} ROWS BETWEEN"
                f" {self.query.rolling - 1} PRECEDING AND CURRENT ROW)"
            )
            value = (
                f"CASE WHEN count({value}) {window} = {self.query.rolling}"
                f" THEN avg({value}) {window} END"
            )
            within = []
        where = " AND ".join([*tests, *within]) or "TRUE"
        base = (  # names are quoted, values bound
            f"SELECT {value} AS v, {moment} AS t, {self.divisor} AS w{groups}{shown}"
            f" FROM {self.scope.source} WHERE {where}"
        )
        if self.query.rolling and period_tests:
            later = " AND ".join(test.replace(moment, "t") for test in period_tests)
            base = f"SELECT * FROM ({base}) WHERE {later}"
        return base

    def _build_partition_sql(self) -> str:
        listed = ", ".join(sql for sql, _ in self.groups)
        if not listed and not self.scope.profile.unique_times and not self.query.where:
            raise query_error(
                f"The table {self.scope.profile.table.label} has several rows for each time.",
                "Select one series with a filter, or group by"
                f" {' or '.join(self.scope.profile.series) or 'a column'}.",
            )
        return f"PARTITION BY {listed} " if listed else ""

    def _execute(self, sql: str) -> list[tuple[Any, ...]]:
        parameters = {key: v for key, v in self.scope.parameters.items() if f"${key}" in sql}
        return self.session.query(sql, parameters, label=self.scope.profile.table.label)

    def _group_rows(self, period_tests: list[str]) -> list[ResultRow]:
        query = self.query
        base = self._build_rows_sql(self.tests, period_tests)
        names = ", ".join(f"g{n}" for n in range(len(self.groups)))
        grouped = f" GROUP BY {names} ORDER BY {names}" if names else ""
        edge = {"first": "min(t)", "last": "max(t)"}.get(query.aggregate, "NULL")
        moment = f"{edge} FILTER (WHERE v IS NOT NULL)" if edge != "NULL" else edge
        sql = (
            f"SELECT {self.aggregate}, count(*), {moment}{', ' + names if names else ''}"
            f" FROM ({base})"
        )
        found = [
            ResultRow(
                value=_to_plain(value),
                group=self._format_groups(keys),
                time=next((key for key in (*keys, edge_time) if isinstance(key, datetime)), None),
            )
            for value, count, edge_time, *keys in self._execute(sql + grouped)
            if value is not None
            and (names or count or query.aggregate in _COUNTING_AGGREGATES)
            and (
                query.order == "group" or None not in keys
            )  # rows without a group name are not ranked
        ]
        if query.share:
            total = self._execute(
                f"SELECT {self.aggregate} FROM ({self._build_rows_sql([], period_tests)})"
            )[0][0]
            for row in found:
                row.percent = 100 * _to_float(row.value) / total if total else None
        if query.change and names:
            found = _subtract_previous(found)
        if query.having is not None:
            test, limit = _COMPARISONS[query.having.op], float(query.having.value)  # type: ignore[arg-type]
            found = [row for row in found if test(_to_float(row.value), limit)]
        if query.order != "group":
            found.sort(key=lambda row: _to_float(row.value), reverse=query.order == "highest")
        limit = query.limit or self.max_groups
        self.omitted_count = max(0, len(found) - limit) if query.limit is None else 0
        if query.limit == 1 and found:
            self.tie_count = sum(row.value == found[0].value for row in found)
            self.tied_groups = [
                ", ".join(r.group) for r in found[1 : self.tie_count][:MAX_ROWS] if names
            ]
        return found[:limit]

    def _format_groups(self, keys: Sequence[Any]) -> list[str]:
        return [
            _format_group(key, part, name)
            for key, (_, part), name in zip(keys, self.groups, self.query.group_by, strict=True)
        ]

    def _list_rows(self, period_tests: list[str]) -> list[ResultRow]:
        query = self.query
        order = {"max": "highest", "min": "lowest"}.get(query.aggregate, query.order)
        by = {"highest": "v DESC, t", "lowest": "v, t"}.get(order, "t, v")
        limit = 1 if self.is_extreme else query.limit or MAX_ROWS
        base = self._build_rows_sql(self.tests, period_tests)
        names = "".join(f", s{n}" for n in range(len(self.label_columns)))
        rows = self._execute(
            f"SELECT v, t{names} FROM ({base}) WHERE v IS NOT NULL"
            f" ORDER BY {by} NULLS LAST LIMIT {limit}"
        )
        total, best = self._execute(
            f"SELECT count(*), {'min' if order == 'lowest' else 'max'}(v) FROM ({base})"
            " WHERE v IS NOT NULL"
        )[0]
        if limit == 1 and rows and order != "group":
            place = self.scope.bind_value(best)
            self.tie_count = self._execute(f"SELECT count(*) FROM ({base}) WHERE v = {place}")[0][0]
        elif query.limit is None:
            self.omitted_count = max(0, total - limit)
        return [
            ResultRow(
                value=_to_plain(value),
                time=moment,
                shown={
                    name: text
                    for name, text in zip(self.label_columns, texts, strict=True)
                    if text is not None
                },
            )
            for value, moment, *texts in rows
        ]

    def _find_streak(self, period_tests: list[str]) -> list[ResultRow]:
        """Find the longest streak of consecutive rows that meet the query's conditions."""
        partition = self._build_partition_sql() if self.query.group_by else ""
        if not self.scope.profile.unique_times and not partition:
            self._build_partition_sql()
        hit = " AND ".join(self.tests)
        where = " AND ".join(period_tests) or "TRUE"
        rows = self._execute(
            "SELECT min(t), max(t), count(*) AS n FROM (SELECT t, hit, row_number() OVER (ORDER BY"
            " t) - row_number() OVER (PARTITION BY hit ORDER BY t) AS run FROM (SELECT"
            f" {self.scope.require_time_sql()} AS t, coalesce({hit}, FALSE) AS hit FROM {self.scope.source}"
            f" WHERE {where}) WHERE t IS NOT NULL) WHERE hit GROUP BY run ORDER BY n DESC, 1"
        )
        if rows:
            self.tie_count = sum(row[2] == rows[0][2] for row in rows)
        return [ResultRow(value=n, time=start, until=end) for start, end, n in rows[:1]]

    def _count_gaps(self, period_tests: list[str]) -> list[ResultRow]:
        """Count the missing time steps between the first and last rows."""
        base = self._build_rows_sql(self.tests, period_tests)
        count, first, last, gap = self._execute(
            "SELECT count(*), min(t), max(t), median(gap) FROM (SELECT t, epoch(t) - lag(epoch(t))"
            f" OVER (ORDER BY t) AS gap FROM (SELECT DISTINCT t FROM ({base}) WHERE t IS NOT NULL))"
        )[0]
        if not gap:
            return []
        steps = round((last - first).total_seconds() / gap) + 1
        return [ResultRow(value=steps - count, time=first, until=last)]

    # --- comparison and notes ------------------------------------------------------------------

    def _compare_periods(self, rows: list[ResultRow]) -> None:
        if not self.query.change or len(self.query.periods) < 2:
            return
        first = {tuple(row.group): row for row in rows if row.period == rows[0].period}
        for row in rows:
            base = first.get(tuple(row.group))
            if base is None or base is row:
                continue
            before = _to_float(base.value)
            row.change = _to_float(row.value) - before
            row.percent = 100 * row.change / abs(before) if before else None

    def _raise_no_rows(self, start: datetime | None, end: datetime | None) -> None:
        """Raise an error for an empty query result that states which times the data covers.

        Raises:
            ValidationError: Always.
        """
        profile = self.scope.profile
        label = f"{profile.table.label} has no rows"
        if start or end:
            label += f" for {_format_period(start, end)}"
        if self.query.where:
            label += " that match the filters"
        if profile.first and profile.last:
            covered = date_range_text(profile.first, profile.last, profile.frequency)
            raise query_error(
                f"{label}: the data covers {covered}.", "Ask about a time in this range."
            )
        raise query_error(f"{label}.", "Use other filters.")

    def _collect_notes(self) -> list[str]:
        query, profile = self.query, self.scope.profile
        notes = []
        tables: dict[str, TableProfile] = {profile.table.label: profile}
        tables |= {k.profile.table.label: k.profile for k in self.scope.used_columns.values()}
        timed = self.scope.moment_sql is not None and (
            query.periods or query.rolling or any(part for _, part in self.groups)
        )
        if timed and profile.alternate_profiles and profile.time and query.time is None:
            others = join_list(
                [p.time.columns[0] for p in profile.alternate_profiles if p.time], "or"
            )
            notes.append(f"Times refer to {profile.time.columns[0]}, not to {others}")
        for table in tables.values():
            notes += table.unreadable_notes(self.scope.used_columns, include_time=bool(timed))
        guessed = [
            known.column.name
            for known in self.scope.used_columns.values()
            if known.column and known.column.inferred_unit
        ]
        if guessed:
            unit = self.scope.unit_of(guessed[0])
            notes.append(f"The unit {unit} of {', '.join(guessed)} is inferred from the values")
        assumed = [f for f in query.where if f.unit and self.scope.unit_of(f.column) is None]
        notes += [f"{f.column} has no unit; {f.unit} is assumed" for f in assumed]
        for start, end in query.periods:
            if profile.last and end and profile.last < end and start and start <= profile.last:
                step = {"year": 366, "quarter": 92, "month": 31, "week": 7}
                slack = step.get(profile.frequency or "", 1)
                if (end - profile.last).days > slack:
                    last = date_range_text(profile.last, profile.last, profile.frequency)
                    notes.append(f"The data ends with {last}")
        return list(dict.fromkeys(notes))


def _convert_units(row: ResultRow, factor: float, offset: float) -> None:
    if (factor, offset) != (1.0, 0.0) and isinstance(row.value, int | float):
        row.value = row.value * factor + offset
        row.change = None if row.change is None else row.change * factor


def _subtract_previous(rows: list[ResultRow]) -> list[ResultRow]:
    """Replace each value by its difference from the previous group's value."""
    found = []
    for before, row in pairwise(rows):
        difference = _to_float(row.value) - _to_float(before.value)
        base = abs(_to_float(before.value))
        percent = 100 * difference / base if base else None
        found.append(row.model_copy(update={"value": difference, "percent": percent}))
    return found


def _to_plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    return value


def _to_float(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


def _format_group(key: Any, part: str | None, name: str) -> str:
    if key is None:
        return f"no {name}"
    if part is not None:
        return bucket_text(key, {"iso_week": "week number"}.get(part, part))
    if isinstance(key, float):
        return f"{name} {key:g}"
    return str(key)


def _format_period(start: datetime | None, end: datetime | None) -> str:
    """Format the name of a time period, such as "June 2012".

    >>> _format_period(datetime(2015, 7, 1), datetime(2015, 8, 1)), _format_period(None, None)
    ('July 2015', 'all times')
    """
    if start is None and end is None:
        return "all times"
    from capgraph.capabilities.formatting import date_text, last_day_before

    if start is None:
        assert end is not None
        return f"before {date_text(end)}"
    if end is None:
        return f"since {date_text(start)}"
    for unit, months in (("year", 12), ("quarter", 3), ("month", 1)):
        is_start = start.day == 1 and (start.month - 1) % months == 0 and not start.time().hour
        index = start.year * 12 + start.month - 1 + months
        if is_start and end == datetime(index // 12, index % 12 + 1, 1):
            return date_text(start, unit)
    if (end - start).total_seconds() <= 3600:
        return date_text(start, "hour")
    last = end if (end.hour, end.minute) != (0, 0) else last_day_before(end)
    return date_range_text(start, last, "day")
