"""From the description of a data set to the rows: one query, built the same way every time.

The relation has the columns ``t`` (time), ``s`` (series), ``m`` (number of the measure),
``v`` (value), ``l`` (name of the row), ``r`` (number of the row) and ``p`` (number of the
period).
"""

from __future__ import annotations

from datetime import datetime

from capabilities.contexts import DataPart, Dataset, Period, TimeRange
from capabilities.data.readings import number_sql, time_sql
from capabilities.data.session import Session, check_unchanged, identifier, literal

_BIG = 5_000_000


def moment_literal(moment: datetime) -> str:
    """Write a moment for SQL.

    >>> moment_literal(datetime(2015, 7, 19))
    "TIMESTAMP '2015-07-19T00:00:00'"
    """
    return f"TIMESTAMP '{moment.isoformat()}'"


def _inside(period: Period) -> str:
    tests = []
    if period.start is not None:
        tests.append(f"t >= {moment_literal(period.start)}")
    if period.end is not None:
        tests.append(f"t < {moment_literal(period.end)}")
    return " AND ".join(tests) or "TRUE"


def time_condition(time_range: TimeRange) -> str:
    """Return SQL that keeps the rows of a time range.

    >>> time_condition(TimeRange(months=[6, 7]))
    '(month(t) IN (6, 7))'
    """
    tests = []
    if time_range.periods:
        tests.append(" OR ".join(f"({_inside(period)})" for period in time_range.periods))
    for expression, numbers in (
        ("month(t)", time_range.months),
        ("isodow(t) - 1", time_range.weekdays),
        ("hour(t)", time_range.hours),
    ):
        if numbers:
            tests.append(f"{expression} IN ({', '.join(str(int(n)) for n in numbers)})")
    if time_range.days:
        days = ", ".join(literal(day) for day in time_range.days)
        tests.append(f"strftime(t, '%m-%d') IN ({days})")
    return " AND ".join(f"({test})" for test in tests) or "TRUE"


def _period_number(time_range: TimeRange) -> str:
    if len(time_range.periods) < 2:
        return "0"
    cases = " ".join(
        f"WHEN {_inside(period)} THEN {number}" for number, period in enumerate(time_range.periods)
    )
    return f"CASE {cases} END"


def _part_sql(session: Session, dataset: Dataset, number: int, part: DataPart) -> str:
    relation = session.relation(part.table)
    moment = time_sql(part.time) if part.time else "CAST(NULL AS TIMESTAMP)"
    if part.series:
        names = [f"coalesce(CAST({identifier(c)} AS VARCHAR), '?')" for c in part.series]
        series = " || ', ' || ".join(names)
    elif dataset.series_name == "file":
        series = literal(dataset.series[number])
    else:
        series = "CAST(NULL AS VARCHAR)"
    label = f"CAST({identifier(part.label_column)} AS VARCHAR)" if part.label_column else "NULL"
    tests = ["TRUE"]
    for item in part.filters:
        values = ", ".join(literal(value) for value in item.values)
        tests.append(f"CAST({identifier(item.column)} AS VARCHAR) IN ({values})")
    where = " AND ".join(tests)
    if len(part.columns) == 1:
        return (
            f"SELECT {moment} AS t, {series} AS s, 0 AS m, {number_sql(part.columns[0])} AS v,"  # noqa: S608
            f" {label} AS l, 0 AS r FROM {relation} WHERE {where}"
        )
    # One scan for all columns; the row number tells which values stood in one row.
    numbers = ", ".join(str(index) for index in range(len(part.columns)))
    values = ", ".join(number_sql(column) for column in part.columns)
    return (
        f"SELECT t, s, unnest([{numbers}]) AS m, unnest(vs) AS v, l, r FROM (SELECT {moment} AS t,"  # noqa: S608
        f" {series} AS s, {label} AS l, row_number() OVER () AS r, [{values}] AS vs"
        f" FROM {relation} WHERE {where})"
    )


def dataset_sql(session: Session, dataset: Dataset) -> str:
    """Return the query that yields the rows of a data set."""
    union = " UNION ALL ".join(
        _part_sql(session, dataset, number, part) for number, part in enumerate(dataset.parts)
    )
    where = time_condition(dataset.time_range)
    timed = " AND t IS NOT NULL" if dataset.parts[0].time is not None else ""
    return (
        f"SELECT t, s, m, v, l, r, {_period_number(dataset.time_range)} AS p FROM ({union})"  # noqa: S608
        f" WHERE v IS NOT NULL AND ({where}){timed}"
    )


def load(session: Session, dataset: Dataset) -> str:
    """Make the rows of a data set available under a name, and return that name.

    They become a table where they fit well into memory, else a view over the file.

    Raises:
        ValidationError: A file was changed since it was described.
    """
    for part in dataset.parts:
        check_unchanged(part.table)
    kind = "TEMP TABLE" if dataset.rows <= _BIG else "TEMP VIEW"
    session.query(f"CREATE OR REPLACE {kind} d AS {dataset_sql(session, dataset)}")
    return "d"
