"""Gives every word of a question its place: columns, values, groups, limits, superlatives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from capgraph.base import ValidationError
from capgraph.capabilities.data import lexicon as lex
from capgraph.capabilities.data.mentions import (
    Mention,
    aspect,
    columns_named,
    concept,
    meaning,
    values_named,
)
from capgraph.capabilities.data.profile import Column, TableProfile
from capgraph.capabilities.data.units import TIMES, is_unit
from capgraph.capabilities.data.words import Word, blank, fold, name_words, words_of
from capgraph.capabilities.periods.items import ParsedTime
from capgraph.capabilities.query import Filter


class BothError(Exception):
    """Highs and lows may be meant; both are answered."""


class Unplaced(Exception):
    """A reading that leaves words over, or cannot tell two meanings apart."""

    def __init__(self, words: Sequence[str], error: ValidationError) -> None:
        super().__init__(words, error)
        self.words: list[str] = list(words)
        self.error = error

    def __str__(self) -> str:
        return str(self.error)


@dataclass
class Limit:
    """A number to compare with: where it stands, what it speaks of."""

    place: int
    quantity: str | None
    sign: str
    value: float
    unit: str | None = None


@dataclass
class Rank:
    """Which way, of what, by which word: "hottest", "most"."""

    quantity: str | None
    direction: str
    word: str


def _sold(match: re.Match[str]) -> Rank:
    """Return the rank of "best-selling", "loses the most", "most profitable"."""
    said = {name: (text or "").lower() for name, text in match.groupdict().items()}
    if said["best"]:
        lowest = said["best"] in ("worst", "least")
        return Rank("revenue", "min" if lowest else "max", said["best"])
    word = said["most"] or said["most2"]
    lowest = (word == "least") != said["verb"].startswith("los")
    return Rank("profit", "min" if lowest else "max", word)


@dataclass
class Placed:
    """Where the words of a question went."""

    kind: str = ""
    number: float = 0.0
    columns: list[Mention] = field(default_factory=list)
    where: list[Filter] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    regular: str | None = None
    aggregate: str | None = None
    rank: Rank | None = None
    subject: str | None = None
    limit: int | None = None
    unit: str | None = None
    picture: bool = False
    named_table: int = 0
    timed_by: str | None = None
    ratio: str | None = None
    counted: int = 0


class Placing:
    """One question over one table; every word is free until something takes it.

    Args:
        text: The question.
        profile: The table.
        times: The times of the question.
        aspect: Whether highs or lows are meant, where that was asked.
    """

    def __init__(
        self, text: str, profile: TableProfile, times: ParsedTime, aspect: str | None = None
    ) -> None:
        self.profile: TableProfile = profile
        self.times: ParsedTime = times
        self.aspect: str | None = aspect
        self.timed: bool = profile.time is not None
        spans = times.spans if self.timed or times.periods or times.window else []
        self.spans = spans
        self.text: str = blank(text, spans)
        self.words: list[Word] = words_of(text)
        self.free: set[int] = {
            place
            for place, word in enumerate(self.words)
            if not any(begin < word.end and word.begin < end for begin, end in spans)
        }
        for begin, _ in spans:  # what "since" and "before" say is in the period already
            for place in range(len(self.words) - 1, -1, -1):
                word = self.words[place]
                if word.end > begin:
                    continue
                if word.stem not in lex.BEFORE_TIME or text[word.end : begin].strip():
                    break
                self.free.discard(place)
                begin = word.begin
        table = profile.table
        name = (table.name or table.label.rsplit(".", 1)[0]).replace("-", " ")
        self.names: frozenset[str] = lex.ROWS | {word for word in name_words(name) if len(word) > 2}
        self.names |= profile.things
        held = {concept(word) for column in profile.columns for word in name_words(column.name)}
        if held & {"age", "gender"}:
            self.names |= lex.PERSONS
        self.placed: Placed = Placed()

    # --- helpers -------------------------------------------------------------------------------

    def places(self, begin: int, end: int) -> set[int]:
        """Return the free words of a part of the text."""
        return {p for p in self.free if self.words[p].begin < end and begin < self.words[p].end}

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Place the words of a pattern, if they are there and free."""
        for match in pattern.finditer(self.text):
            if places := self.places(*match.span()):
                self.free -= places
                return match
        return None

    def take_word(self, words: dict[str, str] | frozenset[str]) -> str | None:
        """Place the first free word that is among some."""
        for place in sorted(self.free):
            if self.words[place].stem in words:
                self.free.discard(place)
                return self.words[place].stem
        return None

    def unplaced(self, *words: object, message: str = "", fix: str = "") -> Unplaced:
        """Return the error that names the words which have no place."""
        listed = ", ".join(repr(str(word)[:60]) for word in words[:8])
        return Unplaced(
            list(map(str, words)),
            ValidationError(
                message or f"These words of the question could not be placed: {listed}.",
                fix=fix
                or "Ask for the mean, total, count, highest or lowest of a column, by a group, with"
                f" a limit or for a time; {self.profile.table.label} has the columns"
                f" {self.profile.names()}.",
            ),
        )

    def compared(self) -> bool:
        """Say whether several times are compared."""
        return len(self.times.periods) > 1 or len(self.times.endpoints) == 2

    def by_concept(self, wanted: str, direction: str | None) -> list[Column]:
        """Return the columns that hold a quantity; of highs and lows those that are meant."""
        numbers = self.profile.numbers
        found = [c for c in numbers if wanted in {concept(word) for word in meaning(c)}]
        if wanted == "price":  # of a unit, not of what a row is
            found = [c for c in found if "unit" not in name_words(c.name)]
        fitting = [c for c in found if aspect(c) == direction] if direction else []
        return fitting if len(found) > 1 and fitting else found

    def adds_up(self, name: str) -> bool | None:
        """Say whether a column is added up or averaged, where its name or unit tells."""
        column = next((c for c in self.profile.columns if c.name == name), Column(name, "text"))
        words = {concept(word) for word in name_words(name)} | {fold(name)}
        if words & lex.AVERAGED or column.unit == "%":
            return False
        if words & lex.ADDITIVE or column.unit in lex.ADDITIVE_UNITS:
            return True
        return False if column.unit and column.unit not in TIMES else None

    # --- the words, one sort after the other ---------------------------------------------------

    def place(self) -> Placed:
        """Place all words.

        Raises:
            Unplaced: There is a word left, or more than one reading.
        """
        self._kind()
        self._limits()
        self._columns()
        self._values()
        self._groups()
        self._rank()
        self._dates()
        self._unit()
        self._subject()
        self._rows()
        left = [
            self.words[p].text for p in sorted(self.free)
            if not {self.words[p].stem, self.words[p].text.lower()} & lex.NOTHING
        ]  # fmt: skip
        if left:
            raise self.unplaced(*left)
        self._limited()
        return self.placed

    def _kind(self) -> None:
        placed, frequency = self.placed, self.profile.frequency
        while self.take(lex.PICTURE):
            placed.picture = True
        self.take(lex.FELL)
        if asked := self.take(lex.GET):
            word = asked["word"].lower()
            direction = "min" if word in lex.LOWS else "max"
            placed.rank = Rank(lex.HIGHS.get(word), direction, word)
            while self.take(lex.GOT):
                pass
        self.take(lex.REACHED)
        if (sold := self.take(lex.SOLD)) and placed.rank is None:
            placed.rank = _sold(sold)
        held = {word for column in self.profile.numbers for word in meaning(column)}
        for kind, pattern in lex.KINDS:
            before = set(self.free)
            match = self.take(pattern)
            if match is None:
                continue
            if "amount" in held and "amount" in match[0].lower():
                self.free = before  # a column is meant, where there is one of that name
                continue
            said = match.groupdict()
            unit = {"h": "hour"}.get(said.get("unit") or "", said.get("unit"))
            if unit and unit.lower() != frequency:
                raise self.unplaced(unit)
            placed.number = float(said.get("n") or 0)
            placed.kind = kind
            placed.counted = match.end()
            if "std" in said:
                placed.aggregate = "std"
            break
        if placed.kind == "crossing":
            self.take(lex.COUNT)
        asked = self.take(lex.AND_WHEN)  # the time of an extreme is always said
        if asked and asked["unit"] and lex.UNITS.get(asked["unit"].lower()) != frequency:
            raise self.unplaced(asked["unit"])
        self._development()

    def _development(self) -> None:
        """Read comparisons, "how did … develop", and which aggregate is asked for."""
        placed = self.placed
        if self.compared():
            self.take(lex.CHANGE)
            if not any(self.words[place].stem in lex.SUPERLATIVES for place in self.free):
                self.take(lex.ROSE)  # what grew the most is one of several changes
        elif lex.HOW_DID.match(self.text) and self.take(lex.MOVED):
            placed.kind = "moved"
            self.take(lex.HOW_DID)
        while word := self.take_word(frozenset(lex.AGGREGATES)):
            if placed.aggregate not in (None, lex.AGGREGATES[word]):
                raise self.unplaced(word)
            placed.aggregate = lex.AGGREGATES[word]

    def _limits(self) -> None:
        """Find "above 30 degrees", "negative", "of 0"; their columns come later."""
        limits = self.placed.limits
        for place in sorted(self.free):
            word = self.words[place]
            quantity, sign = lex.COMPARATIVES.get(word.stem, (None, ""))
            if word.stem in ("least", "most") and place and self.words[place - 1].stem == "at":
                quantity, sign = None, ">=" if word.stem == "least" else "<="
            at = place + 1
            while at < len(self.words) and self.words[at].stem in ("than", "or", "equal", "to"):
                at += 1
            number = self._number(at) if sign and at in self.free else None
            if number is None:
                if quantity and self.compared():
                    self._warmer(place, quantity)
                continue
            value, unit, until = number
            self.free -= set(range(place, until))
            if place and self.words[place - 1].stem in lex.MOVING:
                self.free.discard(place - 1)
            limits.append(Limit(place, quantity, sign, value, unit))
        if match := self.take(lex.SIGN):
            place = next(p for p, w in enumerate(self.words) if w.begin >= match.start())
            limits.append(Limit(place, None, "<" if match[1].lower() == "negative" else ">", 0.0))
        equal = re.search(r"\b(?:of|is|was|equals?|=)\s+(-?\d+(?:\.\d+)?)\b", self.text)
        if equal and (places := self.places(*equal.span(1))):
            self.free -= places
            limits.append(Limit(min(places), None, "=", float(equal[1])))

    def _warmer(self, place: int, quantity: str) -> None:
        """Read "warmer" in a comparison of two times."""
        columns = self.by_concept(quantity, self.aspect)
        if sorted(aspect(column) or "" for column in columns) == ["max", "min"]:
            raise BothError
        if len(columns) != 1:
            raise self.unplaced(self.words[place].text)
        self.placed.columns.append(Mention(columns[0], frozenset({place})))
        self.free.discard(place)

    def _number(self, at: int) -> tuple[float, str | None, int] | None:
        """Read the number at a word, with its unit: value, unit, first word after it."""
        word, until, unit = self.words[at], at + 1, None
        sign = self.text[word.begin - 1 : word.begin] in ("-", "\u2212")
        if match := lex.NUMBER.match(self.text, word.begin - sign):
            value = float(match[0].replace(",", "").replace("\u2212", "-"))
            while until < len(self.words) and self.words[until].begin < match.end():
                until += 1
        elif word.stem in ("freezing", "frost"):
            return 0.0, "°C", until
        elif word.stem in lex.NUMBERS:
            value = float(lex.NUMBERS[word.stem])
        else:
            return None
        following = [w.text.lower() for w in self.words[until : until + 2]] + ["", ""]
        if following[0] in lex.SCALES:
            value *= lex.SCALES[following[0]]
            until += 1
        elif following[0] in ("degree", "degrees"):
            unit = {"c": "°C", "f": "°F"}.get(following[1][:1])
            known = following[1] in ("c", "f", "celsius", "fahrenheit")
            return value, unit if known else "degree", until + 1 + known
        if until < len(self.words):
            word = self.words[until]
            says_nothing = {word.stem, word.text} & lex.NOTHING
            of_the_time = word.stem in lex.UNITS and not self._lasts()
            if not says_nothing and not of_the_time and is_unit(word.text):
                unit, until = word.text, until + 1
        return value, unit, until

    def _lasts(self) -> bool:
        """Say whether a column holds how long something took."""
        return any(column.unit in TIMES for column in self.profile.numbers)

    def _columns(self) -> None:
        placed = self.placed
        match = lex.NOUN_ASPECT.search(self.text)
        if match and self.places(*match.span()):  # only of temperatures one says "the highs"
            word = (match[1] or match[2]).lower()
            wanted = "max" if word.startswith("h") else "min"
            columns = self.by_concept("temperature", wanted)
            if len(columns) == 1 and aspect(columns[0]) == wanted:
                places = self.places(match.end() - len(word), match.end())
                placed.columns.append(Mention(columns[0], frozenset(places), score=100))
                self.free -= places
        missing = next((m for m in lex.MISSING.finditer(self.text) if self.places(*m.span())), None)
        ranking = {
            word
            for known in (lex.SUPERLATIVES, lex.COMPARATIVES)
            for word in known
            if known[word][0]
        }
        if self.timed:
            ranking.update(lex.REGULAR)
        free = {p for p in self.free if self.words[p].stem not in ranking}
        for group in columns_named(self.words, free, self.profile):
            if mention := self._choose(group):
                self.free -= mention.places
                stems = {self.words[p].stem for p in mention.places}
                if (
                    placed.kind == "count" and stems <= lex.WITH_SOME
                ):  # a rainy day is one with some
                    placed.where.append(Filter(column=mention.column.name, op=">", value=0))
                else:
                    placed.columns.append(mention)
        for mention in list(placed.columns):
            after = max(mention.places) + 1
            if after in self.free and self.words[after].stem in lex.MEASURES:
                self.free.discard(after)  # "wind speed", where the column is just called wind
            stems = {self.words[p].stem for p in mention.places}
            counted = placed.kind in ("count", "share") or any(
                m.column.kind == "number" and not self._grouping(m)
                for m in placed.columns if m is not mention
            )  # fmt: skip
            # A word that names the file means its rows, where a column has the same name.
            counted = (
                counted and not self._grouping(mention) and not self.adds_up(mention.column.name)
            )
            if stems <= self.names - lex.ROWS and counted:
                placed.columns.remove(mention)
                placed.named_table += 1
        if missing and placed.columns:
            later = [m for m in placed.columns if self.words[min(m.places)].begin >= missing.end()]
            if not later and missing[0].lower().endswith(("no", "without")):
                raise self.unplaced(missing[0])  # what it is without is a value
            target = later[0] if later else placed.columns[-1]
            self.free -= self.places(*missing.span())
            placed.columns.remove(target)
            placed.where.append(Filter(column=target.column.name, op="missing"))

    def _grouping(self, mention: Mention) -> bool:
        """Say whether a column is named behind a word such as "by"."""
        begin = min(mention.places, default=0)
        return bool(begin and self.words[begin - 1].stem in ("by", "per", "each", "which"))

    def _choose(self, group: list[Mention]) -> Mention | None:
        """Choose among columns that the same words may mean."""
        stems = {self.words[p].stem for p in group[0].places}
        whole = group[0].score >= 20 + 10 * len(group[0].places)
        counted = stems <= self.profile.things and self.placed.kind != "distinct"
        if counted or (not whole and stems <= {*self.names, *lex.UNITS}):
            return None  # the rows of the table, or a part of its time
        if len(group) > 1:
            wanted = self._wanted_aspect()
            fitting = [m for m in group if wanted and aspect(m.column) == wanted]
            numbers = [m for m in group if m.column.kind == "number"]
            measured = [m for m in numbers if self._is_ranked(m.column)]
            group = next((g for g in (fitting, measured, numbers) if len(g) == 1), group)
        if len(group) > 1:
            if sorted(aspect(m.column) or "" for m in group) == ["max", "min"]:
                raise BothError
            said = " ".join(self.words[p].text for p in sorted(group[0].places))
            names = ", ".join(m.column.name for m in group[:8])
            raise self.unplaced(
                said,
                message=f"{said!r} may mean several columns of {self.profile.table.label}: {names}.",
                fix="Name one of them.",
            )
        return None if self.timed and stems <= set(lex.UNITS) else group[0]

    def _is_ranked(self, column: Column) -> bool:
        """Say whether a column holds what a superlative of the question speaks of.

        Of the wind that is its speed: nobody asks for the strongest direction.
        """
        words = {concept(word) for word in meaning(column)}
        ranked = {lex.SUPERLATIVES.get(word.stem, (None, ""))[0] for word in self.words}
        if {"wind", "gust"} & {concept(word) for word in name_words(column.name)}:
            return "speed" in words
        return bool(words & ranked)

    def _wanted_aspect(self) -> str | None:
        """Say whether highs or lows are meant, where a table has both."""
        if self.aspect is not None:
            return self.aspect
        for place in sorted(self.free):
            stem = self.words[place].stem
            if stem in ("hot", "warm", "high", "maximum", "max", "daytime"):
                found = "max"
            elif stem in ("cold", "low", "minimum", "min", "night"):
                found = "min"
            else:
                quantity, found = lex.SUPERLATIVES.get(stem, (None, ""))
                if quantity == "temperature":
                    return found
                continue
            if stem not in lex.SUPERLATIVES or self.placed.aggregate:
                self.free.discard(place)
            return found
        for limit in self.placed.limits:
            if limit.quantity == "temperature" or limit.unit in (None, "°C", "°F", "degree"):
                return "max" if limit.sign.startswith(">") else "min"
        return None

    def _values(self) -> None:
        placed = self.placed
        values: dict[str, list[str]] = {}
        for group in values_named(self.words, self.free, self.profile):
            named = {m.column.name for m in placed.columns}
            chosen = group if len(group) == 1 else [m for m in group if m.column.name in named]
            said = " ".join(self.words[p].text for p in sorted(group[0].places))
            if len(chosen) != 1:
                names = ", ".join(f"{m.column.name} = {m.value}" for m in group[:6])
                raise self.unplaced(
                    said, message=f"{said!r} may mean {names}.", fix="Name the column, too."
                )
            mention, begin = chosen[0], min(chosen[0].places)
            before = self.words[begin - 1].stem if begin else ""
            if before in ("not", "non", "except", "without", "excluding"):
                raise self.unplaced(self.words[begin - 1].text)
            self.free -= mention.places
            values.setdefault(mention.column.name, []).append(str(mention.value))
            # "In the Consumer segment": the column's own name only says what the value is.
            placed.columns = [
                m for m in placed.columns
                if m.column.name != mention.column.name
                or abs(min(m.places) - begin) > len(mention.places) + 1
            ]  # fmt: skip
        for column, found in values.items():
            if any(given.column == column for given in placed.where):
                raise self.unplaced(column)
            if len(found) == 1:
                placed.where.append(Filter(column=column, value=found[0]))
            else:  # two values of one column are compared
                placed.where.append(Filter(column=column, op="in", value=list(found)))
                placed.groups.append(column)
                self.take(lex.CHANGE)

    def _groups(self) -> None:
        placed = self.placed
        for match in lex.GROUP.finditer(self.text):
            keyword = self.places(*match.span())
            if not keyword:
                continue
            place = max(p for p, word in enumerate(self.words) if word.begin < match.end()) + 1
            numbers = [m for m in placed.columns if m.column.kind == "number" and place in m.places]
            top = re.search(r"\btop\s+\w+", self.text[: match.start()], re.IGNORECASE)
            if top and (numbers or placed.kind == "count"):
                self.free -= keyword  # "top 5 products by sales" ranks and groups nothing
                continue
            names: list[str] = []
            while place < len(self.words):
                mention = next((m for m in placed.columns if place in m.places), None)
                part = self._time_part(place)
                if mention is not None:
                    place = max(mention.places) + 1
                    names += self._group(mention, place)
                elif part is not None:
                    self.free -= part[1]
                    names.append(part[0])
                    place = max(part[1]) + 1
                elif place in self.free and self.words[place].stem in ("and", "the"):
                    place += 1
                else:
                    break
            if numbers and match[0] == "per" and self._divides(names):
                self.free -= keyword
            elif names:
                placed.groups += [name for name in names if name not in placed.groups]
                self.free -= keyword
        while self.timed and (word := self.take_word(lex.REGULAR)):
            placed.regular = lex.REGULAR[word]
            if placed.regular != self.profile.frequency:
                placed.groups.append(placed.regular)

    def _group(self, mention: Mention, place: int) -> list[str]:
        """Place a column that rows are grouped by; "hire year" only says whose years."""
        self.placed.columns.remove(mention)
        name, part = mention.column.name, place < len(self.words) and self._time_part(place)
        if part and name in self.profile.dates:
            self.placed.timed_by = name
            return []
        return [name]

    def _divides(self, names: list[str]) -> bool:
        """Read "revenue per unit": one total over the other."""
        if len(names) > 1 or not self.adds_up(names[0]):
            return False
        if self.placed.kind:
            raise self.unplaced("per")
        self.placed.kind, self.placed.ratio = "ratio", names[0]
        return True

    def _time_part(self, place: int) -> tuple[str, set[int]] | None:
        """Read a unit or part of the time at a word."""
        if not self.timed or place not in self.free:
            return None
        for name, pattern in lex.PARTS:
            match = pattern.match(self.text, self.words[place].begin)
            if match:
                return name, self.places(*match.span())
        unit = lex.UNITS.get(self.words[place].stem)
        return (unit, {place}) if unit else None

    def _rank(self) -> None:
        placed = self.placed
        for place in sorted(self.free):
            found = self._rank_of(place)
            if found is None:
                continue
            # "The hottest summer" is one of several times, not a value in one of them.
            before_time = any(begin == self.words[place].end + 1 for begin, _ in self.spans)
            if placed.rank is not None or before_time:
                raise self.unplaced(self.words[place].text)
            placed.rank = found
            self.free.discard(place)
        match = lex.TOP.search(self.text)
        if match and (placed.rank or match["top"]):
            number = (match["a"] or match["b"]).lower()
            if self.places(*match.span()) and (number.isdigit() or number in lex.NUMBERS):
                self.free -= self.places(*match.span())
                placed.limit = int(number) if number.isdigit() else lex.NUMBERS[number]
                placed.rank = placed.rank or Rank(None, "max", "top")
        rank = placed.rank
        if rank is None or rank.quantity in (None, "rows"):
            return
        if self._numbers():
            if not any(self._measures(m.column, str(rank.quantity)) for m in self._numbers()):
                raise self.unplaced(rank.word)  # "the rainiest" of a temperature
            return
        columns = self.by_concept(str(rank.quantity), rank.direction)
        if len(columns) > 1:
            columns = [c for c in columns if self._is_ranked(c)]
        if len(columns) != 1:
            raise self.unplaced(rank.word)
        placed.columns.append(Mention(columns[0], frozenset()))

    def _rank_of(self, place: int) -> Rank | None:
        """Read a superlative at a word."""
        word = self.words[place].stem
        named = {concept(w) for m in self.placed.columns for w in meaning(m.column)}
        following = self.words[place + 1].stem if place + 1 < len(self.words) else ""
        if word in ("most", "least") and lex.CONCEPTS.get(following) in named:
            return Rank(lex.CONCEPTS[following], "max" if word == "most" else "min", word)
        if word in ("best", "worst") and named & lex.GOOD:  # where more is known to be better
            return Rank(None, "max" if word == "best" else "min", word)
        return Rank(*lex.SUPERLATIVES[word], word) if word in lex.SUPERLATIVES else None

    @staticmethod
    def _measures(column: Column, quantity: str) -> bool:
        """Say whether a column holds a quantity, by its name or its unit."""
        said = {concept(word) for word in meaning(column)}
        if quantity == "length" and column.unit in TIMES:
            return True
        return quantity in said or (quantity == "temperature" and column.unit in ("°C", "°F", "K"))

    def _numbers(self) -> list[Mention]:
        return [m for m in self.placed.columns if m.column.kind == "number"]

    def _dates(self) -> None:
        """Let a word for a column of dates say by which of them the question goes.

        Without a time of its own, a question for what "was shipped" counts rows with that date.
        """
        placed, own = self.placed, self.profile.time.columns[0] if self.profile.time else None
        parts = {*lex.ORDER, *(name for name, _ in lex.PARTS)}
        timed = bool(self.spans) or bool(parts.intersection(placed.groups))
        timed = timed or any(self._time_part(place) for place in self.free)
        for mention in [m for m in placed.columns if m.column.name in self.profile.dates]:
            name = mention.column.name
            after = max(mention.places) + 1
            if (
                after < len(self.words)
                and self.words[after].stem in self.names
                and values_named(self.words, mention.places, self.profile)
            ):  # "delivered orders in May": in that state, or on that day?
                raise self.unplaced(self.words[after - 1].text)
            if timed and placed.timed_by in (None, name):
                placed.timed_by = name
            elif placed.kind == "count" and mention.score < 100 and not timed:
                placed.where.append(Filter(column=name, op="present"))
            else:
                continue
            placed.columns.remove(mention)
        if placed.timed_by not in (None, own):
            raise self.unplaced(placed.timed_by)

    def _subject(self) -> None:
        """Find what "which X" and "X with the highest" ask for."""
        placed = self.placed
        for mention in list(placed.columns):
            column = mention.column
            yes = self._yes(mention) if placed.kind in ("count", "share") else None
            if yes is not None:
                # "How many smokers": those where the column says yes.
                placed.where.append(Filter(column=column.name, value=yes))
            elif column.kind in ("category", "text", "flag") and column.name not in placed.groups:
                if placed.subject not in (None, column.name):
                    raise self.unplaced(column.name)
                if placed.kind == "count" and not placed.rank and not self._is_counted(mention):
                    raise self.unplaced(column.name)
                placed.subject = column.name
            else:
                continue
            placed.columns.remove(mention)
        for place in sorted(self.free):
            if placed.subject is None and (part := self._time_part(place)):
                placed.subject = part[0]
                self.free -= part[1]

    def _yes(self, mention: Mention) -> str | float | None:
        """Return the value that rows have for which a column is true, or is not, as is said."""
        column, place = mention.column, min(mention.places, default=0)
        if not mention.places:
            return None
        denied = {p for p in (place - 1, place - 2) if p in self.free} & {
            p for p, word in enumerate(self.words) if word.stem in ("not", "never", "non")
        }
        if column.kind == "number":
            known: dict[bool, str | float] = {True: 1, False: 0}
            if (column.low, column.high) != (0, 1) or column.decimals:
                return None
        else:
            values = {value.casefold(): value for value in column.values}
            known = {
                is_yes: values[word]
                for is_yes, words in lex.YES_NO.items()
                for word in words
                if word in values
            }
            if len(values) != 2 or True not in known:
                return None
            others = [value for value in values.values() if value != known[True]]
            known[False] = others[0]
        self.free -= denied
        return known[not denied]

    def _is_counted(self, mention: Mention) -> bool:
        """Say whether "how many" asks for the different values of a column, or only names it."""
        begin, after = self.words[min(mention.places)].begin, max(mention.places) + 1
        between = words_of(self.text[self.placed.counted : begin])
        rows = after < len(self.words) and self.words[after].stem in self.names
        return not rows and all(word.stem in lex.NOTHING for word in between)

    def _unit(self) -> None:
        """Find "in MWh"."""
        for match in re.finditer(r"\bin\s++(?=(°?)\s*+([^\W\d]\w*(?:/\w+)?))", self.text):
            places, word = self.places(*match.span(2)), match[2]
            lasts = any(m.column.unit in TIMES for m in self.placed.columns)
            known = {*lex.NOTHING, *self.names, *(() if lasts else lex.UNITS)}
            if places and self.words[min(places)].stem not in known and is_unit(word):
                self.placed.unit = {"C": "°C", "F": "°F"}.get(word, word)
                self.free -= places
                if word == "percent" and self.compared():
                    self.placed.unit = None  # a change is said in percent anyway
                break

    def _rows(self) -> None:
        """Place words for the rows; the name of the file speaks for its table."""
        for place in sorted(self.free):
            word = self.words[place]
            # What is counted is said in the plural: "electricity" is no row.
            counted = self.placed.kind in ("count", "share", "distinct")
            if word.stem in self.names and not (
                counted and word.stem not in lex.ROWS and word.text.lower() == word.stem
            ):
                self.free.discard(place)
                self.placed.named_table += word.stem not in lex.ROWS

    def _limited(self) -> None:
        """Give each limit its column: the one it means, or the nearest that was named."""
        placed = self.placed
        numbers = [m for m in placed.columns if m.places]
        for limit in placed.limits:
            degrees = limit.unit == "degree" and not numbers
            unit = None if limit.unit == "degree" else limit.unit
            quantity = limit.quantity or ("temperature" if degrees else None)
            if quantity is None and not numbers and unit in ("°C", "°F"):
                quantity = "temperature"
            if quantity is None and numbers:
                near = min(numbers, key=lambda m: abs(min(m.places) - limit.place))
                name = near.column.name
                if len(numbers) > 1 and near is not numbers[0]:
                    placed.columns.remove(near)
            else:
                columns = self.profile.numbers
                if quantity is not None:
                    columns = self.by_concept(quantity, "max" if limit.sign == ">" else "min")
                if len(columns) != 1:
                    raise self.unplaced(self.words[limit.place].text)
                name = columns[0].name
            where = Filter(column=name, op=limit.sign, value=limit.value, unit=unit)
            placed.where.append(where)
