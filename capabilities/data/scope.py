"""The names of a query: which columns they are, and the SQL that stands for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from capgraph.base import ErrorSeverity, ValidationError
from capgraph.capabilities.data.arithmetic import arithmetic_sql
from capgraph.capabilities.data.profile import Column, TableProfile
from capgraph.capabilities.data.readings import Time, number_sql, time_sql
from capgraph.capabilities.data.session import Session, identifier
from capgraph.capabilities.data.units import conversion
from capgraph.capabilities.data.words import fold, name_words
from capgraph.capabilities.periods.items import DAY_NAMES, MONTH_NAMES
from capgraph.capabilities.query import TIME_PARTS, TIME_UNITS, Filter, Query

_PLACE = re.compile(r" \(column \d+\)$")
_PARTS = {
    "weekday": "isodow({t}) - 1",
    "weekend": "CASE WHEN isodow({t}) > 5 THEN 'weekend' ELSE 'working day' END",
    "hour_of_day": "hour({t})",
    "month_of_year": "month({t})",
    "iso_week": "week({t})",
}
_NAMES = {"weekday": DAY_NAMES, "month_of_year": MONTH_NAMES}
_YES, _NO = ("true", "yes", "1", "t", "y"), ("false", "no", "0", "f", "n")
_SHOWN = 20


def replan(message: str, fix: str) -> ValidationError:
    """Return the error of a query that can be asked better: what is wrong, and what there is."""
    return ValidationError(message, fix=fix, severity=ErrorSeverity.REPLANNING)


def some(names: Iterable[str], near: str = "") -> str:
    """List names; of very many those that are nearest to a word.

    >>> some(["wind", "rain"])
    'wind, rain'
    """
    known = list(names)
    if len(known) > _SHOWN:
        close = get_close_matches(near, known[:5000], n=5, cutoff=0.4)
        rest = [name for name in known[:_SHOWN] if name not in close]
        known = [*close, *rest[: _SHOWN - len(close)], f"… ({len(known):,} in all)"]
    return ", ".join(name[:80] for name in known)


@dataclass(frozen=True)
class Known:
    """A column that a query may name.

    Attributes:
        column: What is known of it; ``None`` for a column of the time.
        sql: The column itself.
        profile: Its table.
    """

    column: Column | None
    sql: str
    profile: TableProfile


class Scope:
    """What the names of one query mean.

    Args:
        session: Where the tables are open.
        profiles: The tables at hand.
        query: The query.

    Attributes:
        profile: The table that is asked.
        source: What stands after FROM.
        moment: SQL of a row's time, if there is one.
        parameters: Values of the query, bound by name.
        used: Columns that the query reads.
    """

    def __init__(self, session: Session, profiles: Sequence[TableProfile], query: Query) -> None:
        self.profile: TableProfile = choose_table(profiles, query)
        self.moments: dict[str, Time] = {
            known.time.columns[0]: known.time for known in self.profile.others if known.time
        }
        self.parameters: dict[str, Any] = {}
        self.used: dict[str, Known] = {}
        self.source: str = session.relation(self.profile.table)
        self.known: dict[str, Known] = _columns_of(self.profile, "a")
        if query.join:
            self._join(session, _named(profiles, query.join))
        else:
            self.source = f"{self.source} AS a"
        self.moment: str | None = time_sql(self.profile.time, "a.") if self.profile.time else None

    def _join(self, session: Session, other: TableProfile) -> None:
        """Join the table whose key the first one holds, so that no row of it is counted twice."""
        theirs = _columns_of(other, "b")
        shared = [name for name in theirs if name in self.known]
        relation = session.relation(other.table)
        key = None
        for name in [*([n] for n in shared), shared] if shared else []:
            listed = ", ".join(identifier(n) for n in name)
            doubled = session.query(
                f"SELECT 1 FROM {relation} GROUP BY {listed} HAVING count(*) > 1 LIMIT 1"  # noqa: S608
            )
            if not doubled:
                key = name
                break
        if key is None:
            raise replan(
                f"{other.table.label} cannot be joined with {self.profile.table.label}: it has no"
                " key among their common columns"
                + (f" ({some(shared)})." if shared else ", for there are none."),
                "Swap 'table' and 'join', or ask one table only.",
            )
        on = " AND ".join(f"a.{identifier(name)} = b.{identifier(name)}" for name in key)
        self.source = f"{self.source} AS a LEFT JOIN {relation} AS b ON {on}"
        self.known = {**theirs, **self.known}

    # --- names ---------------------------------------------------------------------------------

    def find(self, name: str) -> Known | None:
        """Find a column by its name; the literal one comes before any other spelling.

        Raises:
            ValidationError: Several columns may be meant.
        """
        if name in self.known:
            found = [name]
        else:
            found = [n for n in self.known if fold(n) == fold(name)]
            found = found or [n for n in self.known if fold(_PLACE.sub("", n)) == fold(name)]
            words = [] if re.search(r"[-+*/;]", name) else name_words(name)
            found = found or [n for n in self.known if words and name_words(n) == words]
        if len(found) > 1:
            raise replan(
                f"{name!r} may mean {len(found)} columns of {self.profile.table.label}.",
                f"Name one of: {some(found)}.",
            )
        if not found:
            return None
        self.used[found[0]] = self.known[found[0]]
        return self.known[found[0]]

    def column(self, name: str) -> Known:
        """Find a column that must be there.

        Raises:
            ValidationError: It is not; lists what there is.
        """
        found = self.find(name)
        if found is None:
            raise replan(
                f"{self.profile.table.label} has no column {name[:80]!r}.",
                f"Use one of: {some(self.known, name)}.",
            )
        return found

    def time(self) -> str:
        """Return the SQL of a row's time.

        Raises:
            ValidationError: The table has none.
        """
        if self.moment is None:
            raise replan(
                f"{self.profile.table.label} has no column with dates.",
                f"Ask without a time; columns: {some(self.known)}.",
            )
        return self.moment

    def bind(self, value: Any) -> str:
        """Bind a value and return its place."""
        name = f"v{len(self.parameters)}_"
        self.parameters[name] = value
        return f"${name}"

    def unit(self, text: str | None) -> str | None:
        """Return the unit of a column; arithmetic has none, but that of two dates."""
        found = self.find(text) if text else None
        dates = [name.strip("` ") for name in (text or "").split(" - ")]
        if found is None and len(dates) == 2 and self.profile.dates.issuperset(dates):
            return "days"
        return found.column.unit if found and found.column else None

    # --- expressions ---------------------------------------------------------------------------

    def number(self, name: str) -> str:
        """Return SQL for a column as a number.

        Raises:
            ValidationError: It holds none.
        """
        found = self.column(name)
        if found.column is None:
            return f"TRY_CAST({found.sql} AS DOUBLE)"
        if found.column.kind in ("number", "flag") or found.column.reading != "plain":
            return number_sql(found.column.reading, found.sql)
        codes = [c.name for c in found.profile.numbers]
        raise replan(
            f"The column {found.column.name!r} of {found.profile.table.label} holds no numbers.",
            f"Use one of: {some(codes, name)}.",
        )

    def text(self, name: str) -> str:
        """Return SQL for a column, or a part of the time, as text; ``NULL`` where it is empty."""
        if self.find(name) is None and name in (*TIME_UNITS, *TIME_PARTS, "time"):
            return f"CAST({self.group(name)[0]} AS VARCHAR)"
        return f"nullif(trim(CAST({self.column(name).sql} AS VARCHAR)), '')"

    def group(self, name: str) -> tuple[str, str | None]:
        """Return SQL to group by, and the part of the time that it is."""
        found = None if name.startswith("time.") else self.find(name)
        if found is not None:
            if found.column is not None and found.column.kind == "number":
                return self.number(name), None
            return self.text(name), None
        name = name.removeprefix("time.")
        if name == "time":
            return self.time(), "time"
        if name in TIME_UNITS:
            return f"date_trunc('{name}', {self.time()})", name
        if name in TIME_PARTS:
            self._precise(name)
            return f"({_PARTS[name].format(t=self.time())})", name
        self.column(name)
        raise AssertionError(name)

    def _precise(self, part: str) -> None:
        """Refuse the weekdays of years: each would be that of its first day."""
        needed = {"hour_of_day": "hour", "month_of_year": "month"}.get(part, "day")
        known = ("hour", "day", "month", "quarter", "year")
        if self.profile.precision in known[known.index(needed) + 1 :] and self.time():
            raise replan(
                f"The times of {self.profile.table.label} are whole {self.profile.precision}s, which"
                f" have no {part.replace('_', ' ')}.",
                f"Ask without it; columns: {some(self.known)}.",
            )

    def value(self, text: str) -> str:
        """Return SQL for a column as a number, or for arithmetic of columns."""
        if self.find(text) is not None:
            return self.number(text)
        if text in TIME_UNITS or text == "weekend":
            raise replan(f"{text!r} is no number.", "Group by it, or count its different values.")
        if text in TIME_PARTS:
            return f"CAST({self.group(text)[0]} AS DOUBLE)"
        if not re.search(r"[-+*/]", text):
            self.column(text.strip("` "))
        try:
            return arithmetic_sql(text, self._term)
        except SyntaxError:
            raise replan(
                f"{self.profile.table.label} has no column {text!r}, and it is no arithmetic of its"
                " columns.",
                f"Use + - * / and ( ), other names in backticks; columns: {some(self.known)}.",
            ) from None

    def _term(self, name: str) -> str:
        """Return SQL for a column inside of arithmetic; dates count in days."""
        found, own = self.find(name), self.profile.time
        time = own if own and found and found.column is None else self.moments.get(name)
        return f"(epoch({time_sql(time, 'a.')}) / 86400)" if time else self.number(name)

    # --- tests ---------------------------------------------------------------------------------

    def test(self, given: Filter) -> str:
        """Return SQL for a filter.

        Raises:
            ValidationError: No row can have its value; says which there are.
        """
        if given.op in ("missing", "present"):
            found = self.column(given.column)
            number = found.column is not None and found.column.kind == "number"
            value = self.number(given.column) if number else self.text(given.column)
            return f"({value} IS {'NOT ' if given.op == 'present' else ''}NULL)"
        values: list[Any] = given.value if isinstance(given.value, list) else [given.value]
        found_column = self.find(given.column)
        kind = found_column.column.kind if found_column and found_column.column else None
        if found_column is None and given.column in _NAMES:
            names = _NAMES[given.column]
            offset = 0 if given.column == "weekday" else 1
            values = [_place(value, names, offset) for value in values]
        if kind == "flag":
            values = [_flag(value) for value in values]
        if given.op in ("<", "<=", ">", ">="):
            return self._compared(given, values[0])
        negated = given.op in ("!=", "not in")
        if self._numeric(given.column, kind, values):
            left = self.value(given.column)
            factor, offset_by = self._scale(given)
            places = ", ".join(self.bind(float(v) * factor + offset_by) for v in values)
        else:
            left = f"lower({self.text(given.column)})"
            if kind == "category" and found_column and found_column.column:
                self._check_values(given, found_column.column, values)
            places = ", ".join(self.bind(str(value).strip().lower()) for value in values)
        test = f"({left} IN ({places}))"
        return f"(NOT coalesce({test}, FALSE))" if negated else test

    def _numeric(self, name: str, kind: str | None, values: Sequence[Any]) -> bool:
        if kind in ("number", "flag") or (kind is None and self.find(name) is None):
            if all(_is_number(value) for value in values):
                return True
            if kind == "number":
                raise replan(
                    f"{name!r} holds numbers, and {values[0]!r} is none.", "Compare with a number."
                )
        return False

    def _scale(self, given: Filter) -> tuple[float, float]:
        return conversion(given.unit, self.unit(given.column)) if given.unit else (1.0, 0.0)

    def _compared(self, given: Filter, value: Any) -> str:
        """Compare with a number, a moment, or another column."""
        found = self.find(given.column)
        timed = given.column == "time" and found is None
        timed = timed or (found is not None and found.column is None and not _is_number(value))
        other = self.moments.get(found.column.name) if found and found.column else None
        if timed or other:
            try:
                moment = datetime.fromisoformat(str(value))
            except ValueError:
                raise replan(f"{value!r} is no time.", "Write it as 2024-05-31T12:00.") from None
            known = time_sql(other, "a.") if other else self.time()
            return f"({known} {given.op} {self.bind(moment)})"
        left = self.value(given.column)
        if _is_number(value):
            factor, offset = self._scale(given)
            return f"({left} {given.op} {self.bind(float(value) * factor + offset)})"
        return f"({left} {given.op} {self.value(str(value))})"

    def _check_values(self, given: Filter, column: Column, values: Sequence[Any]) -> None:
        known = {value.strip().lower() for value in column.values}
        for value in values:
            if column.complete and str(value).strip().lower() not in known:
                raise replan(
                    f"No row of {self.profile.table.label} has {column.name} = {str(value)[:80]!r}.",
                    f"Use one of: {some(column.values, str(value))}.",
                )


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, int | float)


def _place(value: Any, names: list[str], offset: int) -> Any:
    if _is_number(value):
        return value
    found = [i for i, n in enumerate(names) if n.startswith(str(value).strip().lower())]
    if len(found) != 1:
        raise replan(f"{value!r} is none of {', '.join(names)}.", "Use one of these.")
    return found[0] + offset


def _flag(value: Any) -> Any:
    text = str(value).strip().lower()
    return 1 if text in _YES else 0 if text in _NO else value


def _columns_of(profile: TableProfile, alias: str) -> dict[str, Known]:
    found = {c.name: Known(c, f"{alias}.{identifier(c.name)}", profile) for c in profile.columns}
    timed = profile.time.columns if profile.time else []
    return {
        **{name: Known(None, f"{alias}.{identifier(name)}", profile) for name in timed},
        **found,
    }


def _named(profiles: Sequence[TableProfile], name: str) -> TableProfile:
    """Find a table by its label, its name, or a part of them."""
    wanted = fold(name)
    names = {p.table.label: {fold(p.table.label), fold(p.table.name or "")} for p in profiles}
    stems = {p.table.label: fold(p.table.label).rsplit(".", 1)[0] for p in profiles}
    for found in (
        [p for p in profiles if wanted in names[p.table.label]],
        [p for p in profiles if wanted == stems[p.table.label]],
        [p for p in profiles if wanted in fold(p.table.label)],
    ):
        if len(found) == 1:
            return found[0]
        if found:
            break
    raise replan(
        f"There is no table {name[:80]!r}." if not found else f"{name!r} may mean several tables.",
        f"Use one of: {some((p.table.label for p in profiles), name)}.",
    )


def choose_table(profiles: Sequence[TableProfile], query: Query) -> TableProfile:
    """Choose the table that a query asks: the named one, or the only one with its columns.

    Raises:
        ValidationError: There is none, or more than one; or its rows have no such time.
    """
    profile = _chosen(profiles, query)
    if query.time is None:
        return profile
    known = {p.time.columns[0]: p for p in (profile, *profile.others) if p.time}
    found = next((known[name] for name in known if fold(name) == fold(query.time)), None)
    if found is None:
        raise replan(
            f"{profile.table.label} has no column of dates {query.time[:80]!r}.",
            f"Use one of: {some(known)}." if known else "Ask without a time.",
        )
    return replace(found, others=[p for p in (profile, *profile.others) if p is not found])


def _chosen(profiles: Sequence[TableProfile], query: Query) -> TableProfile:
    if query.table:
        return _named(profiles, query.table)
    if len(profiles) == 1:
        return profiles[0]
    wanted = {fold(name) for name in query.column_names()} - {*TIME_UNITS, *TIME_PARTS, "time"}
    fitting = [
        profile
        for profile in profiles
        if wanted <= {fold(name) for name in _columns_of(profile, "a")}
    ]
    if len(fitting) == 1:
        return fitting[0]
    labels = some(p.table.label for p in fitting or profiles)
    what = "Several tables have" if fitting else "No table has all of"
    raise replan(
        f"{what} the columns of the query: {some(sorted(wanted)) or 'none is named'}.",
        f"Name one in 'table': {labels}.",
    )
