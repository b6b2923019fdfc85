"""Fills a query from a question without a model.

Every word of the question is placed in the query or is known to carry nothing. Where a word is
left over, or two readings are possible, there is no query but an error that names the words: an
answer to another question is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from capgraph.base import ValidationError
from capgraph.capabilities.data.lexicon import (
    AND_HOW,
    CHANGE,
    CLAUSE,
    FOLLOWING,
    GREW,
    HAD,
    IS,
    NOTHING,
    ORDER,
)
from capgraph.capabilities.data.mentions import concept
from capgraph.capabilities.data.placing import BothError, Placing, Unplaced
from capgraph.capabilities.data.profile import TableProfile
from capgraph.capabilities.data.words import blank, name_words, words_of
from capgraph.capabilities.periods.items import DataWindow, ParsedTime, floor, shift
from capgraph.capabilities.periods.reading import read_times
from capgraph.capabilities.query import TIME_PARTS, Filter, Query


def fill(
    text: str,
    profiles: Sequence[TableProfile],
    settings: Mapping[str, Any],
    previous: Sequence[Query] = (),
    parsed: ParsedTime | None = None,
) -> list[Query]:
    """Fill a query for each part of a question.

    Args:
        text: The question.
        profiles: The tables at hand.
        settings: ``now``, ``timezone``, ``day_first``, ``hemisphere``.
        previous: Queries of the question before, for one that follows it ("and in 1985?").
        parsed: The times of the question, where they were read before.

    Raises:
        ValidationError: A word cannot be placed, or may mean several things.
    """
    clauses = _clauses(text, settings)
    base = previous[-1] if previous and FOLLOWING.search(text) else None
    queries: list[Query] = []
    for clause in clauses:
        times = parsed if parsed is not None and len(clauses) == 1 else read_times(clause, settings)
        # Only a month or season without a year can have a part that was not read.
        if times.months and not times.periods and (year := _only_year(profiles)):
            dated = read_times(clause, {**settings, "year": year})
            times = dated if dated.periods else times
        try:
            found = [_fill_clause(clause, profiles, times, base, bool(queries))]
        except BothError:
            found = [
                _fill_clause(clause, profiles, times, base, bool(queries), aspect)
                for aspect in ("max", "min")
            ]
        if queries and found == [queries[-1].model_copy(update={"order": found[0].order})]:
            queries.pop()  # the second part only sorts what the first one asks
        queries += found
        base = queries[-1]
    if not queries:
        raise Placing(text, profiles[0], ParsedTime()).unplaced("nothing").error
    return queries


def _only_year(profiles: Sequence[TableProfile]) -> int | None:
    """Return the year in which all times of the tables lie, if there is one."""
    moments = [(p.first, p.last) for p in profiles if p.first and p.last]
    years = {moment.year for pair in moments for moment in pair}
    return years.pop() if len(years) == 1 else None


def _clauses(text: str, settings: Mapping[str, Any]) -> list[str]:
    """Split a question that asks twice; "In 2007, how many …" asks once."""
    parts = [part for part in CLAUSE.split(AND_HOW.sub("", text)) if part and part.strip(" ?.!,")]
    for part in parts[:-1]:
        rest = words_of(blank(part, read_times(part, settings).spans))
        if all(word.stem in NOTHING for word in rest):
            return [text]
    return parts


def _fill_clause(
    text: str,
    profiles: Sequence[TableProfile],
    times: ParsedTime,
    base: Query | None,
    continued: bool,
    aspect: str | None = None,
) -> Query:
    """Fill one query from the only table that places every word."""
    found: list[tuple[int, Query]] = []
    problems: list[Unplaced] = []
    for profile, main in [(known, p) for p in profiles for known in (p, *p.others)]:
        form = _Form(text, profile, times, aspect)
        try:
            query = form.query(base, continued)
        except Unplaced as exc:
            problems.append(exc)
            continue
        if profile is not main:
            if form.placed.timed_by is None:
                continue  # nothing says that this one of its dates is meant
            query = query.model_copy(update={"time": form.placed.timed_by})
        if len(profiles) > 1:
            query = query.model_copy(update={"table": profile.table.label})
        found.append((form.placed.named_table, query))
    if not found:
        raise min(problems, key=lambda exc: len(exc.words)).error
    best = max(score for score, _ in found)
    fitting = [query for score, query in found if score == best]
    if len(fitting) > 1:
        labels = ", ".join(str(query.table) for query in fitting)
        raise ValidationError(
            f"The question may be about several tables: {labels}.", fix="Name the table."
        )
    return fitting[0]


class _Form(Placing):
    """Makes the query of a question whose words are placed."""

    def query(self, base: Query | None, continued: bool) -> Query:
        """Place all words and return the query.

        Args:
            base: The query before, whose times go on.
            continued: Whether it stands in the same question.

        Raises:
            Unplaced: There is a word left, or more than one reading.
        """
        placed = self.place()
        numbers = [m.column.name for m in placed.columns]
        if placed.unit and any(m.column.unit is None for m in placed.columns):
            raise self.unplaced(placed.unit)  # nothing tells what it is converted from
        if any(m.column.kind not in ("number", "flag") for m in placed.columns):
            raise self.unplaced(*numbers)
        partly = [m.column.name for m in placed.columns if m.score < 100]
        if placed.aggregate == "sum" and any(self.adds_up(name) is False for name in partly):
            raise self.unplaced("total")  # "total gdp" is no total of what each one has
        self.slots: dict[str, Any] = {
            "where": placed.where, "group_by": placed.groups, "limit": placed.limit,
            "unit": placed.unit,
        }  # fmt: skip
        followed = self._following(base, continued, numbers) if base is not None else None
        if followed is None:
            self.slots |= self._asked(list(dict.fromkeys(numbers)))
        else:
            self.slots = followed
        self._times(base)
        timed = self.profile.time.columns if self.profile.time else ()
        own = {name.casefold() for name in (*timed, *(c.name for c in self.profile.columns))}
        for key in ("group_by", "show"):  # a part of the time, where a column has its name
            self.slots[key] = [
                f"time.{name}"
                if name.casefold() in own and name in (*ORDER, *TIME_PARTS) and self.timed
                and name not in {c.name for c in self.profile.categories}
                else name
                for name in self.slots.get(key) or []
            ]  # fmt: skip
        return Query.model_validate(self.slots)

    def _following(self, base: Query, continued: bool, numbers: list[str]) -> dict[str, Any] | None:
        """Change the query before by what this question names."""
        placed, form = self.placed, base.model_dump()
        if continued:
            parts = {"hour": "hour_of_day", "day": "weekday", "month": "month_of_year"}
            same = {placed.subject, parts.get(placed.subject or "")} & set(base.group_by)
            if not (same and placed.rank) or placed.where or placed.aggregate:
                return None
            return form | {"order": _order(placed.rank.direction)}
        if placed.kind not in ("", "count") or placed.rank or placed.groups or placed.subject:
            return None
        if numbers or placed.limits or not (placed.where or self.times.periods):
            return None
        changed = {given.column for given in placed.where}
        form["where"] = [*(f for f in base.where if f.column not in changed), *placed.where]
        return form | ({"aggregate": placed.aggregate} if placed.aggregate else {})

    def _times(self, base: Query | None) -> None:
        """Add what the times of the question limit."""
        times, profile = self.times, self.profile
        if not self.timed:
            if times.periods or times.window:
                raise self.unplaced(
                    times.label,
                    message=f"{profile.table.label} has no column with dates, so {times.label!r}"
                    " cannot be selected.",
                    fix=f"Ask without a time; columns: {profile.names()}.",
                )
            return
        if times.days:
            raise self.unplaced(times.label)
        periods = [(i.start, i.end) for i in times.periods]
        if times.endpoints and (CHANGE.search(self.text) or GREW.search(self.text)):
            periods = [(i.start, i.end) for i in times.endpoints]
        if times.window is not None and profile.first and profile.last:
            periods = [_window(times.window, profile.first, profile.last)]
        if not periods and base is not None:
            periods = list(base.periods)
        single = self.slots["aggregate"] == "values" or self.slots.get("rolling")
        self.slots |= {
            "where": [*self.slots["where"], *recurring(times)],
            "periods": periods,
            "change": len(periods) > 1 and not single,
        }

    # --- sorts of questions --------------------------------------------------------------------

    def _asked(self, numbers: list[str]) -> dict[str, Any]:
        """Return aggregate, value and what else the sort of the question decides."""
        placed = self.placed
        kind, rank = placed.kind, placed.rank
        tested = {given.column for given in placed.where}
        if kind in ("correlation", "streak", "crossing", "trend", "rolling", "gaps", "ratio"):
            plain = rank is None and placed.aggregate is None
            own = placed.subject in (None, self.profile.frequency)
            if not plain or not (own or (kind == "crossing" and placed.subject in ORDER)):
                raise self.unplaced(kind)
            return self._special(kind, numbers)
        if kind == "share":
            free = [name for name in numbers if name not in tested]
            if rank or placed.groups or placed.subject or len(placed.where) != 1:
                raise self.unplaced("share")  # of all rows, or of those that pass one test?
            if not free:
                return {"aggregate": "rows", "share": True}
            if self.adds_up(self._one(free)) is False or self._yes_or_no(free[0]):
                raise self.unplaced(free[0])
            return {"aggregate": "sum", "value": free[0], "share": True}
        if kind == "distinct" or (
            kind == "list" and not rank and not numbers and not placed.groups
        ):
            subject = placed.subject or (numbers[0] if len(numbers) == 1 else None)
            if subject is None or rank:
                raise self.unplaced("different" if kind == "distinct" else "list")
            if kind == "distinct":
                return {"aggregate": "distinct", "value": subject}
            return {"aggregate": "rows", "group_by": [subject]}
        if kind == "moved":
            return self._moved(self._one(numbers))
        if kind == "count":
            return self._counted([name for name in numbers if name not in tested])
        return self._extreme(numbers) if rank else self._plain(numbers)

    def _special(self, kind: str, numbers: list[str]) -> dict[str, Any]:
        placed = self.placed
        if kind == "correlation" and len(numbers) == 2:
            return {"aggregate": "correlation", "value": numbers[0], "by": numbers[1]}
        if kind == "streak" and placed.where:
            return {"aggregate": "streak"}
        if kind == "ratio" and self.adds_up(self._one(numbers)):
            return {"aggregate": "sum", "value": numbers[0], "by": placed.ratio}
        if kind == "gaps" and not numbers and not placed.where:
            return {"aggregate": "gaps"}
        if kind in ("correlation", "streak", "gaps", "ratio") or self._several_series():
            raise self.unplaced(kind)
        name = self._one(numbers)
        if kind == "crossing" and any(given.column == name for given in placed.where):
            return {"aggregate": "values", "value": name, "limit": 1}
        if kind == "trend":
            return {"aggregate": "slope", "value": name}
        if kind == "rolling" and len(self.times.periods) == 1 and not placed.groups:
            return {"aggregate": "last", "value": name, "rolling": int(placed.number)}
        raise self.unplaced(kind)

    def _moved(self, name: str) -> dict[str, Any]:
        """Answer how something developed: its groups over time."""
        placed = self.placed
        unit = placed.subject or next(iter(placed.groups), "month")
        if placed.rank or not self.timed or unit not in ORDER:
            raise self.unplaced("how")
        if unit == self.profile.frequency:
            unit = ORDER[min(ORDER.index(unit) + (2 if unit == "day" else 1), 7)]
        aggregate = placed.aggregate or self._default(name)
        return {"aggregate": aggregate, "value": name, "group_by": [unit]}

    def _counted(self, numbers: list[str]) -> dict[str, Any]:
        """Answer "how many": rows, different things, or the sum of a column of counts."""
        placed = self.placed
        if placed.rank is not None:
            if placed.rank.word == "top" or placed.subject:
                return self._most(numbers)
            raise self.unplaced(placed.rank.word)
        if numbers:
            name = self._one(numbers)
            heads = self._holds(name, "population") and self._one_step()
            if placed.subject or not (self.adds_up(name) or heads):
                raise self.unplaced(*numbers)
            return {"aggregate": "sum", "value": numbers[0]}
        if placed.aggregate not in (None, "sum"):
            raise self.unplaced(placed.aggregate)
        if placed.subject in (*ORDER, *TIME_PARTS):
            if placed.subject != self.profile.frequency or self._several_series():
                raise self.unplaced(placed.subject)
        elif placed.subject is not None:
            return {"aggregate": "distinct", "value": placed.subject}
        return {"aggregate": "rows"}

    def _most(self, numbers: list[str]) -> dict[str, Any]:
        """Answer "which X has the most rows"."""
        placed = self.placed
        assert placed.rank is not None
        if placed.subject is None or numbers:
            raise self.unplaced(placed.rank.word)
        self._not_finer(placed.subject)
        if placed.subject == self.profile.frequency and self.profile.unique_times:
            raise self.unplaced(placed.rank.word)  # each has one
        return {
            "aggregate": "rows", "group_by": [*placed.groups, placed.subject],
            "order": _order(placed.rank.direction), "limit": placed.limit or 1,
        }  # fmt: skip

    def _extreme(self, numbers: list[str]) -> dict[str, Any]:
        """Answer "which X had the highest V", "highest V", "heaviest X"."""
        placed, rank = self.placed, self.placed.rank
        assert rank is not None
        vague = rank.word in ("most", "fewest", "least")
        if rank.quantity == "rows" or (not numbers and (vague or rank.word == "top")):
            return self._most(numbers)
        name, subject = self._one(numbers), placed.subject
        if placed.groups:
            if subject is not None or placed.aggregate:
                raise self.unplaced(subject or rank.word)
            return {"aggregate": rank.direction, "value": name}
        ranked = {"value": name, "order": _order(rank.direction), "limit": placed.limit or 1}
        series, frequency = self._several_series(), self.profile.frequency
        if subject is None or (subject == self.profile.frequency and not series):
            if placed.aggregate:
                raise self.unplaced(placed.aggregate)
            label = self.profile.label_column
            return {**ranked, "aggregate": "values", "show": [label] if label else []}
        adds = self.adds_up(name)
        if subject in (*ORDER, *TIME_PARTS):
            self._not_finer(subject)
            own = rank.quantity and subject != frequency
            single = subject == "day" and not (placed.aggregate or adds)
            if not (placed.aggregate or adds or own or single):
                raise self._mean_or_single(rank.word, subject)
            aggregate = rank.direction if single else placed.aggregate or self._default(name)
            return {**ranked, "aggregate": aggregate, "group_by": [subject]}
        once = self._one_row_each(subject)
        if placed.aggregate or (adds and not once):
            return {**ranked, "aggregate": placed.aggregate or "sum", "group_by": [subject]}
        if vague and adds is None and not once:
            raise self.unplaced(rank.word)
        if rank.quantity and not once:
            if not IS.search(self.text) or HAD.search(self.text):
                raise self._mean_or_single(rank.word, subject)
            # What a kind of thing is like in general.
            return {**ranked, "aggregate": "mean", "group_by": [subject]}
        return {**ranked, "aggregate": "values", "show": [subject]}

    def _plain(self, numbers: list[str]) -> dict[str, Any]:
        """Answer "mean of V", "V by group", "V in 1932"."""
        placed, subject = self.placed, self.placed.subject
        tested = {given.column for given in placed.where}
        if not numbers and not (placed.aggregate and len(self.profile.numbers) == 1):
            return self._rows_of(subject)
        name = self._one(numbers)
        single = not placed.groups and not self._several_series() and self._one_step()
        alone = (subject == self.profile.frequency and single) or subject in placed.groups
        if subject is not None and not alone:
            if not placed.aggregate and subject not in ORDER and name in tested:
                return {"aggregate": "values", "value": name, "show": [subject]}
            raise self.unplaced(subject)
        if name in tested and not placed.aggregate:
            raise self.unplaced(name)
        if placed.kind == "percentile":
            return {"aggregate": "percentile", "value": name, "percentile": placed.number}
        if placed.aggregate is None and single:
            return {"aggregate": "values", "value": name}
        if placed.aggregate is None and placed.picture and self.adds_up(name) is None:
            return {"aggregate": "mean", "value": name}
        aggregate = placed.aggregate or self._default(name)
        units = [unit for unit in placed.groups if unit in ORDER]
        if placed.regular and self._several_series():
            units.append(placed.regular)
        if aggregate == "mean" and units and self.adds_up(name):
            raise self._mean_or_single(units[0], units[0])
        if aggregate == "sum" and placed.regular and not placed.groups:
            return {"aggregate": "sum", "value": name, "group_by": [placed.regular]}
        return {"aggregate": aggregate, "value": name}

    def _rows_of(self, subject: str | None) -> dict[str, Any]:
        """Answer "events per month", "which years are missing X": no column is measured."""
        placed = self.placed
        if placed.aggregate is None and placed.kind == "":
            named = placed.named_table or any(f.op in ("=", "in") for f in placed.where)
            if placed.groups and subject is None and named:
                return {"aggregate": "rows"}
            if subject and placed.where and not placed.groups:
                return {"aggregate": "rows", "group_by": [subject]}
        raise self.unplaced("which column")

    # --- what a question leaves open -----------------------------------------------------------

    def _one(self, numbers: list[str]) -> str:
        known = numbers or [column.name for column in self.profile.numbers]
        if len(set(known)) == 1:
            return known[0]
        raise self.unplaced(
            *(numbers or ["which column"]),
            message=f"The question does not tell which column of {self.profile.table.label} is"
            f" meant{': ' + ', '.join(numbers) if numbers else ''}.",
            fix=f"Name one of: {self.profile.names()}.",
        )

    def _default(self, name: str) -> str:
        adds = self.adds_up(name)
        if self._holds(name, "population"):
            adds = True if self._one_step() else None  # heads are the same heads next year
        if adds is None:
            raise self.unplaced(
                name,
                message=f"The question does not tell whether the mean or the total of {name!r} is"
                " meant.",
                fix="Say 'mean' or 'total'.",
            )
        return "sum" if adds else "mean"

    @staticmethod
    def _holds(name: str, quantity: str) -> bool:
        return concept(quantity) in {concept(word) for word in name_words(name)}

    def _mean_or_single(self, word: str, unit: str) -> Unplaced:
        return self.unplaced(
            word,
            message="The question does not tell whether single values or those of each"
            f" {unit} are meant.",
            fix=f"Say 'highest mean by {unit}', or ask without the {unit}.",
        )

    def _yes_or_no(self, name: str) -> bool:
        return any((c.low, c.high) == (0, 1) for c in self.profile.columns if c.name == name)

    def _not_finer(self, subject: str) -> None:
        frequency = self.profile.frequency
        known = subject in ORDER and frequency in ORDER
        if known and ORDER.index(subject) < ORDER.index(str(frequency)):
            raise self.unplaced(subject)

    def _several_series(self) -> bool:
        filtered = {f.column for f in self.placed.where if f.op == "="}
        return not set(self.profile.series) <= filtered

    def _one_step(self) -> bool:
        """Say whether the asked time is one time of the table."""
        frequency, intervals = self.profile.frequency, self.times.periods
        if len(intervals) != 1 or frequency in (None, "minute"):
            return False
        start, end = intervals[0].start, intervals[0].end
        return bool(start and end and end <= shift(floor(start, frequency), 1, frequency))

    def _one_row_each(self, subject: str) -> bool:
        """Say whether each thing has one row at a time, and one time is asked."""
        profile = self.profile
        if profile.time is None:
            column = next(c for c in profile.columns if c.name == subject)
            return column.kind == "text" or len(column.values) >= 0.98 * profile.rows
        return (
            subject in profile.series
            and len(self.times.periods) == 1
            and profile.frequency == "year"
        )


def _order(direction: str) -> str:
    return "highest" if direction == "max" else "lowest"


def _window(window: DataWindow, first: datetime, last: datetime) -> tuple[datetime, datetime]:
    """Return the first or last part of whatever the data covers."""
    amount, unit = window.amount, window.unit
    if window.edge == "last":
        end = shift(floor(last, unit), 1, unit)
        return shift(end, -amount, unit), end
    start = floor(first, unit)
    return start, shift(start, amount, unit)


def recurring(times: Any) -> list[Filter]:
    """Return the tests of times that come again: months, weekdays, hours."""
    return [
        Filter(column=column, op="in", value=list(numbers))
        for column, numbers in (
            ("month_of_year", times.months),
            ("weekday", times.weekdays),
            ("hour_of_day", times.hours),
        )
        if numbers
    ]
