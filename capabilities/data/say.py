"""Answers in words."""

from __future__ import annotations

from datetime import datetime

from capgraph.capabilities.contexts import ResultRow
from capgraph.capabilities.data.engine import Computed
from capgraph.capabilities.query import Filter, Query
from capgraph.capabilities.wording import (
    count_of,
    date_text,
    listed,
    number_text,
    signed,
    value_text,
)

_WORDS = {
    "rows": "number of rows", "count": "number of values", "sum": "total", "mean": "mean",
    "median": "median", "min": "lowest", "max": "highest", "std": "standard deviation of",
    "distinct": "number of different", "missing": "number of rows without",
    "first": "first", "last": "last", "slope": "change a year of",
}  # fmt: skip
_COUNTED = ("rows", "count", "distinct", "missing", "streak", "gaps")
_SIGNS = {"=": "is", "in": "is", "!=": "is not", "not in": "is not"}


def say(found: Computed) -> str:
    """Say what a query gave, in one or two sentences."""
    return _Speaker(found).text()


class _Speaker:
    def __init__(self, found: Computed) -> None:
        self.found = found
        self.query: Query = found.query
        aggregate = found.query.aggregate
        self.raw = aggregate in ("values", "min", "max", "first", "last")
        self.decimals = found.decimals if self.raw else max(2, found.decimals + 1)

    def text(self) -> str:
        query, rows = self.query, self.found.rows
        if query.aggregate == "streak":
            return self._streak()
        if not rows:
            return f"There is none{self._conditions()}."
        if query.aggregate == "gaps":
            row = rows[0]
            return (
                f"{self._value(row)} times are missing between {self._moment(row.time)} and"
                f" {self._moment(row.until)}."
            )
        if query.group_by:
            return self._table()
        if len(rows) == 1 or query.periods:
            listing = [self._single(row) for row in rows]
            if len(listing) > 1 and query.aggregate == "values":
                return self._values()
            return " ".join(listing) + self._ties()
        return self._values()

    # --- forms ---------------------------------------------------------------------------------

    def _single(self, row: ResultRow) -> str:
        when = _when(row.period)
        if self.query.share and row.percent is not None:
            of = "all rows" if self.query.aggregate == "rows" else f"the {self._subject()}"
            part = _percent(row.percent)
            return f"Rows{self._conditions()}: {part} of {of}{when} ({self._value(row)})."
        text = f"The {self._subject()}{self._conditions()}{when} was {self._value(row)}"
        if self.query.by and self.query.aggregate == "sum" and isinstance(row.value, int | float):
            text += f" ({_percent(100 * row.value)})"
        found_there = self.query.order == "group" and self.query.aggregate == "values"
        where = self._place(row, timed=not (when and found_there))
        text += f", {where}" if where else ""
        if row.change is not None:
            percent = f" ({row.percent:+.2f}%)" if row.percent is not None else ""
            higher = "higher" if row.change > 0 else "lower" if row.change < 0 else "different"
            amount = value_text(abs(row.change), self._places(row.change), self._unit())
            text += f", {amount} {higher}{percent} than in {self.found.rows[0].period}"
        return f"{text}."

    def _table(self) -> str:
        query, found = self.query, self.found
        groups = listed([name.removeprefix("time.").replace("_", " ") for name in query.group_by])
        kind = "Change of the " if query.change and not query.periods else "The "
        order = f", {query.order} first" if query.order != "group" and len(found.rows) > 1 else ""
        period = found.rows[0].period
        when = _when(period) if len(query.periods) == 1 else ""
        if query.limit == 1 and len(found.rows) == 1:
            row = found.rows[0]
            best = "highest" if query.order == "highest" else "lowest"
            return (
                f"{', '.join(row.group)} has the {best} {self._subject()}{self._conditions()}"
                f"{when}: {self._entry(row)}.{self._ties()}"
            )
        entries = "; ".join(f"{self._group(row)}: {self._entry(row)}" for row in found.rows)
        more = f"; and {count_of(found.more, 'group')} more" if found.more else ""
        return (
            f"{kind}{self._subject()}{self._conditions()}{when} by {groups}{order} \u2013"
            f" {entries}{more}."
        )

    def _values(self) -> str:
        found = self.found
        entries = "; ".join(
            ", ".join(part for part in (self._value(row), self._place(row)) if part)
            for row in found.rows
        )
        more = f"; and {count_of(found.more, 'row')} more" if found.more else ""
        order = f", {self.query.order} first" if self.query.order != "group" else ""
        return f"{self._subject()}{self._conditions()}{order}: {entries}{more}."

    def _streak(self) -> str:
        if not self.found.rows:
            return f"There is no row{self._conditions()}."
        row = self.found.rows[0]
        text = (
            f"The longest run of rows{self._conditions()} has {count_of(int(row.value or 0), 'row')},"
            f" from {self._moment(row.time)} to {self._moment(row.until)}."
        )
        return text + self._ties("runs as long")

    # --- parts ---------------------------------------------------------------------------------

    def _subject(self) -> str:
        query = self.query
        name = (query.value or "").strip("`")
        if query.rolling:
            name = f"{name} (mean of {query.rolling} rows)"
        if query.aggregate == "values":
            return name if len(self.found.rows) > 1 else self._extreme(name)
        if query.aggregate == "percentile":
            return f"{query.percentile:g}th percentile of {name}"
        if query.aggregate == "correlation":
            return f"correlation of {name} and {query.by}"
        if query.by:
            return f"total {name} / total {query.by}"
        if query.aggregate == "rows":
            return _WORDS["rows"]
        if query.limit == 1 and query.aggregate in ("max", "min"):
            return name  # "has the highest" stands before it
        return f"{_WORDS[query.aggregate]} {name}"

    def _extreme(self, name: str) -> str:
        return {"highest": f"highest {name}", "lowest": f"lowest {name}"}.get(
            self.query.order, name
        )

    def _conditions(self) -> str:
        tests = [_test(given) for given in self.query.where]
        return f" where {' and '.join(tests)}" if tests else ""

    def _entry(self, row: ResultRow) -> str:
        text = self._value(row)
        if self.query.change and not self.query.periods and isinstance(row.value, int | float):
            text = signed(row.value, self._places(row.value), self._unit())
        if row.change is not None:
            text += f" ({signed(row.change, self._places(row.change), self._unit())})"
        return text + (f" ({_percent(row.percent)})" if row.percent is not None else "")

    def _group(self, row: ResultRow) -> str:
        many = len(self.query.periods) > 1 and row.period
        return ", ".join([*row.group, *([str(row.period)] if many else [])])

    def _place(self, row: ResultRow, *, timed: bool = True) -> str:
        parts = [f"{name} {text}" for name, text in row.shown.items()]
        if row.time is not None and timed:
            exact = self.found.profile.frequency in ("minute", "hour", "day", "week", None)
            parts.append(f"{'on' if exact else 'in'} {self._moment(row.time)}")
        return ", ".join(parts)

    def _ties(self, what: str = "rows with it") -> str:
        if self.found.tied:
            return f" The same holds for {listed(list(self.found.tied))}."
        return f" There are {self.found.ties:,} {what}." if self.found.ties > 1 else ""

    def _moment(self, moment: datetime | None) -> str:
        return date_text(moment, self.found.profile.frequency) if moment else "?"

    def _unit(self) -> str | None:
        plain = self.query.aggregate in (*_COUNTED, "correlation") or self.query.by
        return None if plain else self.found.unit

    def _places(self, value: float) -> int:
        if self.query.aggregate in _COUNTED:
            return 0
        whole = isinstance(value, int) or float(value).is_integer()
        if whole and (not self.raw or self.decimals == 0):
            return 0
        size = abs(value)
        # Small numbers keep four digits that count.
        small = 2 if size >= 10 else 3 if size >= 1 else 4
        return self.decimals if self.raw and self.decimals else max(small, min(self.decimals, 2))

    def _value(self, row: ResultRow) -> str:
        if not isinstance(row.value, int | float) or isinstance(row.value, bool):
            return str(row.value)
        return value_text(row.value, self._places(row.value), self._unit())


def _when(period: str | None) -> str:
    """Put a period behind what was so then.

    >>> _when("July 2015"), _when("1 June 2015 to 31 August 2015")
    (' in July 2015', ' from 1 June 2015 to 31 August 2015')
    """
    if not period:
        return ""
    if period.startswith(("since", "before")):
        return f" {period}"
    if " to " in period:
        return f" from {period}"
    return f" {'on' if len(period.split()) > 2 else 'in'} {period}"


def _percent(value: float) -> str:
    return f"{value:.2f}%" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}%"


def _test(given: Filter) -> str:
    if given.op in ("missing", "present"):
        return f"{given.column} is {'empty' if given.op == 'missing' else 'given'}"
    values = given.value if isinstance(given.value, list) else [given.value]
    texts = [
        number_text(v, 0) if isinstance(v, float) and v.is_integer() else str(v) for v in values
    ]
    unit = f" {given.unit}" if given.unit else ""
    return f"{given.column} {_SIGNS.get(given.op, given.op)} {listed(texts, 'or')}{unit}"
