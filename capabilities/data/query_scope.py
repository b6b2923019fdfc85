"""Resolver of the names in a query to columns and SQL expressions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from capgraph.base import ErrorSeverity, ValidationError
from capgraph.capabilities.data.arithmetic import arithmetic_sql
from capgraph.capabilities.data.cell_formats import TimeColumns, number_sql, time_sql
from capgraph.capabilities.data.profile import TableColumn, TableProfile
from capgraph.capabilities.data.session import DataSession, quote_identifier
from capgraph.capabilities.data.units import unit_conversion
from capgraph.capabilities.data.words import fold, split_name
from capgraph.capabilities.periods.expressions import DAY_NAMES, MONTH_NAMES
from capgraph.capabilities.query import TIME_PARTS, TIME_UNITS, Filter, Query

_DUPLICATE_SUFFIX = re.compile(r" \(column \d+\)$")
_TIME_PART_SQL = {
    "weekday": "isodow({t}) - 1",
    "weekend": "CASE WHEN isodow({t}) > 5 THEN 'weekend' ELSE 'working day' END",
    "hour_of_day": "hour({t})",
    "month_of_year": "month({t})",
    "iso_week": "week({t})",
}
_TIME_PART_NAMES = {"weekday": DAY_NAMES, "month_of_year": MONTH_NAMES}
_YES, _NO = ("true", "yes", "1", "t", "y"), ("false", "no", "0", "f", "n")
_MAX_LISTED_NAMES = 20


def query_error(message: str, fix: str) -> ValidationError:
    """Create an error for an invalid query, with a severity that lets the planner correct it."""
    return ValidationError(message, fix=fix, severity=ErrorSeverity.REPLANNING)


def list_names(names: Iterable[str], similar_to: str = "") -> str:
    """Format a list of names for a message.

    A long list is shortened to the names that are most similar to ``similar_to``.

    >>> list_names(["wind", "rain"])
    'wind, rain'
    """
    known_names = list(names)
    if len(known_names) > _MAX_LISTED_NAMES:
        close = get_close_matches(similar_to, known_names[:5000], n=5, cutoff=0.4)
        rest = [name for name in known_names[:_MAX_LISTED_NAMES] if name not in close]
        known_names = [
            *close,
            *rest[: _MAX_LISTED_NAMES - len(close)],
            f"… ({len(known_names):,} in all)",
        ]
    return ", ".join(name[:80] for name in known_names)


@dataclass(frozen=True)
class KnownColumn:
    """Column that a query can refer to, with its SQL expression.

    Attributes:
        column: Profiled column, or ``None`` for a time column.
        sql: SQL expression of the column.
        profile: Profile of the table that contains the column.
    """

    column: TableColumn | None
    sql: str
    profile: TableProfile


class QueryScope:
    """Name resolver that maps the column names of one query to SQL expressions.

    Args:
        session: Session in which the tables are open.
        profiles: Profiles of the available tables.
        query: Query to resolve.

    Attributes:
        profile: Profile of the table that the query reads.
        source: SQL table expression for the ``FROM`` clause.
        moment_sql: SQL expression of a row's time, if the table has one.
        parameters: Bound query values by placeholder name.
        used_columns: Columns that the query reads.
    """

    def __init__(
        self, session: DataSession, profiles: Sequence[TableProfile], query: Query
    ) -> None:
        self.profile: TableProfile = choose_table(profiles, query)
        self.date_columns: dict[str, TimeColumns] = {
            known.time.columns[0]: known.time
            for known in self.profile.alternate_profiles
            if known.time
        }
        self.parameters: dict[str, Any] = {}
        self.used_columns: dict[str, KnownColumn] = {}
        self.source: str = session.relation(self.profile.table)
        self.known_columns: dict[str, KnownColumn] = _list_columns(self.profile, "a")
        if query.join:
            self._join(session, _find_named_table(profiles, query.join))
        else:
            self.source = f"{self.source} AS a"
        self.moment_sql: str | None = (
            time_sql(self.profile.time, "a.") if self.profile.time else None
        )

    def _join(self, session: DataSession, other: TableProfile) -> None:
        """Join a second table on a shared key that is unique in that table.

        The key must be unique so that no row is counted twice.
        """
        theirs = _list_columns(other, "b")
        shared = [name for name in theirs if name in self.known_columns]
        relation = session.relation(other.table)
        key = None
        for name in [*([n] for n in shared), shared] if shared else []:
            listed = ", ".join(quote_identifier(n) for n in name)
            doubled = session.query(
                f"SELECT 1 FROM {relation} GROUP BY {listed} HAVING count(*) > 1 LIMIT 1"  # noqa: S608
            )
            if not doubled:
                key = name
                break
        if key is None:
            raise query_error(
                f"The table {other.table.label} cannot be joined with {self.profile.table.label}: it has no"
                " key among their common columns"
                + (f" ({list_names(shared)})." if shared else " because they have none."),
                "Swap 'table' and 'join', or query one table only.",
            )
        on = " AND ".join(
            f"a.{quote_identifier(name)} = b.{quote_identifier(name)}" for name in key
        )
        self.source = f"{self.source} AS a LEFT JOIN {relation} AS b ON {on}"
        self.known_columns = {**theirs, **self.known_columns}

    # --- names ---------------------------------------------------------------------------------

    def find_column(self, name: str) -> KnownColumn | None:
        """Find a column by name, or return ``None`` if no column matches.

        An exact match takes precedence over spelling variants.

        Raises:
            ValidationError: Several columns match the name.
        """
        if name in self.known_columns:
            found = [name]
        else:
            found = [n for n in self.known_columns if fold(n) == fold(name)]
            found = found or [
                n for n in self.known_columns if fold(_DUPLICATE_SUFFIX.sub("", n)) == fold(name)
            ]
            words = [] if re.search(r"[-+*/;]", name) else split_name(name)
            found = found or [n for n in self.known_columns if words and split_name(n) == words]
        if len(found) > 1:
            raise query_error(
                f"The column name {name!r} is ambiguous, because it matches {len(found)} columns "
                f"of the table {self.profile.table.label}.",
                f"Name one of: {list_names(found)}.",
            )
        if not found:
            return None
        self.used_columns[found[0]] = self.known_columns[found[0]]
        return self.known_columns[found[0]]

    def require_column(self, name: str) -> KnownColumn:
        """Find a column by name, or raise an error if no column matches.

        Raises:
            ValidationError: The column does not exist. The message lists the valid columns.
        """
        found = self.find_column(name)
        if found is None:
            raise query_error(
                f"The table {self.profile.table.label} has no column {name[:80]!r}.",
                f"Use one of: {list_names(self.known_columns, name)}.",
            )
        return found

    def require_time_sql(self) -> str:
        """Return the SQL expression for the timestamp of a row.

        Raises:
            ValidationError: The table has no time column.
        """
        if self.moment_sql is None:
            raise query_error(
                f"The table {self.profile.table.label} has no column with dates.",
                f"Query without a time. Columns: {list_names(self.known_columns)}.",
            )
        return self.moment_sql

    def bind_value(self, value: Any) -> str:
        """Bind a value as a query parameter and return its placeholder."""
        name = f"v{len(self.parameters)}_"
        self.parameters[name] = value
        return f"${name}"

    def unit_of(self, text: str | None) -> str | None:
        """Return the unit of a column or expression, or ``None`` if it is unknown.

        The unit of a difference between two date columns is ``days``.
        """
        found = self.find_column(text) if text else None
        dates = [name.strip("` ") for name in (text or "").split(" - ")]
        if found is None and len(dates) == 2 and self.profile.date_columns.issuperset(dates):
            return "days"
        return found.column.unit if found and found.column else None

    # --- expressions ---------------------------------------------------------------------------

    def number_sql(self, name: str) -> str:
        """Return a SQL expression that converts a column to numbers.

        Raises:
            ValidationError: The column contains no numbers.
        """
        found = self.require_column(name)
        if found.column is None:
            return f"TRY_CAST({found.sql} AS DOUBLE)"
        if found.column.kind in ("number", "flag") or found.column.number_format != "plain":
            return number_sql(found.column.number_format, found.sql)
        codes = [c.name for c in found.profile.numeric_columns]
        raise query_error(
            f"The column {found.column.name!r} of {found.profile.table.label} contains no numbers.",
            f"Use one of: {list_names(codes, name)}.",
        )

    def text_sql(self, name: str) -> str:
        """Return a SQL expression that converts a column or time part to text.

        The result is ``NULL`` for empty cells.
        """
        if self.find_column(name) is None and name in (*TIME_UNITS, *TIME_PARTS, "time"):
            return f"CAST({self.group_sql(name)[0]} AS VARCHAR)"
        return f"nullif(trim(CAST({self.require_column(name).sql} AS VARCHAR)), '')"

    def group_sql(self, name: str) -> tuple[str, str | None]:
        """Return the SQL expression for a ``GROUP BY`` column, and its time part if it has one."""
        found = None if name.startswith("time.") else self.find_column(name)
        if found is not None:
            if found.column is not None and found.column.kind == "number":
                return self.number_sql(name), None
            return self.text_sql(name), None
        name = name.removeprefix("time.")
        if name == "time":
            return self.require_time_sql(), "time"
        if name in TIME_UNITS:
            return f"date_trunc('{name}', {self.require_time_sql()})", name
        if name in TIME_PARTS:
            self._check_precision(name)
            return f"({_TIME_PART_SQL[name].format(t=self.require_time_sql())})", name
        self.require_column(name)
        raise AssertionError(name)

    def _check_precision(self, part: str) -> None:
        """Raise an error if a time part is finer than the data.

        For example, yearly data has no weekdays.
        """
        needed = {"hour_of_day": "hour", "month_of_year": "month"}.get(part, "day")
        units = ("hour", "day", "month", "quarter", "year")
        if self.profile.precision in units[units.index(needed) + 1 :] and self.require_time_sql():
            raise query_error(
                f"The times of {self.profile.table.label} have no {part.replace('_', ' ')}: they are"
                f" whole {self.profile.precision}s.",
                f"Query without it. Columns: {list_names(self.known_columns)}.",
            )

    def value_sql(self, text: str) -> str:
        """Return a SQL expression for a numeric column or for arithmetic over columns."""
        if self.find_column(text) is not None:
            return self.number_sql(text)
        if text in TIME_UNITS or text == "weekend":
            raise query_error(
                f"{text!r} is not a number.", "Group by it, or count its distinct values."
            )
        if text in TIME_PARTS:
            return f"CAST({self.group_sql(text)[0]} AS DOUBLE)"
        if not re.search(r"[-+*/]", text):
            self.require_column(text.strip("` "))
        try:
            return arithmetic_sql(text, self._build_term_sql)
        except SyntaxError:
            raise query_error(
                f"The table {self.profile.table.label} has no column {text!r}, and the text is not"
                " arithmetic of its columns.",
                "Use + - * / and ( ), with other names in backticks. Columns:"
                f" {list_names(self.known_columns)}.",
            ) from None

    def _build_term_sql(self, name: str) -> str:
        """Return SQL for one term of an arithmetic expression, with dates converted to days."""
        found, own_time = self.find_column(name), self.profile.time
        time = (
            own_time if own_time and found and found.column is None else self.date_columns.get(name)
        )
        return f"(epoch({time_sql(time, 'a.')}) / 86400)" if time else self.number_sql(name)

    # --- tests ---------------------------------------------------------------------------------

    def filter_sql(self, row_filter: Filter) -> str:
        """Translate a row filter to a SQL condition.

        Raises:
            ValidationError: No row can have the filter's value. The message lists the valid values.
        """
        if row_filter.op in ("missing", "present"):
            found = self.require_column(row_filter.column)
            number = found.column is not None and found.column.kind == "number"
            value = (
                self.number_sql(row_filter.column) if number else self.text_sql(row_filter.column)
            )
            return f"({value} IS {'NOT ' if row_filter.op == 'present' else ''}NULL)"
        values: list[Any] = (
            row_filter.value if isinstance(row_filter.value, list) else [row_filter.value]
        )
        found_column = self.find_column(row_filter.column)
        kind = found_column.column.kind if found_column and found_column.column else None
        if found_column is None and row_filter.column in _TIME_PART_NAMES:
            names = _TIME_PART_NAMES[row_filter.column]
            offset = 0 if row_filter.column == "weekday" else 1
            values = [_find_name_index(value, names, offset) for value in values]
        if kind == "flag":
            values = [_convert_flag(value) for value in values]
        if row_filter.op in ("<", "<=", ">", ">="):
            return self._build_comparison_sql(row_filter, values[0])
        negated = row_filter.op in ("!=", "not in")
        if self._is_numeric(row_filter.column, kind, values):
            left = self.value_sql(row_filter.column)
            factor, offset_by = self._find_conversion(row_filter)
            placeholders = ", ".join(self.bind_value(float(v) * factor + offset_by) for v in values)
        else:
            left = f"lower({self.text_sql(row_filter.column)})"
            if kind == "category" and found_column and found_column.column:
                self._check_values(row_filter, found_column.column, values)
            placeholders = ", ".join(
                self.bind_value(str(value).strip().lower()) for value in values
            )
        test = f"({left} IN ({placeholders}))"
        return f"(NOT coalesce({test}, FALSE))" if negated else test

    def _is_numeric(self, name: str, kind: str | None, values: Sequence[Any]) -> bool:
        if kind in ("number", "flag") or (kind is None and self.find_column(name) is None):
            if all(_is_number(value) for value in values):
                return True
            if kind == "number":
                raise query_error(
                    f"The column {name!r} contains numbers: {values[0]!r} is not a number.",
                    "Compare with a number.",
                )
        return False

    def _find_conversion(self, row_filter: Filter) -> tuple[float, float]:
        return (
            unit_conversion(row_filter.unit, self.unit_of(row_filter.column))
            if row_filter.unit
            else (1.0, 0.0)
        )

    def _build_comparison_sql(self, row_filter: Filter, value: Any) -> str:
        """Return a SQL condition that compares a column with a value.

        The value is a number, a time, or the name of a different column.
        """
        found = self.find_column(row_filter.column)
        timed = row_filter.column == "time" and found is None
        timed = timed or (found is not None and found.column is None and not _is_number(value))
        other = self.date_columns.get(found.column.name) if found and found.column else None
        if timed or other:
            try:
                moment = datetime.fromisoformat(str(value))
            except ValueError:
                raise query_error(
                    f"{value!r} is not a time.", "Write it as 2024-05-31T12:00."
                ) from None
            moment_sql = time_sql(other, "a.") if other else self.require_time_sql()
            return f"({moment_sql} {row_filter.op} {self.bind_value(moment)})"
        left = self.value_sql(row_filter.column)
        if _is_number(value):
            factor, offset = self._find_conversion(row_filter)
            return f"({left} {row_filter.op} {self.bind_value(float(value) * factor + offset)})"
        return f"({left} {row_filter.op} {self.value_sql(str(value))})"

    def _check_values(self, row_filter: Filter, column: TableColumn, values: Sequence[Any]) -> None:
        known = {value.strip().lower() for value in column.values}
        for value in values:
            if column.has_all_values and str(value).strip().lower() not in known:
                raise query_error(
                    f"No row of the table {self.profile.table.label} has {column.name} = "
                    f"{str(value)[:80]!r}.",
                    f"Use one of: {list_names(column.values, str(value))}.",
                )


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, int | float)


def _find_name_index(value: Any, names: list[str], offset: int) -> Any:
    if _is_number(value):
        return value
    found = [i for i, n in enumerate(names) if n.startswith(str(value).strip().lower())]
    if len(found) != 1:
        raise query_error(f"{value!r} is not one of {', '.join(names)}.", "Use one of these.")
    return found[0] + offset


def _convert_flag(value: Any) -> Any:
    text = str(value).strip().lower()
    return 1 if text in _YES else 0 if text in _NO else value


def _list_columns(profile: TableProfile, alias: str) -> dict[str, KnownColumn]:
    found = {
        c.name: KnownColumn(c, f"{alias}.{quote_identifier(c.name)}", profile)
        for c in profile.columns
    }
    timed = profile.time.columns if profile.time else []
    return {
        **{name: KnownColumn(None, f"{alias}.{quote_identifier(name)}", profile) for name in timed},
        **found,
    }


def _find_named_table(profiles: Sequence[TableProfile], name: str) -> TableProfile:
    """Find the only table whose label or name matches the given name."""
    folded_name = fold(name)
    names = {p.table.label: {fold(p.table.label), fold(p.table.name or "")} for p in profiles}
    stems = {p.table.label: fold(p.table.label).rsplit(".", 1)[0] for p in profiles}
    for found in (
        [p for p in profiles if folded_name in names[p.table.label]],
        [p for p in profiles if folded_name == stems[p.table.label]],
        [p for p in profiles if folded_name in fold(p.table.label)],
    ):
        if len(found) == 1:
            return found[0]
        if found:
            break
    raise query_error(
        f"The table {name[:80]!r} does not exist."
        if not found
        else f"{name!r} is ambiguous: it matches several tables.",
        f"Use one of: {list_names((p.table.label for p in profiles), name)}.",
    )


def choose_table(profiles: Sequence[TableProfile], query: Query) -> TableProfile:
    """Choose the table that a query names, or the only table that contains all of its columns.

    Raises:
        ValidationError: No table or several tables match, or the table lacks the time column.
    """
    profile = _find_table(profiles, query)
    if query.time is None:
        return profile
    profiles_by_column = {
        p.time.columns[0]: p for p in (profile, *profile.alternate_profiles) if p.time
    }
    found = next(
        (profiles_by_column[name] for name in profiles_by_column if fold(name) == fold(query.time)),
        None,
    )
    if found is None:
        raise query_error(
            f"The table {profile.table.label} has no date column {query.time[:80]!r}.",
            f"Use one of: {list_names(profiles_by_column)}."
            if profiles_by_column
            else "Query without a time.",
        )
    return replace(
        found,
        alternate_profiles=[p for p in (profile, *profile.alternate_profiles) if p is not found],
    )


def _find_table(profiles: Sequence[TableProfile], query: Query) -> TableProfile:
    if query.table:
        return _find_named_table(profiles, query.table)
    if len(profiles) == 1:
        return profiles[0]
    required = {fold(name) for name in query.column_names()} - {*TIME_UNITS, *TIME_PARTS, "time"}
    fitting = [
        profile
        for profile in profiles
        if required <= {fold(name) for name in _list_columns(profile, "a")}
    ]
    if len(fitting) == 1:
        return fitting[0]
    labels = list_names(p.table.label for p in fitting or profiles)
    problem = "Several tables have" if fitting else "No table has all of"
    raise query_error(
        f"{problem} the columns of the query: {list_names(sorted(required)) or 'no column is named'}.",
        f"Name one of these in 'table': {labels}.",
    )
