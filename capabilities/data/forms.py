"""From placed words to a query: one form for each sort of question."""

from __future__ import annotations

from typing import Any

from capabilities.data.lexicon import UNITS
from capabilities.data.mentions import Mention, concept
from capabilities.data.phrases import ORDER
from capabilities.data.query import TIME_PARTS, Filter, Query
from capabilities.data.timing import Timing
from capabilities.data.words import name_words
from framework.base import ValidationError


def _mean_or_single(unit: str) -> ValidationError:
    return ValidationError(
        f"The question does not tell whether single values or those of each {unit} are meant.",
        fix=f"Say 'highest mean by {unit}', or ask without the {unit}.",
    )


class Form(Timing):
    """Makes the query of a clause whose words are placed."""

    def query(self) -> Query:
        """Place all words and return the query.

        Raises:
            Unplaced: There is a word left, or more than one reading.
        """
        kind = self._kind()
        self._find_limits()
        self._find_columns(kind)
        self._find_values()
        self._find_groups()
        self._find_superlative()
        self._find_subject(kind)
        self._find_numbers()
        self._find_rows_noun(kind)
        self._check_left()
        update = self._assemble(kind)
        update |= self._time_slots(update)
        update["group_by"] = [self._part_name(name) for name in update.get("group_by") or []]
        if self.several:
            update["table"] = self.profile.table.label
        if self.join is not None and self.joined:
            update["join"] = self.join.table.label
        return Query.model_validate(update)

    def _part_name(self, name: str) -> str:
        """Write a part of the time so that no column of that name is meant."""
        own = {c.name.casefold() for c in self.profile.columns}
        return f"time.{name}" if name in own and name in (*ORDER, *TIME_PARTS) else name

    def _assemble(self, kind: str) -> dict[str, Any]:
        slots = self.slots
        numbers = [m for m in slots.values if m.column.kind in ("number", "flag")]
        if len(numbers) < len(slots.values):
            raise self._unplaced([m.column.name for m in slots.values if m not in numbers])
        self._place_limits(numbers)
        if self.base is not None and (form := self._following(kind, numbers)):
            return form
        forms = {
            "correlation": self._correlation, "streak": self._streak, "crossing": self._crossing,
            "share": self._share, "count": self._counted, "distinct": self._distinct,
            "list": self._listed, "rolling": self._rolling, "moved": self._moved,
            "gaps": self._missing_times, "trend": self._trend,
        }  # fmt: skip
        if kind in forms:
            return forms[kind](numbers)
        if kind == "percentile":
            slots.aggregate = "percentile"
        if slots.superlative is not None:
            return self._extreme(numbers)
        return self._plain(numbers)

    def _place_limits(self, numbers: list[Mention]) -> None:
        """Give each limit its column: the one it means, or the nearest that was named."""
        used: list[Mention] = []
        for place, said, sign, value, given in self.limits:
            column = None
            quantity = said or ("temperature" if given == "degree" and not numbers else None)
            unit = None if given == "degree" else given
            if quantity is not None:
                columns = self._by_concept(quantity, "max" if sign == ">" else "min")
                column = columns[0] if len(columns) == 1 else None
            elif numbers:
                mention = min(numbers, key=lambda m: abs(m.begin - place))
                column = mention.column
                used.append(mention)
            elif unit in ("°C", "°F"):
                columns = self._by_concept("temperature", "max" if sign == ">" else "min")
                column = columns[0] if len(columns) == 1 else None
            if column is None and not numbers:
                column = self._only_number()
            if column is None:
                raise self._unplaced([self.words[place].text])
            self.slots.where.append(Filter(column=column.name, op=sign, value=value, unit=unit))
        self.limited = used
        if len(numbers) > 1:
            for mention in used:
                if mention in numbers and mention.begin > min(m.begin for m in numbers):
                    numbers.remove(mention)

    def _one(self, numbers: list[Mention]) -> str:
        only = self._only_number()
        if not numbers and only is not None:
            return only.name
        if len({m.column.name for m in numbers}) != 1:
            names = [m.column.name for m in numbers] or ["which column"]
            raise self._unplaced(
                names,
                ValidationError(
                    f"The question does not tell which column of {self.profile.table.label} is"
                    f" meant{': ' + ', '.join(names) if numbers else ''}.",
                    fix=f"Name one of: {self.profile.names()}.",
                ),
            )
        return numbers[0].column.name

    def _base_form(self, **values: Any) -> dict[str, Any]:
        slots = self.slots
        return {
            "where": slots.where, "group_by": slots.groups, "limit": slots.limit,
            "unit": slots.unit, **values,
        }  # fmt: skip

    def _default_aggregate(self, name: str) -> str:
        adds = self._adds_up(name)
        if concept("population") in {concept(word) for word in name_words(name)}:
            adds = True if self._one_step() else None  # heads are the same heads next year
        if adds is None:
            raise self._unplaced(
                [name],
                ValidationError(
                    f"The question does not tell whether the mean or the total of {name!r} is"
                    " meant.",
                    fix="Say 'mean' or 'total'.",
                ),
            )
        return "sum" if adds else "mean"

    def _no_subject(self) -> None:
        subject = self.slots.subject
        if subject is not None and subject != self.profile.frequency:
            raise self._unplaced([subject])

    def _correlation(self, numbers: list[Mention]) -> dict[str, Any]:
        self._no_subject()
        if len(numbers) != 2 or self.slots.superlative:
            raise self._unplaced(["correlation"])
        return self._base_form(
            aggregate="correlation", value=numbers[0].column.name, by=numbers[1].column.name
        )

    def _streak(self, _numbers: list[Mention]) -> dict[str, Any]:
        self._no_subject()
        if not self.slots.where or self.slots.aggregate or self.slots.superlative:
            raise self._unplaced(["longest"])
        return self._base_form(aggregate="streak")

    def _crossing(self, numbers: list[Mention]) -> dict[str, Any]:
        self._no_subject()
        name = self._one(numbers)
        if not any(f.column == name for f in self.slots.where) or self.slots.aggregate:
            raise self._unplaced(["first"])
        if self._several_series():
            raise self._unplaced(["first"])
        return self._base_form(aggregate="values", value=name, limit=1)

    def _share(self, numbers: list[Mention]) -> dict[str, Any]:
        slots = self.slots
        if slots.superlative or not slots.where or slots.groups or slots.subject:
            raise self._unplaced(["share"])
        if len(slots.where) > 1:
            raise self._unplaced(["share"])  # of all rows, or of those that pass one test?
        free = [m for m in numbers if m.column.name not in {f.column for f in slots.where}]
        if any((m.column.low, m.column.high) == (0, 1) for m in free):
            raise self._unplaced([m.column.name for m in free])
        if not free:
            return self._base_form(aggregate="rows", share=True)
        name = self._one(free)
        if self._adds_up(name) is False:
            raise self._unplaced([name])
        return self._base_form(aggregate="sum", value=name, share=True)

    def _counted(self, numbers: list[Mention]) -> dict[str, Any]:
        """Answer "how many": rows, different things, or the sum of a column of counts."""
        slots = self.slots
        tested = {f.column for f in slots.where}
        free = [m for m in numbers if m.column.name not in tested]
        if slots.superlative is not None:
            if slots.superlative.word == "top" or slots.subject:
                return self._most(free)
            raise self._unplaced([slots.superlative.word])
        if free:
            name = self._one(free)
            if slots.subject or not self._adds_up(name):
                raise self._unplaced([name])
            return self._base_form(aggregate="sum", value=name)
        subject = slots.subject
        if subject in UNITS.values() or subject in TIME_PARTS:
            if subject != self.profile.frequency or self._several_series():
                raise self._unplaced([str(subject)])
        elif subject is not None:
            return self._base_form(aggregate="distinct", value=subject)
        if slots.aggregate not in (None, "sum"):
            raise self._unplaced([slots.aggregate])
        return self._base_form(aggregate="rows")

    def _trend(self, numbers: list[Mention]) -> dict[str, Any]:
        self._no_subject()
        if self.slots.superlative or self.slots.aggregate or self._several_series():
            raise self._unplaced(["trend"])
        return self._base_form(aggregate="slope", value=self._one(numbers))

    def _missing_times(self, numbers: list[Mention]) -> dict[str, Any]:
        if numbers or self.slots.where or self.slots.superlative or self.slots.subject:
            raise self._unplaced(["missing"])
        return self._base_form(aggregate="gaps")

    def _distinct(self, numbers: list[Mention]) -> dict[str, Any]:
        subject = self.slots.subject or (numbers[0].column.name if len(numbers) == 1 else None)
        if subject is None or self.slots.superlative:
            raise self._unplaced(["different"])
        return self._base_form(aggregate="distinct", value=subject)

    def _listed(self, numbers: list[Mention]) -> dict[str, Any]:
        if self.slots.superlative or self.slots.groups or not self.slots.subject or numbers:
            if self.slots.superlative:
                return self._extreme(numbers)
            return self._plain(numbers)
        return self._base_form(aggregate="rows", group_by=[self.slots.subject])

    def _rolling(self, numbers: list[Mention]) -> dict[str, Any]:
        self._no_subject()
        intervals = self.times.intervals
        if len(intervals) != 1 or self.slots.superlative or self.slots.groups:
            raise self._unplaced(["moving average"])
        return self._base_form(aggregate="last", value=self._one(numbers), rolling=int(self.number))

    def _moved(self, numbers: list[Mention]) -> dict[str, Any]:
        """Answer how something developed: its groups over time."""
        slots = self.slots
        name = self._one(numbers)
        unit = slots.subject or next(iter(slots.groups), None) or "month"
        if slots.superlative or self.profile.time is None or unit not in ORDER:
            raise self._unplaced(["how"])
        if unit == self.profile.frequency:
            unit = ORDER[min(ORDER.index(unit) + (2 if unit == "day" else 1), 7)]
        aggregate = slots.aggregate or self._default_aggregate(name)
        return self._base_form(aggregate=aggregate, value=name, group_by=[unit])

    def _most(self, numbers: list[Mention]) -> dict[str, Any]:
        """Answer "which X has the most rows"."""
        slots = self.slots
        assert slots.superlative is not None
        order = "highest" if slots.superlative.direction == "max" else "lowest"
        subject = slots.subject
        if subject is None or numbers:
            raise self._unplaced([slots.superlative.word])
        self._not_finer(subject)
        groups = [*slots.groups, subject]
        return self._base_form(
            aggregate="rows", group_by=groups, order=order, limit=slots.limit or 1
        )

    def _not_finer(self, subject: str) -> None:
        frequency = self.profile.frequency
        known = subject in ORDER and frequency in ORDER
        if known and ORDER.index(subject) < ORDER.index(str(frequency)):
            raise self._unplaced([subject])

    def _extreme(self, numbers: list[Mention]) -> dict[str, Any]:
        """Answer "which X had the highest V", "highest V", "heaviest X"."""
        slots = self.slots
        found = slots.superlative
        assert found is not None
        order = "highest" if found.direction == "max" else "lowest"
        if found.concept == "rows" or (
            found.word in ("most", "fewest", "least", "top") and not numbers
        ):
            return self._most(numbers)
        name = self._one(numbers)
        subject = slots.subject
        limit = slots.limit or 1
        if slots.groups:
            if subject is not None or slots.aggregate:
                raise self._unplaced([str(subject or found.word)])
            return self._base_form(aggregate=found.direction, value=name, limit=slots.limit)
        if subject is None or subject == self.profile.frequency:
            if slots.aggregate:
                raise self._unplaced([slots.aggregate])
            label = self.profile.label_column
            show = [label] if label else self.profile.series
            return self._base_form(
                aggregate="values", value=name, order=order, limit=limit, show=show
            )
        if subject in ORDER or subject in TIME_PARTS:
            self._not_finer(subject)
            if not (slots.aggregate or found.concept or self._adds_up(name)):
                # The month of the highest single value, or of the highest mean?
                raise self._unplaced([found.word], _mean_or_single(subject))
            aggregate = slots.aggregate or self._default_aggregate(name)
            return self._base_form(
                aggregate=aggregate, value=name, group_by=[subject], order=order, limit=limit
            )
        adds = self._adds_up(name)
        if slots.aggregate or (adds and not self._one_row_each(subject)):
            return self._base_form(
                aggregate=slots.aggregate or "sum", value=name, group_by=[subject], order=order,
                limit=limit,
            )  # fmt: skip
        if (
            found.word in ("most", "fewest", "least")
            and adds is None
            and not self._one_row_each(subject)
        ):
            raise self._unplaced([found.word])
        return self._base_form(
            aggregate="values", value=name, order=order, limit=limit, show=[subject]
        )

    def _one_row_each(self, subject: str) -> bool:
        """Say whether each thing has one row at a time, and one time is asked."""
        if self.profile.time is None:
            column = self._column(subject)
            return column.kind == "text" or len(column.values) >= 0.98 * self.profile.rows
        return (
            subject in self.profile.series
            and len(self.times.intervals) == 1
            and (self.profile.frequency == "year")
        )

    def _plain(self, numbers: list[Mention]) -> dict[str, Any]:
        """Answer "mean of V", "V by group", "V in 1932"."""
        slots = self.slots
        tested = {f.column for f in slots.where}
        subject = slots.subject
        if not numbers and slots.aggregate and (only := self._only_number()) is not None:
            numbers = [Mention(only, frozenset({0}))]
        if not numbers:
            if slots.groups and not slots.aggregate and subject is None and self._named_rows():
                return self._base_form(aggregate="rows")
            if subject and slots.where and not slots.aggregate and not slots.groups:
                return self._base_form(aggregate="rows", group_by=[subject])
            raise self._unplaced(["which column"])
        alone = subject == self.profile.frequency and self._single_row()
        if subject is not None and not alone and subject not in slots.groups:
            if (
                not slots.aggregate
                and subject not in UNITS.values()
                and set(tested) & {m.column.name for m in numbers}
            ):
                return self._base_form(aggregate="values", value=self._one(numbers), show=[subject])
            raise self._unplaced([subject])
        name = self._one(numbers)
        if name in tested and not slots.aggregate:
            raise self._unplaced([name])
        extra: dict[str, Any] = {}
        if slots.aggregate == "percentile":
            extra["percentile"] = self.number
        if slots.aggregate is None and self._single_row():
            return self._base_form(aggregate="values", value=name, limit=None)
        if slots.aggregate is None and self.picture and self._adds_up(name) is None:
            slots.aggregate = "mean"
        aggregate = slots.aggregate or self._default_aggregate(name)
        if aggregate == "mean" and set(slots.groups) & set(ORDER) and self._adds_up(name):
            # The mean of single rows, or of the totals of each month?
            raise self._unplaced([slots.groups[0]], _mean_or_single(slots.groups[0]))
        return self._base_form(aggregate=aggregate, value=name, **extra)

    def _named_rows(self) -> bool:
        return bool(self.named_table) or any(f.op in ("=", "in") for f in self.slots.where)

    def _following(self, kind: str, numbers: list[Mention]) -> dict[str, Any] | None:
        """Change the slots of the query before by what this clause names."""
        slots, base = self.slots, self.base
        assert base is not None
        form = base.model_dump()
        if self.continued and slots.superlative is not None and base.group_by:
            parts = {"hour": "hour_of_day", "day": "weekday", "month": "month_of_year"}
            named = slots.subject
            same = named in base.group_by or parts.get(named or "") in base.group_by
            if same and not slots.where and not slots.aggregate:
                order = "highest" if slots.superlative.direction == "max" else "lowest"
                return form | {"order": order}
        if self.continued or kind not in ("", "count"):
            return None
        if slots.superlative or slots.groups or slots.subject or numbers or self.limits:
            return None
        columns = {f.column for f in slots.where}
        kept = [f for f in base.where if f.column not in columns]
        form["where"] = [*kept, *slots.where]
        if slots.aggregate:
            form["aggregate"] = slots.aggregate
        if not slots.where and not self.times.intervals and not slots.aggregate:
            return None
        return form
