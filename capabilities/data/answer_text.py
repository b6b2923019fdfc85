"""Functions that write query results as sentences."""

from __future__ import annotations

from datetime import datetime

from capgraph.capabilities.contexts import ResultRow
from capgraph.capabilities.data.query_engine import ComputedQuery
from capgraph.capabilities.formatting import (
    count_text,
    date_text,
    join_list,
    number_text,
    signed_value_text,
    value_text,
)
from capgraph.capabilities.query import Filter, Query

_AGGREGATE_WORDS = {
    "rows": "number of rows", "count": "number of values", "sum": "total", "mean": "mean",
    "median": "median", "min": "lowest", "max": "highest", "std": "standard deviation of",
    "distinct": "number of different", "missing": "number of rows without",
    "first": "first", "last": "last", "slope": "change a year of",
}  # fmt: skip
_COUNTING_AGGREGATES = ("rows", "count", "distinct", "missing", "streak", "gaps")
_OPERATOR_WORDS = {"=": "is", "in": "is", "!=": "is not", "not in": "is not"}


def describe_result(computed: ComputedQuery) -> str:
    """Describe the result of a query in one or two sentences."""
    return _AnswerWriter(computed).text()


class _AnswerWriter:
    """Formatter that describes the result of one query in sentences."""

    def __init__(self, computed: ComputedQuery) -> None:
        self.computed = computed
        self.query: Query = computed.query
        aggregate = computed.query.aggregate
        self.is_raw_value = aggregate in ("values", "min", "max", "first", "last")
        self.decimals = computed.decimals if self.is_raw_value else max(2, computed.decimals + 1)

    def text(self) -> str:
        query, rows = self.query, self.computed.rows
        if query.aggregate == "streak":
            return self._describe_streak()
        if not rows:
            return f"There are no rows{self._describe_conditions()}."
        if query.aggregate == "gaps":
            row = rows[0]
            return (
                f"{self._format_value(row)} times are missing between {self._format_moment(row.time)} and"
                f" {self._format_moment(row.until)}."
            )
        if query.group_by:
            return self._describe_groups()
        if len(rows) == 1 or query.periods:
            listing = [self._describe_single_value(row) for row in rows]
            if len(listing) > 1 and query.aggregate == "values":
                return self._describe_list()
            return " ".join(listing) + self._describe_ties()
        return self._describe_list()

    # --- sentences -----------------------------------------------------------------------------

    def _describe_single_value(self, row: ResultRow) -> str:
        when = _format_period(row.period)
        if self.query.share and row.percent is not None:
            of = "all rows" if self.query.aggregate == "rows" else f"the {self._describe_subject()}"
            part = _format_percent(row.percent)
            return f"Rows{self._describe_conditions()}: {part} of {of}{when} ({self._format_value(row)})."
        text = f"The {self._describe_subject()}{self._describe_conditions()}{when} was {self._format_value(row)}"
        if self.query.by and self.query.aggregate == "sum" and isinstance(row.value, int | float):
            text += f" ({_format_percent(100 * row.value)})"
        found_there = self.query.order == "group" and self.query.aggregate == "values"
        where = self._format_row_labels(row, include_time=not (when and found_there))
        text += f", {where}" if where else ""
        if row.change is not None:
            percent = f" ({row.percent:+.2f}%)" if row.percent is not None else ""
            higher = "higher" if row.change > 0 else "lower" if row.change < 0 else "different"
            amount = value_text(abs(row.change), self._choose_decimals(row.change), self._unit())
            text += f", {amount} {higher}{percent} than in {self.computed.rows[0].period}"
        return f"{text}."

    def _describe_groups(self) -> str:
        query, found = self.query, self.computed
        groups = join_list(
            [name.removeprefix("time.").replace("_", " ") for name in query.group_by]
        )
        kind = "Change of the " if query.change and not query.periods else "The "
        order = f", {query.order} first" if query.order != "group" and len(found.rows) > 1 else ""
        period = found.rows[0].period
        when = _format_period(period) if len(query.periods) == 1 else ""
        if query.limit == 1 and len(found.rows) == 1:
            row = found.rows[0]
            best = "highest" if query.order == "highest" else "lowest"
            return (
                f"{', '.join(row.group)} has the {best} {self._describe_subject()}{self._describe_conditions()}"
                f"{when}: {self._format_entry(row)}.{self._describe_ties()}"
            )
        entries = "; ".join(
            f"{self._format_group(row)}: {self._format_entry(row)}" for row in found.rows
        )
        more = (
            f"; and {count_text(found.omitted_count, 'group')} more" if found.omitted_count else ""
        )
        return (
            f"{kind}{self._describe_subject()}{self._describe_conditions()}{when} by {groups}{order} \u2013"
            f" {entries}{more}."
        )

    def _describe_list(self) -> str:
        found = self.computed
        entries = "; ".join(
            ", ".join(
                part for part in (self._format_value(row), self._format_row_labels(row)) if part
            )
            for row in found.rows
        )
        more = f"; and {count_text(found.omitted_count, 'row')} more" if found.omitted_count else ""
        order = f", {self.query.order} first" if self.query.order != "group" else ""
        return f"{self._describe_subject()}{self._describe_conditions()}{order}: {entries}{more}."

    def _describe_streak(self) -> str:
        if not self.computed.rows:
            return f"There are no rows{self._describe_conditions()}."
        row = self.computed.rows[0]
        text = (
            f"The longest run of rows{self._describe_conditions()} has {count_text(int(row.value or 0), 'row')},"
            f" from {self._format_moment(row.time)} to {self._format_moment(row.until)}."
        )
        return text + self._describe_ties("runs as long")

    # --- parts ---------------------------------------------------------------------------------

    def _describe_subject(self) -> str:
        query = self.query
        name = (query.value or "").strip("`")
        if query.rolling:
            name = f"{name} (mean of {query.rolling} rows)"
        if query.aggregate == "values":
            return name if len(self.computed.rows) > 1 else self._describe_extreme(name)
        if query.aggregate == "percentile":
            return f"{query.percentile:g}th percentile of {name}"
        if query.aggregate == "correlation":
            return f"correlation of {name} and {query.by}"
        if query.by:
            return f"total {name} / total {query.by}"
        if query.aggregate == "rows":
            return _AGGREGATE_WORDS["rows"]
        if query.limit == 1 and query.aggregate in ("max", "min"):
            return name  # follows "has the highest"
        return f"{_AGGREGATE_WORDS[query.aggregate]} {name}"

    def _describe_extreme(self, name: str) -> str:
        return {"highest": f"highest {name}", "lowest": f"lowest {name}"}.get(
            self.query.order, name
        )

    def _describe_conditions(self) -> str:
        tests = [_describe_filter(row_filter) for row_filter in self.query.where]
        return f" where {' and '.join(tests)}" if tests else ""

    def _format_entry(self, row: ResultRow) -> str:
        text = self._format_value(row)
        if self.query.change and not self.query.periods and isinstance(row.value, int | float):
            text = signed_value_text(row.value, self._choose_decimals(row.value), self._unit())
        if row.change is not None:
            text += f" ({signed_value_text(row.change, self._choose_decimals(row.change), self._unit())})"
        return text + (f" ({_format_percent(row.percent)})" if row.percent is not None else "")

    def _format_group(self, row: ResultRow) -> str:
        many = len(self.query.periods) > 1 and row.period
        return ", ".join([*row.group, *([str(row.period)] if many else [])])

    def _format_row_labels(self, row: ResultRow, *, include_time: bool = True) -> str:
        parts = [f"{name} {text}" for name, text in row.shown.items()]
        if row.time is not None and include_time:
            exact = self.computed.profile.frequency in ("minute", "hour", "day", "week", None)
            parts.append(f"{'on' if exact else 'in'} {self._format_moment(row.time)}")
        return ", ".join(parts)

    def _describe_ties(self, noun: str = "rows with it") -> str:
        if self.computed.tied_groups:
            return f" The same holds for {join_list(list(self.computed.tied_groups))}."
        return (
            f" There are {self.computed.tie_count:,} {noun}." if self.computed.tie_count > 1 else ""
        )

    def _format_moment(self, moment: datetime | None) -> str:
        return date_text(moment, self.computed.profile.frequency) if moment else "?"

    def _unit(self) -> str | None:
        plain = self.query.aggregate in (*_COUNTING_AGGREGATES, "correlation") or self.query.by
        return None if plain else self.computed.unit

    def _choose_decimals(self, value: float) -> int:
        if self.query.aggregate in _COUNTING_AGGREGATES:
            return 0
        is_whole = isinstance(value, int) or float(value).is_integer()
        if is_whole and (not self.is_raw_value or self.decimals == 0):
            return 0
        size = abs(value)
        # Small numbers keep four significant digits.
        small = 2 if size >= 10 else 3 if size >= 1 else 4
        return (
            self.decimals
            if self.is_raw_value and self.decimals
            else max(small, min(self.decimals, 2))
        )

    def _format_value(self, row: ResultRow) -> str:
        if not isinstance(row.value, int | float) or isinstance(row.value, bool):
            return str(row.value)
        return value_text(row.value, self._choose_decimals(row.value), self._unit())


def _format_period(period: str | None) -> str:
    """Format a time period as a prepositional phrase, such as " in June 2012".

    >>> _format_period("July 2015"), _format_period("1 June 2015 to 31 August 2015")
    (' in July 2015', ' from 1 June 2015 to 31 August 2015')
    """
    if not period:
        return ""
    if period.startswith(("since", "before")):
        return f" {period}"
    if " to " in period:
        return f" from {period}"
    return f" {'on' if len(period.split()) > 2 else 'in'} {period}"


def _format_percent(value: float) -> str:
    return f"{value:.2f}%" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}%"


def _describe_filter(row_filter: Filter) -> str:
    if row_filter.op in ("missing", "present"):
        return f"{row_filter.column} is {'empty' if row_filter.op == 'missing' else 'given'}"
    values = row_filter.value if isinstance(row_filter.value, list) else [row_filter.value]
    texts = [
        number_text(v, 0) if isinstance(v, float) and v.is_integer() else str(v) for v in values
    ]
    unit = f" {row_filter.unit}" if row_filter.unit else ""
    return f"{row_filter.column} {_OPERATOR_WORDS.get(row_filter.op, row_filter.op)} {join_list(texts, 'or')}{unit}"
