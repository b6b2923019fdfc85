"""Gives every word of a clause its place: columns, values, groups, limits, superlatives."""

from __future__ import annotations

import re

from capabilities.data.clause import BothError, Superlative
from capabilities.data.kinds import Kinds
from capabilities.data.lexicon import (
    COMPARATIVES,
    NOTHING,
    REGULAR,
    ROWS,
    SUPERLATIVES,
    UNITS,
)
from capabilities.data.mentions import (
    Mention,
    aspect,
    columns_named,
    concept,
    meaning,
    values_named,
)
from capabilities.data.phrases import (
    CHANGE,
    GOOD,
    GROUP,
    MEASURES,
    MISSING,
    NOUN_ASPECT,
    NUMBERS,
    TOP,
    WITH_SOME,
)
from capabilities.data.profile import Column
from capabilities.data.query import Filter
from capabilities.data.units import is_unit
from framework.base import ValidationError


def _yes(column: Column) -> str | None:
    """Return the value for yes of a column that says yes or no."""
    known = {value.casefold(): value for value in column.values}
    if len(known) == 2 and set(known) in ({"yes", "no"}, {"true", "false"}):
        return known.get("yes") or known.get("true")
    return None


class Placing(Kinds):
    """Places the words of a clause."""

    def _find_columns(self, kind: str) -> None:
        slots = self.slots
        match = NOUN_ASPECT.search(self.text)
        if match and self._places(*match.span()):
            # Only of temperatures one says "the highs".
            word = (match[1] or match[2]).lower()
            columns = self._by_concept("temperature", "max" if word.startswith("h") else "min")
            if len(columns) == 1:
                at = match.start(1) if match[1] else match.start(2)
                places = self._places(at, at + len(word))
                slots.values.append(Mention(columns[0], frozenset(places)))
                self.free -= places
        missing = [m for m in MISSING.finditer(self.text) if self._places(*m.span())]
        named = {p for p in self.free if not self._compares_or_ranks(p)}
        for group in columns_named(self.words, named, self.tables):
            mention = self._choose(group)
            if mention is None:
                continue
            if kind == "count" and {self.words[p].stem for p in mention.places} <= WITH_SOME:
                # A rainy day is one with some rain.
                slots.where.append(Filter(column=mention.column.name, op=">", value=0))
                self.free -= mention.places
                continue
            slots.values.append(mention)
            self.free -= mention.places
        self._take_measures()
        self._prefer_rows(kind)
        for match in missing[:1]:
            after = [m for m in slots.values if self.words[m.begin].begin >= match.end()]
            before = [m for m in slots.values if self.words[m.begin].end <= match.start()]
            target = after[0] if after else before[-1] if before else None
            if target is None:
                continue
            self.free -= self._places(*match.span())
            slots.values.remove(target)
            slots.where.append(Filter(column=target.column.name, op="missing"))

    def _compares_or_ranks(self, place: int) -> bool:
        """Say whether a word such as "windiest" only has the name of a column in it."""
        known = SUPERLATIVES.get(self.words[place].stem) or COMPARATIVES.get(self.words[place].stem)
        return known is not None and known[0] is not None

    def _take_measures(self) -> None:
        """Place "speed" in "wind speed", where the column is just called wind."""
        for mention in self.slots.values:
            after = max(mention.places) + 1
            if after in self.free and self.words[after].stem in MEASURES:
                self.free.discard(after)

    def _prefer_rows(self, kind: str) -> None:
        """Take a word that names the file for its rows, where a column has the same name."""
        for mention in list(self.slots.values):
            stems = {self.words[p].stem for p in mention.places}
            others = [m for m in self.slots.values if m is not mention]
            counted = kind in ("count", "share") or any(m.column.kind == "number" for m in others)
            if stems <= self.names - ROWS and counted and not self._adds_up(mention.column.name):
                self.slots.values.remove(mention)
                self.named_table += 1

    def _choose(self, group: list[Mention]) -> Mention | None:
        """Choose among columns that the same words may mean."""
        if len(group) > 1:
            wanted = self._wanted_aspect()
            fitting = [m for m in group if wanted and aspect(m.column) == wanted]
            numbers = [m for m in group if m.column.kind == "number"]
            own = [m for m in group if m.column in self.profile.columns]
            chosen = next((g for g in (fitting, numbers, own, group) if len(g) == 1), group)
            if len(chosen) > 1:
                if sorted(aspect(m.column) or "" for m in chosen) == ["max", "min"]:
                    raise BothError
                names = ", ".join(m.column.name for m in chosen[:8])
                said = " ".join(self.words[p].text for p in sorted(group[0].places))
                raise self._unplaced(
                    [said],
                    ValidationError(
                        f"{said!r} may mean several columns of {self.profile.table.label}: {names}.",
                        fix="Name one of them.",
                    ),
                )
            return chosen[0]
        mention = group[0]
        stems = {self.words[p].stem for p in mention.places}
        if not mention.exact and stems <= (self.names | set(UNITS)):
            return None
        if self.timed and stems <= set(UNITS):
            return None  # a part of the table's own time
        return mention

    def _wanted_aspect(self) -> str | None:
        """Say whether highs or lows are meant, where a table has both."""
        if self.aspect is not None:
            return self.aspect
        for place in sorted(self.free):
            word = self.words[place].stem
            if word in ("hot", "warm"):
                return "max"
            if word == "cold":
                return "min"
            if word in ("high", "maximum", "max", "daytime"):
                self.free.discard(place)
                return "max"
            if word in ("low", "minimum", "min", "night"):
                self.free.discard(place)
                return "min"
        for place in sorted(self.free):
            known = SUPERLATIVES.get(self.words[place].stem)
            if known and known[0] == "temperature":
                return known[1]
        for _, quantity, sign, _, unit in self.limits:
            if quantity in ("temperature", None) or unit in ("°C", "°F", "degree"):
                return "max" if sign == ">" else "min"
        return None

    def _find_values(self) -> None:
        for group in values_named(self.words, self.free, self.tables):
            named = {m.column.name for m in self.slots.values}
            chosen = group if len(group) == 1 else [m for m in group if m.column.name in named]
            if len(chosen) != 1:
                names = ", ".join(f"{m.column.name} = {m.value}" for m in group[:6])
                said = " ".join(self.words[p].text for p in sorted(group[0].places))
                raise self._unplaced(
                    [said],
                    ValidationError(f"{said!r} may mean {names}.", fix="Name the column, too."),
                )
            mention = chosen[0]
            before = self.words[mention.begin - 1].stem if mention.begin else ""
            if before in ("not", "non", "except", "without", "excluding"):
                raise self._unplaced([self.words[mention.begin - 1].text])
            self.free -= mention.places
            self.slots.where.append(Filter(column=mention.column.name, value=mention.value))
            # "In the Consumer segment": the column's own name only says what the value is.
            for other in list(self.slots.values):
                near = abs(other.begin - mention.begin) <= len(mention.places) + 1
                if other.column.name == mention.column.name and near:
                    self.slots.values.remove(other)
        self._merge_values()

    def _merge_values(self) -> None:
        """Turn two values of one column into a comparison of both."""
        columns: dict[str, list[Filter]] = {}
        for given in self.slots.where:
            columns.setdefault(given.column, []).append(given)
        for column, filters in columns.items():
            if len(filters) > 1:
                values = [f.value for f in filters if isinstance(f.value, str)]
                if len(values) < len(filters):
                    raise self._unplaced([column])
                kept = [f for f in self.slots.where if f.column != column]
                self.slots.where = [*kept, Filter(column=column, op="in", value=list(values))]
                self.slots.groups.append(column)
                self._take(CHANGE)

    def _find_groups(self) -> None:
        slots = self.slots
        for match in list(GROUP.finditer(self.text)):
            keyword = self._places(*match.span())
            if not keyword:
                continue
            end = max(p for p, w in enumerate(self.words) if w.begin < match.end())
            if re.search(r"\btop\s+\w+", self.text[: match.start()], re.I) and any(
                end + 1 in m.places and m.column.kind == "number" for m in self.slots.values
            ):
                continue  # "top 5 products by sales" ranks and groups nothing
            names = self._group_names(end + 1)
            if names:
                slots.groups += [name for name in names if name not in slots.groups]
                self.free -= keyword
        for place in sorted(self.free):
            unit = REGULAR.get(self.words[place].stem)
            if unit is None or not self.timed:
                continue
            if unit != self.profile.frequency:
                slots.groups.append(unit)
            self.free.discard(place)

    def _group_names(self, start: int) -> list[str]:
        """Read the names after "by": columns and parts of the time, joined by "and"."""
        names: list[str] = []
        place = start
        while place < len(self.words):
            mention = next((m for m in self.slots.values if place in m.places), None)
            if mention is not None:
                names.append(mention.column.name)
                self.slots.values.remove(mention)
                self._note_join(mention)
                place = max(mention.places) + 1
            elif place in self.free and (part := self._time_part(place)):
                names.append(part[0])
                self.free -= part[1]
                place = max(part[1]) + 1
            elif place in self.free and self.words[place].stem in ("and", "the"):
                place += 1
            else:
                break
        return names

    def _find_superlative(self) -> None:
        for place in sorted(self.free):
            known = SUPERLATIVES.get(self.words[place].stem)
            if known is None:
                continue
            word = self.words[place].stem
            if self.slots.superlative is not None:
                raise self._unplaced([self.words[place].text])
            self.slots.superlative = Superlative(place, known[0], known[1], word)  # type: ignore[arg-type]
            self.free.discard(place)
        found = self.slots.superlative
        if found is None:
            found = self.slots.superlative = self._best()
        if found is None:
            return
        match = TOP.search(self.text)
        number = (match["a"] or match["b"]) if match else None
        if match and number and (number.isdigit() or number.lower() in NUMBERS):
            self.free -= self._places(*match.span())
            self.slots.limit = int(number) if number.isdigit() else NUMBERS[number.lower()]
        if found.concept and found.concept != "rows":
            self._column_of(found)

    def _best(self) -> Superlative | None:
        """Read "best" and "worst" where it is known that more is better."""
        for place in sorted(self.free):
            word = self.words[place].stem
            named = {concept(w) for m in self.slots.values for w in meaning(m.column)}
            if word in ("best", "worst") and named & GOOD:
                self.free.discard(place)
                return Superlative(place, None, "max" if word == "best" else "min", word)
        return None

    def _column_of(self, found: Superlative) -> None:
        """Find the column that "hottest" means, unless one is named."""
        if any(m.column.kind == "number" for m in self.slots.values):
            return
        columns = self._by_concept(str(found.concept), found.direction)
        if len(columns) != 1:
            raise self._unplaced([self.words[found.place].text])
        self.slots.values.append(Mention(columns[0], frozenset({found.place})))

    def _find_subject(self, kind: str) -> None:
        """Find what "which X" and "X with the highest" ask for."""
        slots = self.slots
        for mention in list(slots.values):
            yes = _yes(mention.column) if kind in ("count", "share") else None
            if yes is not None:
                # "How many smokers": those where the column says yes.
                slots.where.append(Filter(column=mention.column.name, value=yes))
                slots.values.remove(mention)
                continue
            if mention.column.kind in ("category", "text", "flag") and mention.column.name not in (
                slots.groups
            ):
                slots.subject = slots.subject or mention.column.name
                self._note_join(mention)
                if slots.subject != mention.column.name:
                    raise self._unplaced([mention.column.name])
                slots.values.remove(mention)
        if slots.subject is None:
            for place in sorted(self.free):
                part = self._time_part(place) or (
                    ("day", {place}) if self.timed and self.words[place].stem == "night" else None
                )
                if part is not None:
                    slots.subject = part[0]
                    self.free -= part[1]
                    break
        for mention in slots.values:
            self._note_join(mention)

    def _find_numbers(self) -> None:
        """Find "top 5" without a superlative, and "in MWh"."""
        match = re.search(r"\btop\s+(\d+)\b", self.text, re.I)
        if match and self._places(*match.span()):
            self.free -= self._places(*match.span())
            self.slots.limit = int(match[1])
            self.slots.superlative = self.slots.superlative or Superlative(0, None, "max", "top")
            by = re.search(r"\bby\b", self.text[match.end() :])
            if by:
                self.free -= self._places(match.end() + by.start(), match.end() + by.end())
        for match in re.finditer(r"\bin\s+(?=(°?)\s*([^\W\d]\w*(?:/\w+)?))", self.text):
            places = self._places(*match.span(2))
            word = match[2]
            known = {*UNITS, *NOTHING, *self.names}
            if places and self.words[min(places)].stem not in known and is_unit(word):
                self.slots.unit = {"C": "°C", "F": "°F"}.get(word, word) if match[1] else word
                self.free -= places
                break
        if self._has("percent") and len(self.times.intervals) + len(self.times.endpoints) > 1:
            self._take(re.compile(r"\bpercent\b", re.I))

    def _find_rows_noun(self, kind: str) -> None:
        """Place words for the rows; the name of the file speaks for its table."""
        for place in sorted(self.free):
            stem = self.words[place].stem
            counted = kind in ("count", "share", "distinct") and stem not in ROWS
            if counted and self.words[place].text.lower() == stem:
                continue  # what is counted is said in the plural: "electricity" is no row
            if stem in self.names:
                self.free.discard(place)
                self.named_table += stem not in ROWS

    def _check_left(self) -> None:
        left = [
            self.words[p].text for p in sorted(self.free) if self.words[p].stem not in NOTHING
            and self.words[p].text.lower() not in NOTHING
        ]  # fmt: skip
        if self.base is not None:
            left = [word for word in left if word.lower() not in ("about", "und", "or")]
        if left:
            raise self._unplaced(left)
