"""One clause of a question: its words, and which of them are placed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from capabilities.data.lexicon import (
    ADDITIVE,
    ADDITIVE_UNITS,
    AVERAGED,
    COMPARATIVES,
    NOTHING,
    ROWS,
    UNITS,
)
from capabilities.data.mentions import Mention, aspect, concept, meaning
from capabilities.data.phrases import BEFORE_TIME, MOVING, NUMBER, NUMBERS, SCALES, SIGN
from capabilities.data.profile import Column, TableProfile
from capabilities.data.query import Filter, Query
from capabilities.data.units import is_unit
from capabilities.data.words import Word, blank, fold, name_words, words_of
from capabilities.periods.connect import ParsedTime
from framework.base import ValidationError


class BothError(Exception):
    """Highs and lows may be meant; both are answered."""


class Unplaced(Exception):
    """A reading of a clause that leaves words over."""

    def __init__(self, words: Sequence[str], error: ValidationError) -> None:
        super().__init__(str(error))
        self.words = list(words)
        self.error = error


def refusal(words: Sequence[str], profile: TableProfile) -> ValidationError:
    """Return the error that names the words which could not be placed."""
    listed = ", ".join(repr(word[:60]) for word in words[:8])
    return ValidationError(
        f"These words of the question could not be placed: {listed}.",
        fix="Ask for the mean, total, count, highest or lowest of a column, by a group, with a"
        f" limit or for a time; {profile.table.label} has the columns {profile.names()}.",
    )


@dataclass
class Superlative:
    """Which way, of what, and where it stands: "hottest", "most"."""

    place: int
    concept: str | None
    direction: Literal["max", "min"]
    word: str


@dataclass
class Slots:
    """What the words of a clause fill."""

    values: list[Mention] = field(default_factory=list)
    where: list[Filter] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    aggregate: str | None = None
    superlative: Superlative | None = None
    subject: str | None = None
    limit: int | None = None
    unit: str | None = None
    show: list[str] = field(default_factory=list)


class Clause:
    """One clause of a question over one table; every word is free until something takes it."""

    def __init__(
        self,
        text: str,
        profile: TableProfile,
        join: TableProfile | None,
        times: ParsedTime,
        base: Query | None,
        continued: bool,
        several: bool,
        wanted: str | None = None,
    ) -> None:
        self.aspect = wanted
        self.profile = profile
        self.join = join
        self.tables = [profile] if join is None else [profile, join]
        self.times = times
        self.base = base
        self.continued = continued
        self.several = several
        self.joined = False
        self.picture = False
        self.number = 0.0
        self.named_table = 0
        self.timed = profile.time is not None
        spans = times.spans if self.timed else []
        if not self.timed and (times.intervals or times.window):
            spans = times.spans
        self.text = blank(text, spans)
        self.words: list[Word] = words_of(text)
        self.free = {
            place
            for place, word in enumerate(self.words)
            if not any(begin < word.end and word.begin < end for begin, end in spans)
        }
        for begin, _ in spans:
            place = max((p for p, w in enumerate(self.words) if w.end <= begin), default=None)
            # What "since" and "before" say is in the period already.
            while place is not None and self.words[place].stem in (BEFORE_TIME | {"the", "and"}):
                gap = self.text[self.words[place].end : begin].strip()
                if gap or place not in self.free:
                    break
                self.free.discard(place)
                begin, place = self.words[place].begin, place - 1 if place else None
        self.slots = Slots()
        self.names = self._row_names()

    def _row_names(self) -> set[str]:
        """Return the words for a row: of any table, and what the file is called."""
        table = self.profile.table
        stem_words = name_words((table.table or table.label.rsplit(".", 1)[0]).replace("-", " "))
        return set(ROWS) | {word for word in stem_words if len(word) > 2}

    def _places(self, begin: int, end: int) -> set[int]:
        return {p for p in self.free if self.words[p].begin < end and begin < self.words[p].end}

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Place the words of a pattern, if they are there and free."""
        for match in pattern.finditer(self.text):
            places = self._places(*match.span())
            if places:
                self.free -= places
                return match
        return None

    def _has(self, *stems: str) -> bool:
        return any(self.words[p].stem in stems for p in self.free)

    def _unplaced(self, words: Sequence[str], error: ValidationError | None = None) -> Unplaced:
        return Unplaced(words, error or refusal(words, self.profile))

    def _find_limits(self) -> None:
        """Find "above 30 degrees", "negative", "no departure time"; columns come later."""
        self.limits: list[tuple[int, str | None, str, float, str | None]] = []
        for place in sorted(self.free):
            word = self.words[place]
            known = COMPARATIVES.get(word.stem) or COMPARATIVES.get(word.text.lower())
            if word.stem in ("least", "most") and place and self.words[place - 1].stem == "at":
                known = (None, ">=" if word.stem == "least" else "<=")
            if known is None or place not in self.free:
                continue
            at = place + 1
            while at < len(self.words) and self.words[at].stem in ("than", "or", "equal", "to"):
                at += 1
            if at >= len(self.words) or at not in self.free:
                continue
            number = self._number_at(at)
            if number is None:
                continue
            value, unit, until = number
            self.free -= set(range(place, until))
            if place and self.words[place - 1].stem in MOVING:
                self.free.discard(place - 1)
            self.limits.append((place, known[0], known[1], value, unit))
        match = self._take(SIGN)
        if match:
            place = next(p for p, w in enumerate(self.words) if w.begin >= match.start())
            sign = "<" if match[1].lower() == "negative" else ">"
            self.limits.append((place, None, sign, 0.0, None))
        equal = re.search(r"\b(?:of|is|was|equals?|=)\s+(-?\d+(?:\.\d+)?)\b", self.text)
        if equal and self._places(*equal.span(1)):
            place = min(self._places(*equal.span(1)))
            self.free -= self._places(*equal.span(1))
            self.limits.append((place, None, "=", float(equal[1]), None))

    def _number_at(self, at: int) -> tuple[float, str | None, int] | None:
        """Read the number at a word, with its unit: value, unit, first word after it."""
        word = self.words[at]
        match = NUMBER.match(
            self.text, word.begin - (self.text[word.begin - 1 : word.begin] in "-\u2212")
        )
        until = at + 1
        if match:
            value = float(match[0].replace(",", "").replace("\u2212", "-"))
            while until < len(self.words) and self.words[until].begin < match.end():
                until += 1
        elif word.stem in ("freezing", "frost"):
            return 0.0, "°C", until
        elif word.stem in NUMBERS:
            value = float(NUMBERS[word.stem])
        else:
            return None
        if until < len(self.words) and self.words[until].stem in SCALES:
            value *= SCALES[self.words[until].stem]
            until += 1
        unit = None
        if until < len(self.words):
            following = self.words[until]
            if following.stem in ("degree", "degrees"):
                until += 1
                unit = "degree"
                if until < len(self.words) and self.words[until].text.lower() in (
                    "celsius", "fahrenheit", "c", "f",
                ):  # fmt: skip
                    unit = {"c": "°C", "f": "°F"}[self.words[until].text[0].lower()]
                    until += 1
            elif self._is_unit_of_measure(following):
                unit = following.text
                until += 1
        return value, unit, until

    def _is_unit_of_measure(self, word: Word) -> bool:
        if word.stem in NOTHING or word.stem in UNITS or len(word.text) > 12:
            return False
        before = self.text[max(0, word.begin - 1) : word.begin]
        return before == "°" or is_unit(word.text) or is_unit(word.stem)

    def _time_part(self, place: int) -> tuple[str, set[int]] | None:
        """Read a unit or part of the time at a word."""
        if not self.timed:
            return None
        stem = self.words[place].stem
        rest = [self.words[p].stem for p in range(place + 1, min(place + 4, len(self.words)))]
        for words, part in (
            (["hour", "of", "day"], "hour_of_day"), (["hour", "of", "the", "day"], "hour_of_day"),
            (["day", "of", "week"], "weekday"), (["day", "of", "the", "week"], "weekday"),
            (["month", "of", "year"], "month_of_year"),
            (["month", "of", "the", "year"], "month_of_year"),
        ):  # fmt: skip
            if [stem, *rest][: len(words)] == words:
                return part, set(range(place, place + len(words)))
        if stem == "weekday":
            return "weekday", {place}
        if stem in UNITS and stem not in ("date", "night"):
            return UNITS[stem], {place}
        return None

    def _by_concept(self, wanted: str, direction: str | None) -> list[Column]:
        numbers = self.profile.numbers
        found = [c for c in numbers if wanted in {concept(word) for word in meaning(c)}]
        if len(found) > 1 and direction:
            found = [c for c in found if aspect(c) == direction] or found
        return found

    def _adds_up(self, name: str) -> bool | None:
        """Say whether a column is added up or averaged, where its name or unit tells."""
        column = self._column(name)
        words = {concept(word) for word in name_words(name)} | {fold(name)}
        if words & AVERAGED or column.unit == "%":
            return False
        if words & ADDITIVE or column.unit in ADDITIVE_UNITS:
            return True
        return False if column.unit else None

    def _column(self, name: str) -> Column:
        columns = [c for table in self.tables for c in table.columns]
        return next((c for c in columns if c.name == name), Column(name, "text"))

    def _only_number(self) -> Column | None:
        """Return the column with numbers where the table has just one."""
        numbers = self.profile.numbers
        return numbers[0] if len(numbers) == 1 else None

    def _note_join(self, mention: Mention) -> None:
        own = {c.name for c in self.profile.columns}
        timed = self.profile.time.columns if self.profile.time else []
        if mention.column.name not in own and mention.column.name not in timed:
            self.joined = True

    def _several_series(self) -> bool:
        filtered = {f.column for f in self.slots.where if f.op == "="}
        return bool(self.profile.series) and not set(self.profile.series) <= filtered
