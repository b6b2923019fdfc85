"""Builder of queries from questions, without a model.

Every word of a question must become part of the query or be a known filler word. If a word is left
over, or if several readings are possible, an error names the words, because a wrong answer is worse
than none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from capgraph.base import ValidationError
from capgraph.capabilities.data.lexicon import (
    CLAUSE_BREAK,
    DANGLING_WORDS,
    ESSENTIAL_WORD,
    FILLER_WORDS,
    FOLLOW_UP_PHRASE,
    HOW_CLAUSE,
    POSSESSION_VERB,
    STATE_VERB,
    TREND_VERB,
    UNIT_ORDER,
)
from capgraph.capabilities.data.mentions import concept_of
from capgraph.capabilities.data.profile import TableProfile
from capgraph.capabilities.data.question_parser import (
    QuestionParser,
    TwoReadingsError,
    UnparsedWordsError,
)
from capgraph.capabilities.data.words import blank_spans, split_name, split_words
from capgraph.capabilities.periods.expressions import DataWindow, ParsedTime, floor, shift
from capgraph.capabilities.periods.options import parse_times
from capgraph.capabilities.query import TIME_PARTS, Filter, Query


def build_queries(
    question: str,
    profiles: Sequence[TableProfile],
    settings: Mapping[str, Any],
    previous_queries: Sequence[Query] = (),
    parsed_time: ParsedTime | None = None,
) -> list[Query]:
    """Build one query for each part of a natural-language question.

    Args:
        question: Question in natural language.
        profiles: Profiles of the available tables.
        settings: Settings of the capability: ``now``, ``timezone``, ``day_first``, and
            ``hemisphere``.
        previous_queries: Queries of the previous question, for a follow-up ("and in 1985?").
        parsed_time: Times that an earlier step parsed from the question, if any.

    Raises:
        ValidationError: The question contains an unknown or ambiguous word.
    """
    try:
        return _build_queries(question, profiles, settings, previous_queries, parsed_time)
    except UnparsedWordsError as problem:
        for proposal in _propose_questions(question, problem):
            try:
                _build_queries(proposal, profiles, settings, previous_queries, None)
            except (UnparsedWordsError, ValidationError):
                continue
            raise _add_proposal(problem.error, proposal) from None
        raise problem.error from None


def _propose_questions(question: str, problem: UnparsedWordsError) -> list[str]:
    """Suggest similar questions that leave out or replace the unknown words."""
    proposals: list[str] = []
    lost = " ".join(problem.words)
    if (
        len(problem.words) > 2
        or "which column" in lost
        or (
            problem.replacements == [""]
            and (TREND_VERB.search(lost) or ESSENTIAL_WORD.search(lost))
        )
    ):
        return proposals  # without these words, it is another question
    for replacement in problem.replacements:
        text = question
        for word in problem.words:
            text = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", lambda _: replacement, text, count=1)  # noqa: B023
        text = DANGLING_WORDS.sub("", " ".join(text.split()))
        if text and text != question:
            proposals.append(text)
    return proposals


def _add_proposal(error: ValidationError, proposal: str) -> ValidationError:
    """Return a copy of the error whose fix suggests a question that can be answered."""
    return ValidationError(
        error.message,
        fix=f"Ask {proposal!r}. {error.fix}",
        facts={**error.facts, "question": proposal},
    )


def _build_queries(
    question: str,
    profiles: Sequence[TableProfile],
    settings: Mapping[str, Any],
    previous_queries: Sequence[Query],
    parsed_time: ParsedTime | None,
) -> list[Query]:
    clauses = _split_clauses(question, settings)
    base = previous_queries[-1] if previous_queries and FOLLOW_UP_PHRASE.search(question) else None
    queries: list[Query] = []
    for clause in clauses:
        times = (
            parsed_time
            if parsed_time is not None and len(clauses) == 1
            else parse_times(clause, settings)
        )
        # A part of a month or season can only be read with a year.
        if times.months and not times.periods and (year := _find_only_year(profiles)):
            dated = parse_times(clause, {**settings, "year": year})
            times = dated if dated.periods else times
        try:
            found = [_build_clause_query(clause, profiles, times, base, bool(queries))]
        except TwoReadingsError as two:
            found = [
                _build_clause_query(clause, profiles, times, base, bool(queries), reading)
                for reading in two.readings
            ]
        if queries and found == [queries[-1].model_copy(update={"order": found[0].order})]:
            queries.pop()  # the second part only adds a sort order
        queries += found
        base = queries[-1]
    if not queries:
        raise QuestionParser(question, profiles[0], ParsedTime()).unparsed_error("nothing")
    return queries


def _find_only_year(profiles: Sequence[TableProfile]) -> int | None:
    """Return the only year that the tables cover, or ``None`` if they span several years."""
    moments = [(p.first, p.last) for p in profiles if p.first and p.last]
    years = {moment.year for pair in moments for moment in pair}
    return years.pop() if len(years) == 1 else None


def _split_clauses(text: str, settings: Mapping[str, Any]) -> list[str]:
    """Split a question into clauses that each ask for one value.

    A leading time such as "In 2007, how many ..." stays in the same clause.
    """
    parts = [
        part
        for part in CLAUSE_BREAK.split(HOW_CLAUSE.sub("", text))
        if part and part.strip(" ?.!,")
    ]
    for part in parts[:-1]:
        remaining = split_words(blank_spans(part, parse_times(part, settings).spans))
        if all(word.stem in FILLER_WORDS for word in remaining):
            return [text]
    return parts


def _build_clause_query(
    text: str,
    profiles: Sequence[TableProfile],
    times: ParsedTime,
    previous_query: Query | None,
    is_same_question: bool,
    reading: str | None = None,
) -> Query:
    """Build the query for one clause of a question.

    The clause is matched against each table. Exactly one table must explain all of its words.
    """
    found: list[tuple[int, Query]] = []
    problems: list[UnparsedWordsError] = []
    for profile, main in [(known, p) for p in profiles for known in (p, *p.alternate_profiles)]:
        form = _QueryBuilder(text, profile, times, reading)
        try:
            query = form.build(previous_query, is_same_question)
        except UnparsedWordsError as exc:
            problems.append(exc)
            continue
        if profile is not main:
            if form.parsed.time_column is None:
                continue  # the question does not refer to this date column
            query = query.model_copy(update={"time": form.parsed.time_column})
        if len(profiles) > 1:
            query = query.model_copy(update={"table": profile.table.label})
        found.append((form.parsed.table_mentions, query))
    if not found:
        raise min(problems, key=lambda exc: len(exc.words))
    best = max(score for score, _ in found)
    fitting = [query for score, query in found if score == best]
    if len(fitting) > 1:
        labels = ", ".join(str(query.table) for query in fitting)
        raise ValidationError(
            f"The question is ambiguous, because it matches several tables: {labels}.",
            fix="Name the table.",
        )
    return fitting[0]


class _QueryBuilder(QuestionParser):
    """Query builder for one question about one table."""

    def build(self, previous_query: Query | None, is_same_question: bool) -> Query:
        """Parse the question and build its query.

        Args:
            previous_query: Query of the previous question, which supplies missing times.
            is_same_question: True if the previous query belongs to another part of the same
                question.

        Raises:
            UnparsedWordsError: A word cannot be parsed, or the question is ambiguous.
        """
        placed = self.parse()
        value_columns = [m.column.name for m in placed.columns]
        if placed.unit and any(m.column.unit is None for m in placed.columns):
            raise self.unparsed_error(placed.unit)  # the source unit is unknown
        if any(m.column.kind not in ("number", "flag") for m in placed.columns):
            raise self.unparsed_error(*value_columns)
        partly = [m.column.name for m in placed.columns if m.score < 100]
        if placed.aggregate == "sum" and any(self.is_additive(name) is False for name in partly):
            raise self.unparsed_error("total")  # averages per item do not add up: "total gdp"
        self.fields: dict[str, Any] = {
            "where": placed.where, "group_by": placed.groups, "limit": placed.limit,
            "unit": placed.unit,
        }  # fmt: skip
        followed = (
            self._build_follow_up(previous_query, is_same_question, value_columns)
            if previous_query is not None
            else None
        )
        if followed is None:
            self.fields |= self._build_fields(list(dict.fromkeys(value_columns)))
        else:
            self.fields = followed
        self._add_time_constraints(previous_query)
        timed = self.profile.time.columns if self.profile.time else ()
        own_names = {name.casefold() for name in (*timed, *(c.name for c in self.profile.columns))}
        for key in (
            "group_by",
            "show",
        ):  # disambiguate parts of the time from columns of the same name
            self.fields[key] = [
                f"time.{name}"
                if name.casefold() in own_names and name in (*UNIT_ORDER, *TIME_PARTS) and self.has_time
                and name not in {c.name for c in self.profile.category_columns}
                else name
                for name in self.fields.get(key) or []
            ]  # fmt: skip
        return Query.model_validate(self.fields)

    def _build_follow_up(
        self, previous_query: Query, is_same_question: bool, value_columns: list[str]
    ) -> dict[str, Any] | None:
        """Apply a follow-up question to the fields of the previous query.

        Returns ``None`` if the question is not a follow-up, such as "and in 1985?".
        """
        placed, form = self.parsed, previous_query.model_dump()
        if is_same_question:
            parts = {"hour": "hour_of_day", "day": "weekday", "month": "month_of_year"}
            same = {placed.subject, parts.get(placed.subject or "")} & set(previous_query.group_by)
            if not (same and placed.rank) or placed.where or placed.aggregate:
                return None
            return form | {"order": _choose_order(placed.rank.direction)}
        if placed.kind not in ("", "count") or placed.rank or placed.groups or placed.subject:
            return None
        if value_columns or placed.limits or not (placed.where or self.times.periods):
            return None
        changed = {row_filter.column for row_filter in placed.where}
        form["where"] = [
            *(f for f in previous_query.where if f.column not in changed),
            *placed.where,
        ]
        return form | ({"aggregate": placed.aggregate} if placed.aggregate else {})

    def _add_time_constraints(self, previous_query: Query | None) -> None:
        """Add the time periods and recurring times of the question to the query."""
        times, profile = self.times, self.profile
        if not self.has_time:
            if times.periods or times.window:
                raise self.unparsed_error(
                    times.label,
                    message=(
                        f"The table {profile.table.label} has no column with dates, so"
                        f" {times.label!r} cannot be selected."
                    ),
                    fix=f"Ask without a time. Columns: {profile.column_list()}.",
                )
            return
        if times.days:
            raise self.unparsed_error(times.label)
        periods = [(i.start, i.end) for i in times.periods]
        if self.compares_endpoints():
            periods = [(i.start, i.end) for i in times.endpoints]
        if times.window is not None and profile.first and profile.last:
            periods = [_find_window_bounds(times.window, profile.first, profile.last)]
        if not periods and previous_query is not None:
            periods = list(previous_query.periods)
        single = self.fields["aggregate"] == "values" or self.fields.get("rolling")
        self.fields |= {
            "where": [*self.fields["where"], *recurring_filters(times)],
            "periods": periods,
            "change": len(periods) > 1 and not single,
        }

    # --- kinds of questions --------------------------------------------------------------------

    def _build_fields(self, value_columns: list[str]) -> dict[str, Any]:
        """Build the query fields for the kind of the question, such as a count or a trend."""
        placed = self.parsed
        kind, rank = placed.kind, placed.rank
        tested = {row_filter.column for row_filter in placed.where}
        if kind in (
            "correlation",
            "streak",
            "crossing",
            "last crossing",
            "trend",
            "rolling",
            "gaps",
            "ratio",
        ):
            plain = rank is None and placed.aggregate is None
            is_own_unit = placed.subject in (None, self.profile.frequency)
            if not plain or not (
                is_own_unit or ("crossing" in kind and placed.subject in UNIT_ORDER)
            ):
                raise self.unparsed_error(kind)
            return self._build_special(kind, value_columns)
        if kind == "share":
            free = [name for name in value_columns if name not in tested]
            if rank or placed.groups or placed.subject or len(placed.where) != 1:
                raise self.unparsed_error(
                    "share"
                )  # ambiguous: share of all rows, or of the rows that match?
            if not free:
                return {"aggregate": "rows", "share": True}
            if self.is_additive(self._require_column(free)) is False or self._is_boolean(free[0]):
                raise self.unparsed_error(free[0])
            return {"aggregate": "sum", "value": free[0], "share": True}
        if kind == "distinct" or (
            kind == "list" and not rank and not value_columns and not placed.groups
        ):
            subject = placed.subject or (value_columns[0] if len(value_columns) == 1 else None)
            if subject is None or rank:
                raise self.unparsed_error("different" if kind == "distinct" else "list")
            if kind == "distinct":
                return {"aggregate": "distinct", "value": subject}
            return {"aggregate": "rows", "group_by": [subject]}
        if kind == "moved":
            return self._build_trend(self._require_column(value_columns))
        if kind == "count":
            return self._build_count([name for name in value_columns if name not in tested])
        return self._build_extreme(value_columns) if rank else self._build_value(value_columns)

    def _build_special(self, kind: str, value_columns: list[str]) -> dict[str, Any]:
        placed = self.parsed
        if kind == "correlation" and len(value_columns) == 2:
            return {"aggregate": "correlation", "value": value_columns[0], "by": value_columns[1]}
        if kind == "streak" and placed.where:
            return {"aggregate": "streak"}
        if kind == "ratio" and self.is_additive(self._require_column(value_columns)):
            return {"aggregate": "sum", "value": value_columns[0], "by": placed.divisor}
        if kind == "gaps" and not value_columns and not placed.where:
            return {"aggregate": "gaps"}
        if kind in ("correlation", "streak", "gaps", "ratio") or self._has_several_series():
            raise self.unparsed_error(kind)
        name = self._require_column(value_columns)
        if "crossing" in kind and any(row_filter.column == name for row_filter in placed.where):
            if kind == "last crossing":
                return {"aggregate": "last", "value": name}
            return {"aggregate": "values", "value": name, "limit": 1}
        if kind == "trend":
            return {"aggregate": "slope", "value": name}
        if kind == "rolling" and len(self.times.periods) == 1 and not placed.groups:
            return {"aggregate": "last", "value": name, "rolling": int(placed.number)}
        raise self.unparsed_error(kind)

    def _build_trend(self, name: str) -> dict[str, Any]:
        """Build the query fields for a question about how a value developed over time."""
        placed = self.parsed
        unit = placed.subject or next(iter(placed.groups), "month")
        if placed.rank or not self.has_time or unit not in UNIT_ORDER:
            raise self.unparsed_error("how")
        if unit == self.profile.frequency:
            unit = UNIT_ORDER[min(UNIT_ORDER.index(unit) + (2 if unit == "day" else 1), 7)]
        aggregate = placed.aggregate or self._choose_aggregate(name)
        return {"aggregate": aggregate, "value": name, "group_by": [unit]}

    def _build_count(self, value_columns: list[str]) -> dict[str, Any]:
        """Build the query fields for a "how many" question.

        The result is a count of rows, a count of distinct items, or a sum over a column of counts.
        """
        placed = self.parsed
        if placed.rank is not None:
            if placed.rank.word == "top" or placed.subject:
                return self._build_most_rows(value_columns)
            raise self.unparsed_error(placed.rank.word)
        if value_columns:
            name = self._require_column(value_columns)
            heads = self._has_quantity(name, "population") and self._is_single_time_step()
            if placed.subject or not (self.is_additive(name) or heads):
                raise self.unparsed_error(*value_columns)
            return {"aggregate": placed.aggregate or "sum", "value": value_columns[0]}
        if placed.aggregate not in (None, "sum"):
            raise self.unparsed_error(placed.aggregate)
        if placed.subject in (*UNIT_ORDER, *TIME_PARTS):
            if placed.subject != self.profile.frequency or self._has_several_series():
                raise self.unparsed_error(placed.subject)
        elif placed.subject is not None:
            return {"aggregate": "distinct", "value": placed.subject}
        return {"aggregate": "rows"}

    def _build_most_rows(self, value_columns: list[str]) -> dict[str, Any]:
        """Build the query fields for a question such as "which city has the most rows"."""
        placed = self.parsed
        assert placed.rank is not None
        if placed.subject is None or value_columns:
            raise self.unparsed_error(placed.rank.word)
        self._check_granularity(placed.subject)
        if placed.subject == self.profile.frequency and self.profile.unique_times:
            raise self.unparsed_error(placed.rank.word)  # each time has one row
        return {
            "aggregate": "rows", "group_by": [*placed.groups, placed.subject],
            "order": _choose_order(placed.rank.direction), "limit": placed.limit or 1,
        }  # fmt: skip

    def _build_extreme(self, value_columns: list[str]) -> dict[str, Any]:
        """Build the query fields for an extreme, such as "which city had the highest price"."""
        placed, rank = self.parsed, self.parsed.rank
        assert rank is not None
        vague = rank.word in ("most", "fewest", "least")
        if rank.quantity == "rows" or (not value_columns and (vague or rank.word == "top")):
            return self._build_most_rows(value_columns)
        name, subject = self._require_column(value_columns), placed.subject
        if placed.groups:
            if subject is not None or placed.aggregate:
                raise self.unparsed_error(subject or rank.word)
            return {"aggregate": rank.direction, "value": name}
        ranked = {"value": name, "order": _choose_order(rank.direction), "limit": placed.limit or 1}
        series, frequency = self._has_several_series(), self.profile.frequency
        if subject is None or (subject == self.profile.frequency and not series):
            if placed.aggregate:
                raise self.unparsed_error(placed.aggregate)
            label = self.profile.label_column
            return {**ranked, "aggregate": "values", "show": [label] if label else []}
        adds = self.is_additive(name)
        if subject in (*UNIT_ORDER, *TIME_PARTS):
            self._check_granularity(subject)
            is_coarser = rank.quantity and subject != frequency
            is_single_day = subject == "day" and not (placed.aggregate or adds)
            if not (placed.aggregate or adds or is_coarser or is_single_day):
                raise self._create_aggregate_error(rank.word, subject)
            aggregate = (
                rank.direction
                if is_single_day
                else placed.aggregate or self._choose_aggregate(name)
            )
            return {**ranked, "aggregate": aggregate, "group_by": [subject]}
        has_one_row = self._has_one_row_per_item(subject)
        if placed.aggregate or (adds and not has_one_row):
            return {**ranked, "aggregate": placed.aggregate or "sum", "group_by": [subject]}
        if vague and adds is None and not has_one_row:
            raise self.unparsed_error(rank.word)
        if rank.quantity and not has_one_row and self.reading != "values":
            single = not STATE_VERB.search(self.text) or POSSESSION_VERB.search(self.text)
            if single and self.reading is None:
                raise TwoReadingsError("mean", "values")
            # A general statement about a kind of item.
            return {**ranked, "aggregate": "mean", "group_by": [subject]}
        return {**ranked, "aggregate": "values", "show": [subject]}

    def _build_value(self, value_columns: list[str]) -> dict[str, Any]:
        """Build the query fields for a value question, such as "mean price" or "price in 1932"."""
        placed, subject = self.parsed, self.parsed.subject
        tested = {row_filter.column for row_filter in placed.where}
        compares = len(self.times.periods) > 1 or self.compares_endpoints() or placed.compares_items
        only_number = len(self.profile.numeric_columns) == 1
        if not value_columns and not ((placed.aggregate or compares) and only_number):
            return self._build_row_count(subject)
        name = self._require_column(value_columns)
        single = (
            not placed.groups and not self._has_several_series() and self._is_single_time_step()
        )
        alone = (subject == self.profile.frequency and single) or subject in placed.groups
        if subject is not None and not alone:
            if not placed.aggregate and subject not in UNIT_ORDER and name in tested:
                return {"aggregate": "values", "value": name, "show": [subject]}
            raise self.unparsed_error(subject)
        if name in tested and not placed.aggregate:
            raise self.unparsed_error(name)
        if placed.kind == "percentile":
            return {"aggregate": "percentile", "value": name, "percentile": placed.number}
        if placed.aggregate is None and single:
            return {"aggregate": "values", "value": name}
        if placed.aggregate is None and placed.wants_chart and self.is_additive(name) is None:
            return {"aggregate": "mean", "value": name}
        aggregate = placed.aggregate or self._choose_aggregate(name)
        units = [unit for unit in placed.groups if unit in UNIT_ORDER]
        if placed.frequency_group and self._has_several_series():
            units.append(placed.frequency_group)
        if aggregate == "mean" and units and self.is_additive(name):
            raise self._create_aggregate_error(units[0], units[0])
        if aggregate == "sum" and placed.frequency_group and not placed.groups:
            return {"aggregate": "sum", "value": name, "group_by": [placed.frequency_group]}
        return {"aggregate": aggregate, "value": name}

    def _build_row_count(self, subject: str | None) -> dict[str, Any]:
        """Build the query fields for a row count, such as "events per month"."""
        placed = self.parsed
        if placed.aggregate is None and placed.kind == "":
            named = placed.table_mentions or any(f.op in ("=", "in") for f in placed.where)
            if placed.groups and subject is None and named:
                return {"aggregate": "rows"}
            if subject and placed.where and not placed.groups:
                return {"aggregate": "rows", "group_by": [subject]}
        raise self.unparsed_error("which column")

    # --- ambiguities ---------------------------------------------------------------------------

    def _require_column(self, value_columns: list[str]) -> str:
        candidates = value_columns or [column.name for column in self.profile.numeric_columns]
        if len(set(candidates)) == 1:
            return candidates[0]
        raise self.unparsed_error(
            *(value_columns or ["which column"]),
            message=(
                "The question is ambiguous: it does not state which column of"
                f" {self.profile.table.label} it means{(': ' + ', '.join(value_columns) if value_columns else '')}."
            ),
            fix=f"Name one of: {self.profile.column_list()}.",
        )

    def _choose_aggregate(self, name: str) -> str:
        adds = self.is_additive(name)
        if self._has_quantity(name, "population"):
            adds = True if self._is_single_time_step() else None  # people are counted once per time
        compares = len(self.times.periods) > 1 or self.compares_endpoints()
        if adds is None and (compares or self.parsed.compares_items):
            return "mean"
        if adds is None:
            raise self.unparsed_error(
                name,
                replacements=[f"mean {name}"],
                message="The question is ambiguous: it does not say whether it means the mean or the"
                f" total of {name!r}.",
                fix="Say 'mean' or 'total'.",
            )
        return "sum" if adds else "mean"

    @staticmethod
    def _has_quantity(name: str, quantity: str) -> bool:
        return concept_of(quantity) in {concept_of(word) for word in split_name(name)}

    def _create_aggregate_error(self, word: str, unit: str) -> UnparsedWordsError:
        return self.unparsed_error(
            word,
            message="The question is ambiguous: it does not say whether it means single values or"
            f" values of each {unit}.",
            fix=f"Say 'highest mean by {unit}', or ask without the {unit}.",
            replacements=[f"{word} mean"],
        )

    def _is_boolean(self, name: str) -> bool:
        return any((c.low, c.high) == (0, 1) for c in self.profile.columns if c.name == name)

    def _check_granularity(self, subject: str) -> None:
        frequency = self.profile.frequency
        has_known_units = subject in UNIT_ORDER and frequency in UNIT_ORDER
        if has_known_units and UNIT_ORDER.index(subject) < UNIT_ORDER.index(str(frequency)):
            raise self.unparsed_error(subject)

    def _has_several_series(self) -> bool:
        filtered = {f.column for f in self.parsed.where if f.op == "="}
        return not set(self.profile.series) <= filtered

    def _is_single_time_step(self) -> bool:
        """Return True if the question selects a single time step of the table, such as one day."""
        frequency, intervals = self.profile.frequency, self.times.periods
        if len(intervals) != 1 or frequency in (None, "minute"):
            return False
        start, end = intervals[0].start, intervals[0].end
        return bool(start and end and end <= shift(floor(start, frequency), 1, frequency))

    def _has_one_row_per_item(self, subject: str) -> bool:
        """Return True if each item has only one row in the table or at the selected time."""
        profile = self.profile
        if profile.time is None:
            column = next(c for c in profile.columns if c.name == subject)
            return column.kind == "text" or len(column.values) >= 0.98 * profile.rows
        return (
            subject in profile.series
            and len(self.times.periods) == 1
            and profile.frequency == "year"
        )


def _choose_order(direction: str) -> str:
    return "highest" if direction == "max" else "lowest"


def _find_window_bounds(
    window: DataWindow, first: datetime, last: datetime
) -> tuple[datetime, datetime]:
    """Return the start and end of a window at the beginning or end of the data's time range."""
    amount, unit = window.amount, window.unit
    if window.edge == "last":
        end = shift(floor(last, unit), 1, unit)
        return shift(end, -amount, unit), end
    start = floor(first, unit)
    return start, shift(start, amount, unit)


def recurring_filters(times: Any) -> list[Filter]:
    """Return query filters for recurring months, weekdays, and hours."""
    return [
        Filter(column=column, op="in", value=list(numbers))
        for column, numbers in (
            ("month_of_year", times.months),
            ("weekday", times.weekdays),
            ("hour_of_day", times.hours),
        )
        if numbers
    ]
