"""Parser that maps the words of a question to columns, values, groups, and limits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from capgraph.base import ValidationError
from capgraph.capabilities.data import lexicon as lex
from capgraph.capabilities.data.mentions import (
    Mention,
    concept_of,
    direction_of,
    find_columns,
    find_values,
    quantity_words,
)
from capgraph.capabilities.data.profile import TableColumn, TableProfile
from capgraph.capabilities.data.units import DURATION_UNITS, is_unit
from capgraph.capabilities.data.words import Word, blank_spans, fold, split_name, split_words
from capgraph.capabilities.periods.expressions import ParsedTime
from capgraph.capabilities.query import Filter


class BothDirectionsError(Exception):
    """Exception for a question that may mean highs or lows. The caller answers both."""


class UnparsedWordsError(Exception):
    """Exception for a reading of the question that is incomplete or ambiguous.

    Attributes:
        words: Words that are not understood.
        error: Error for the user.
    """

    def __init__(self, words: Sequence[str], error: ValidationError) -> None:
        super().__init__(words, error)
        self.words: list[str] = list(words)
        self.error = error

    def __str__(self) -> str:
        return str(self.error)


@dataclass
class NumericLimit:
    """Number in the question to compare a column with.

    Attributes:
        position: Position of the word that introduces the limit.
        quantity: Quantity that the word implies, such as ``temperature`` for "warmer".
        operator: Comparison operator.
        value: Number to compare with.
        unit: Unit of the number.
    """

    position: int
    quantity: str | None
    operator: str
    value: float
    unit: str | None = None


@dataclass
class Rank:
    """Superlative in the question, such as "hottest" or "most".

    Attributes:
        quantity: Quantity that the word implies, if any.
        direction: ``max`` or ``min``.
        word: Word in the question.
    """

    quantity: str | None
    direction: str
    word: str


def _sales_rank(match: re.Match[str]) -> Rank:
    """Return the rank for "best-selling", "loses the most", or "most profitable"."""
    groups = {name: (text or "").lower() for name, text in match.groupdict().items()}
    if groups["best"]:
        lowest = groups["best"] in ("worst", "least")
        return Rank("revenue", "min" if lowest else "max", groups["best"])
    word = groups["most"] or groups["most2"]
    lowest = (word == "least") != groups["verb"].startswith("los")
    return Rank("profit", "min" if lowest else "max", word)


@dataclass
class ParsedQuestion:
    """Parts of a question after parsing."""

    kind: str = ""
    number: float = 0.0
    columns: list[Mention] = field(default_factory=list)
    where: list[Filter] = field(default_factory=list)
    limits: list[NumericLimit] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    frequency_group: str | None = None
    aggregate: str | None = None
    rank: Rank | None = None
    subject: str | None = None
    limit: int | None = None
    unit: str | None = None
    wants_chart: bool = False
    table_mentions: int = 0
    time_column: str | None = None
    divisor: str | None = None
    count_phrase_end: int = 0


class QuestionParser:
    """Parser of one question for one table. Each rule consumes the words that it understands.

    Args:
        text: Question in words.
        profile: Table that the question may refer to.
        times: Times of the question.
        direction: ``max`` or ``min`` if the question may mean highs or lows.
    """

    def __init__(
        self, text: str, profile: TableProfile, times: ParsedTime, direction: str | None = None
    ) -> None:
        self.profile: TableProfile = profile
        self.times: ParsedTime = times
        self.direction: str | None = direction
        self.has_time: bool = profile.time is not None
        spans = times.spans if self.has_time or times.periods or times.window else []
        self.time_spans = spans
        self.text: str = blank_spans(text, spans)
        self.words: list[Word] = split_words(text)
        self.unused_positions: set[int] = {
            place
            for place, word in enumerate(self.words)
            if not any(begin < word.end and word.begin < end for begin, end in spans)
        }
        for begin, _ in spans:  # the period already contains "since" and "before"
            for place in range(len(self.words) - 1, -1, -1):
                word = self.words[place]
                if word.end > begin:
                    continue
                if word.stem not in lex.TIME_PREPOSITIONS or text[word.end : begin].strip():
                    break
                self.unused_positions.discard(place)
                begin = word.begin
        table = profile.table
        name = (table.name or table.label.rsplit(".", 1)[0]).replace("-", " ")
        self.row_nouns: frozenset[str] = lex.ROW_NOUNS | {
            word for word in split_name(name) if len(word) > 2
        }
        self.row_nouns |= profile.item_nouns
        held = {concept_of(word) for column in profile.columns for word in split_name(column.name)}
        if held & {"age", "gender"}:
            self.row_nouns |= lex.PERSON_NOUNS
        self.parsed: ParsedQuestion = ParsedQuestion()

    # --- helpers -------------------------------------------------------------------------------

    def unused_between(self, begin: int, end: int) -> set[int]:
        """Return the positions of unused words in a part of the text."""
        return {
            p
            for p in self.unused_positions
            if self.words[p].begin < end and begin < self.words[p].end
        }

    def consume(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Consume the words of a pattern. Return the match, or ``None`` without unused words."""
        for match in pattern.finditer(self.text):
            if places := self.unused_between(*match.span()):
                self.unused_positions -= places
                return match
        return None

    def consume_word(self, words: dict[str, str] | frozenset[str]) -> str | None:
        """Consume the first unused word of a set and return it."""
        for place in sorted(self.unused_positions):
            if self.words[place].stem in words:
                self.unused_positions.discard(place)
                return self.words[place].stem
        return None

    def unparsed_error(
        self, *words: object, message: str = "", fix: str = ""
    ) -> UnparsedWordsError:
        """Return an error that names the words that are not understood."""
        listed = ", ".join(repr(str(word)[:60]) for word in words[:8])
        return UnparsedWordsError(
            list(map(str, words)),
            ValidationError(
                message or f"These words of the question are not understood: {listed}.",
                fix=fix
                or "Ask for the mean, total, count, highest, or lowest of a column, by a group, with"
                f" a limit, or for a time; {self.profile.table.label} has the columns"
                f" {self.profile.column_list()}.",
            ),
        )

    def compares_periods(self) -> bool:
        """Return True if the question compares several times."""
        return len(self.times.periods) > 1 or len(self.times.endpoints) == 2

    def columns_for_quantity(self, quantity: str, direction: str | None) -> list[TableColumn]:
        """Return the columns of a quantity, restricted to highs or lows if both exist."""
        numbers = self.profile.numeric_columns
        found = [c for c in numbers if quantity in {concept_of(word) for word in quantity_words(c)}]
        if quantity == "price":  # prefer the price of an item to its unit price
            found = [c for c in found if "unit" not in split_name(c.name)]
        fitting = [c for c in found if direction_of(c) == direction] if direction else []
        return fitting if len(found) > 1 and fitting else found

    def is_additive(self, name: str) -> bool | None:
        """Return True for a column that adds up, False for one to average, or ``None``."""
        column = next(
            (c for c in self.profile.columns if c.name == name), TableColumn(name, "text")
        )
        words = {concept_of(word) for word in split_name(name)} | {fold(name)}
        if words & lex.AVERAGED_QUANTITIES or column.unit == "%":
            return False
        if words & lex.ADDITIVE_QUANTITIES or column.unit in lex.ADDITIVE_UNITS:
            return True
        return False if column.unit and column.unit not in DURATION_UNITS else None

    # --- rules ---------------------------------------------------------------------------------

    def parse(self) -> ParsedQuestion:
        """Parse all words.

        Raises:
            UnparsedWordsError: A word is left over, or several readings are possible.
        """
        self._parse_kind()
        self._parse_limits()
        self._parse_columns()
        self._parse_values()
        self._parse_groups()
        self._parse_rank()
        self._parse_date_columns()
        self._parse_unit()
        self._parse_subject()
        self._parse_row_nouns()
        left = [
            self.words[p].text for p in sorted(self.unused_positions)
            if not {self.words[p].stem, self.words[p].text.lower()} & lex.FILLER_WORDS
        ]  # fmt: skip
        if left:
            raise self.unparsed_error(*left)
        self._assign_limits()
        return self.parsed

    def _parse_kind(self) -> None:
        placed, frequency = self.parsed, self.profile.frequency
        while self.consume(lex.CHART_PHRASE):
            placed.wants_chart = True
        self.consume(lex.PRECIPITATION_VERB)
        if phrase := self.consume(lex.HOW_EXTREME_PHRASE):
            word = phrase["word"].lower()
            direction = "min" if word in lex.LOW_ADJECTIVES else "max"
            placed.rank = Rank(lex.ADJECTIVE_QUANTITIES.get(word), direction, word)
            while self.consume(lex.HOW_EXTREME_VERB):
                pass
        self.consume(lex.EXTREME_REACHED_PHRASE)
        if (sold := self.consume(lex.SALES_PHRASE)) and placed.rank is None:
            placed.rank = _sales_rank(sold)
        quantities = {
            word for column in self.profile.numeric_columns for word in quantity_words(column)
        }
        for kind, pattern in lex.QUESTION_KINDS:
            before = set(self.unused_positions)
            match = self.consume(pattern)
            if match is None:
                continue
            if "amount" in quantities and "amount" in match[0].lower():
                self.unused_positions = before  # the word refers to a column of that name
                continue
            groups = match.groupdict()
            unit = {"h": "hour"}.get(groups.get("unit") or "", groups.get("unit"))
            if unit and unit.lower() != frequency:
                raise self.unparsed_error(unit)
            placed.number = float(groups.get("n") or 0)
            placed.kind = kind
            placed.count_phrase_end = match.end()
            if "std" in groups:
                placed.aggregate = "std"
            break
        if placed.kind == "crossing":
            self.consume(lex.COUNT_PHRASE)
        phrase = self.consume(lex.WHEN_CLAUSE)  # answers always state the time of an extreme
        if (
            phrase
            and phrase["unit"]
            and lex.TIME_UNIT_WORDS.get(phrase["unit"].lower()) != frequency
        ):
            raise self.unparsed_error(phrase["unit"])
        self._parse_development()

    def _parse_development(self) -> None:
        """Parse comparisons, "how did … develop", and the aggregate."""
        placed = self.parsed
        if self.compares_periods():
            self.consume(lex.COMPARISON_PHRASE)
            if not any(
                self.words[place].stem in lex.SUPERLATIVES for place in self.unused_positions
            ):
                self.consume(lex.TREND_VERB)  # "grew the most" ranks several changes instead
        elif lex.HOW_DID_PHRASE.match(self.text) and self.consume(lex.DEVELOPMENT_VERB):
            placed.kind = "moved"
            self.consume(lex.HOW_DID_PHRASE)
        while word := self.consume_word(frozenset(lex.AGGREGATES)):
            if placed.aggregate not in (None, lex.AGGREGATES[word]):
                raise self.unparsed_error(word)
            placed.aggregate = lex.AGGREGATES[word]

    def _parse_limits(self) -> None:
        """Parse limits such as "above 30 degrees"; ``_assign_limits`` finds their columns."""
        limits = self.parsed.limits
        for place in sorted(self.unused_positions):
            word = self.words[place]
            quantity, sign = lex.COMPARATIVES.get(word.stem, (None, ""))
            if word.stem in ("least", "most") and place and self.words[place - 1].stem == "at":
                quantity, sign = None, ">=" if word.stem == "least" else "<="
            at = place + 1
            while at < len(self.words) and self.words[at].stem in ("than", "or", "equal", "to"):
                at += 1
            number = self._parse_number(at) if sign and at in self.unused_positions else None
            if number is None:
                if quantity and self.compares_periods():
                    self._parse_comparative(place, quantity)
                continue
            value, unit, until = number
            self.unused_positions -= set(range(place, until))
            if place and self.words[place - 1].stem in lex.MOTION_VERBS:
                self.unused_positions.discard(place - 1)
            limits.append(NumericLimit(place, quantity, sign, value, unit))
        if match := self.consume(lex.SIGN_ADJECTIVE):
            place = next(p for p, w in enumerate(self.words) if w.begin >= match.start())
            limits.append(
                NumericLimit(place, None, "<" if match[1].lower() == "negative" else ">", 0.0)
            )
        equal = re.search(r"\b(?:of|is|was|equals?|=)\s+(-?\d+(?:\.\d+)?)\b", self.text)
        if equal and (places := self.unused_between(*equal.span(1))):
            self.unused_positions -= places
            limits.append(NumericLimit(min(places), None, "=", float(equal[1])))

    def _parse_comparative(self, position: int, quantity: str) -> None:
        """Parse "warmer" in a comparison of two times."""
        columns = self.columns_for_quantity(quantity, self.direction)
        if sorted(direction_of(column) or "" for column in columns) == ["max", "min"]:
            raise BothDirectionsError
        if len(columns) != 1:
            raise self.unparsed_error(self.words[position].text)
        self.parsed.columns.append(Mention(columns[0], frozenset({position})))
        self.unused_positions.discard(position)

    def _parse_number(self, position: int) -> tuple[float, str | None, int] | None:
        """Parse the number at a position. Return its value, its unit, and the position after it."""
        word, until, unit = self.words[position], position + 1, None
        sign = self.text[word.begin - 1 : word.begin] in ("-", "\u2212")
        if match := lex.NUMBER_PATTERN.match(self.text, word.begin - sign):
            value = float(match[0].replace(",", "").replace("\u2212", "-"))
            while until < len(self.words) and self.words[until].begin < match.end():
                until += 1
        elif word.stem in ("freezing", "frost"):
            return 0.0, "°C", until
        elif word.stem in lex.NUMBER_WORDS:
            value = float(lex.NUMBER_WORDS[word.stem])
        else:
            return None
        following = [w.text.lower() for w in self.words[until : until + 2]] + ["", ""]
        if following[0] in lex.SCALE_WORDS:
            value *= lex.SCALE_WORDS[following[0]]
            until += 1
        elif following[0] in ("degree", "degrees"):
            unit = {"c": "°C", "f": "°F"}.get(following[1][:1])
            known = following[1] in ("c", "f", "celsius", "fahrenheit")
            return value, unit if known else "degree", until + 1 + known
        if until < len(self.words):
            word = self.words[until]
            says_nothing = {word.stem, word.text} & lex.FILLER_WORDS
            of_the_time = word.stem in lex.TIME_UNIT_WORDS and not self._has_durations()
            if not says_nothing and not of_the_time and is_unit(word.text):
                unit, until = word.text, until + 1
        return value, unit, until

    def _has_durations(self) -> bool:
        """Return True if a column contains durations."""
        return any(column.unit in DURATION_UNITS for column in self.profile.numeric_columns)

    def _parse_columns(self) -> None:
        placed = self.parsed
        match = lex.HIGH_LOW_NOUN.search(self.text)
        if match and self.unused_between(
            *match.span()
        ):  # "the highs" always refers to temperatures
            word = (match[1] or match[2]).lower()
            direction = "max" if word.startswith("h") else "min"
            columns = self.columns_for_quantity("temperature", direction)
            if len(columns) == 1 and direction_of(columns[0]) == direction:
                places = self.unused_between(match.end() - len(word), match.end())
                placed.columns.append(Mention(columns[0], frozenset(places), score=100))
                self.unused_positions -= places
        missing = next(
            (m for m in lex.MISSING_PHRASE.finditer(self.text) if self.unused_between(*m.span())),
            None,
        )
        ranking = {
            word
            for words_by_name in (lex.SUPERLATIVES, lex.COMPARATIVES)
            for word in words_by_name
            if words_by_name[word][0]
        }
        if self.has_time:
            ranking.update(lex.FREQUENCY_ADJECTIVES)
        free = {p for p in self.unused_positions if self.words[p].stem not in ranking}
        for group in find_columns(self.words, free, self.profile):
            if mention := self._choose_column(group):
                self.unused_positions -= mention.positions
                stems = {self.words[p].stem for p in mention.positions}
                if (
                    placed.kind == "count" and stems <= lex.NONZERO_ADJECTIVES
                ):  # a rainy day has rain above zero
                    placed.where.append(Filter(column=mention.column.name, op=">", value=0))
                else:
                    placed.columns.append(mention)
        for mention in list(placed.columns):
            after = max(mention.positions) + 1
            if after in self.unused_positions and self.words[after].stem in lex.MEASURE_NOUNS:
                self.unused_positions.discard(after)  # "wind speed" for a column named wind
            stems = {self.words[p].stem for p in mention.positions}
            counted = placed.kind in ("count", "share") or any(
                m.column.kind == "number" and not self._follows_grouping_word(m)
                for m in placed.columns if m is not mention
            )  # fmt: skip
            # A word that names both the file and a column refers to the rows.
            counted = (
                counted
                and not self._follows_grouping_word(mention)
                and not self.is_additive(mention.column.name)
            )
            if stems <= self.row_nouns - lex.ROW_NOUNS and counted:
                placed.columns.remove(mention)
                placed.table_mentions += 1
        if missing and placed.columns:
            later = [
                m for m in placed.columns if self.words[min(m.positions)].begin >= missing.end()
            ]
            if not later and missing[0].lower().endswith(("no", "without")):
                raise self.unparsed_error(missing[0])  # the word after it is a value
            target = later[0] if later else placed.columns[-1]
            self.unused_positions -= self.unused_between(*missing.span())
            placed.columns.remove(target)
            placed.where.append(Filter(column=target.column.name, op="missing"))

    def _follows_grouping_word(self, mention: Mention) -> bool:
        """Return True if a word such as "by" precedes the column."""
        begin = min(mention.positions, default=0)
        return bool(begin and self.words[begin - 1].stem in ("by", "per", "each", "which"))

    def _choose_column(self, mentions: list[Mention]) -> Mention | None:
        """Choose one of the columns that the same words may mention."""
        stems = {self.words[p].stem for p in mentions[0].positions}
        is_whole_name = mentions[0].score >= 20 + 10 * len(mentions[0].positions)
        counted = stems <= self.profile.item_nouns and self.parsed.kind != "distinct"
        if counted or (not is_whole_name and stems <= {*self.row_nouns, *lex.TIME_UNIT_WORDS}):
            return None  # rows of the table, or a part of its time
        if len(mentions) > 1:
            direction = self._parse_direction()
            fitting = [m for m in mentions if direction and direction_of(m.column) == direction]
            numbers = [m for m in mentions if m.column.kind == "number"]
            measured = [m for m in numbers if self._is_ranked(m.column)]
            mentions = next((g for g in (fitting, measured, numbers) if len(g) == 1), mentions)
        if len(mentions) > 1:
            if sorted(direction_of(m.column) or "" for m in mentions) == ["max", "min"]:
                raise BothDirectionsError
            phrase = " ".join(self.words[p].text for p in sorted(mentions[0].positions))
            names = ", ".join(m.column.name for m in mentions[:8])
            raise self.unparsed_error(
                phrase,
                message=f"{phrase!r} is ambiguous: it may mean several columns of"
                f" {self.profile.table.label}: {names}.",
                fix="Name one of them.",
            )
        return None if self.has_time and stems <= set(lex.TIME_UNIT_WORDS) else mentions[0]

    def _is_ranked(self, column: TableColumn) -> bool:
        """Return True if a superlative of the question refers to the column's quantity.

        For wind, the quantity is the speed, not the direction.
        """
        words = {concept_of(word) for word in quantity_words(column)}
        ranked = {lex.SUPERLATIVES.get(word.stem, (None, ""))[0] for word in self.words}
        if {"wind", "gust"} & {concept_of(word) for word in split_name(column.name)}:
            return "speed" in words
        return bool(words & ranked)

    def _parse_direction(self) -> str | None:
        """Return ``max`` or ``min`` if the question refers to highs or lows."""
        if self.direction is not None:
            return self.direction
        for place in sorted(self.unused_positions):
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
            if stem not in lex.SUPERLATIVES or self.parsed.aggregate:
                self.unused_positions.discard(place)
            return found
        for limit in self.parsed.limits:
            if limit.quantity == "temperature" or limit.unit in (None, "°C", "°F", "degree"):
                return "max" if limit.operator.startswith(">") else "min"
        return None

    def _parse_values(self) -> None:
        placed = self.parsed
        values: dict[str, list[str]] = {}
        for group in find_values(self.words, self.unused_positions, self.profile):
            named = {m.column.name for m in placed.columns}
            chosen = group if len(group) == 1 else [m for m in group if m.column.name in named]
            phrase = " ".join(self.words[p].text for p in sorted(group[0].positions))
            if len(chosen) != 1:
                names = ", ".join(f"{m.column.name} = {m.value}" for m in group[:6])
                raise self.unparsed_error(
                    phrase,
                    message=f"{phrase!r} is ambiguous: it may mean {names}.",
                    fix="Name the column.",
                )
            mention, begin = chosen[0], min(chosen[0].positions)
            before = self.words[begin - 1].stem if begin else ""
            if before in ("not", "non", "except", "without", "excluding"):
                raise self.unparsed_error(self.words[begin - 1].text)
            self.unused_positions -= mention.positions
            values.setdefault(mention.column.name, []).append(str(mention.value))
            # In "the Consumer segment", the column's name only explains the value.
            placed.columns = [
                m for m in placed.columns
                if m.column.name != mention.column.name
                or abs(min(m.positions) - begin) > len(mention.positions) + 1
            ]  # fmt: skip
        for column, found in values.items():
            if any(row_filter.column == column for row_filter in placed.where):
                raise self.unparsed_error(column)
            if len(found) == 1:
                placed.where.append(Filter(column=column, value=found[0]))
            else:  # two values of one column form a comparison
                placed.where.append(Filter(column=column, op="in", value=list(found)))
                placed.groups.append(column)
                self.consume(lex.COMPARISON_PHRASE)

    def _parse_groups(self) -> None:
        placed = self.parsed
        for match in lex.GROUP_PHRASE.finditer(self.text):
            keyword = self.unused_between(*match.span())
            if not keyword:
                continue
            place = max(p for p, word in enumerate(self.words) if word.begin < match.end()) + 1
            numbers = [
                m for m in placed.columns if m.column.kind == "number" and place in m.positions
            ]
            top = re.search(r"\btop\s+\w+", self.text[: match.start()], re.IGNORECASE)
            if top and (numbers or placed.kind == "count"):
                self.unused_positions -= (
                    keyword  # "top 5 products by sales" ranks but does not group
                )
                continue
            names: list[str] = []
            while place < len(self.words):
                mention = next((m for m in placed.columns if place in m.positions), None)
                part = self._time_part_at(place)
                if mention is not None:
                    place = max(mention.positions) + 1
                    names += self._group_columns(mention, place)
                elif part is not None:
                    self.unused_positions -= part[1]
                    names.append(part[0])
                    place = max(part[1]) + 1
                elif place in self.unused_positions and self.words[place].stem in ("and", "the"):
                    place += 1
                else:
                    break
            if numbers and match[0] == "per" and self._parse_ratio(names):
                self.unused_positions -= keyword
            elif names:
                placed.groups += [name for name in names if name not in placed.groups]
                self.unused_positions -= keyword
        while self.has_time and (word := self.consume_word(lex.FREQUENCY_ADJECTIVES)):
            placed.frequency_group = lex.FREQUENCY_ADJECTIVES[word]
            if placed.frequency_group != self.profile.frequency:
                placed.groups.append(placed.frequency_group)

    def _group_columns(self, mention: Mention, position: int) -> list[str]:
        """Return the group columns of a mention; "hire year" only selects the date column."""
        self.parsed.columns.remove(mention)
        name, part = (
            mention.column.name,
            position < len(self.words) and self._time_part_at(position),
        )
        if part and name in self.profile.date_columns:
            self.parsed.time_column = name
            return []
        return [name]

    def _parse_ratio(self, names: list[str]) -> bool:
        """Parse "revenue per unit": one total divided by another."""
        if len(names) > 1 or not self.is_additive(names[0]):
            return False
        if self.parsed.kind:
            raise self.unparsed_error("per")
        self.parsed.kind, self.parsed.divisor = "ratio", names[0]
        return True

    def _time_part_at(self, position: int) -> tuple[str, set[int]] | None:
        """Parse a unit or part of the time at a position."""
        if not self.has_time or position not in self.unused_positions:
            return None
        for name, pattern in lex.TIME_PART_PHRASES:
            match = pattern.match(self.text, self.words[position].begin)
            if match:
                return name, self.unused_between(*match.span())
        unit = lex.TIME_UNIT_WORDS.get(self.words[position].stem)
        return (unit, {position}) if unit else None

    def _parse_rank(self) -> None:
        placed = self.parsed
        for place in sorted(self.unused_positions):
            superlative = self._superlative_at(place)
            if superlative is None:
                continue
            # "The hottest summer" selects one of several times, not a value.
            before_time = any(begin == self.words[place].end + 1 for begin, _ in self.time_spans)
            if placed.rank is not None or before_time:
                raise self.unparsed_error(self.words[place].text)
            placed.rank = superlative
            self.unused_positions.discard(place)
        match = lex.TOP_PHRASE.search(self.text)
        if match and (placed.rank or match["top"]):
            number = (match["a"] or match["b"]).lower()
            if self.unused_between(*match.span()) and (
                number.isdigit() or number in lex.NUMBER_WORDS
            ):
                self.unused_positions -= self.unused_between(*match.span())
                placed.limit = int(number) if number.isdigit() else lex.NUMBER_WORDS[number]
                placed.rank = placed.rank or Rank(None, "max", "top")
        rank = placed.rank
        if rank is None or rank.quantity in (None, "rows"):
            return
        if self._numeric_mentions():
            if not any(
                self._is_measure_of(m.column, str(rank.quantity)) for m in self._numeric_mentions()
            ):
                raise self.unparsed_error(rank.word)  # "rainiest" does not rank temperatures
            return
        columns = self.columns_for_quantity(str(rank.quantity), rank.direction)
        if len(columns) > 1:
            columns = [c for c in columns if self._is_ranked(c)]
        if len(columns) != 1:
            raise self.unparsed_error(rank.word)
        placed.columns.append(Mention(columns[0], frozenset()))

    def _superlative_at(self, position: int) -> Rank | None:
        """Parse a superlative at a position."""
        word = self.words[position].stem
        named = {concept_of(w) for m in self.parsed.columns for w in quantity_words(m.column)}
        following = self.words[position + 1].stem if position + 1 < len(self.words) else ""
        if word in ("most", "least") and lex.CONCEPTS.get(following) in named:
            return Rank(lex.CONCEPTS[following], "max" if word == "most" else "min", word)
        if (
            word in ("best", "worst") and named & lex.HIGHER_IS_BETTER
        ):  # quantities where more is better
            return Rank(None, "max" if word == "best" else "min", word)
        return Rank(*lex.SUPERLATIVES[word], word) if word in lex.SUPERLATIVES else None

    @staticmethod
    def _is_measure_of(column: TableColumn, quantity: str) -> bool:
        """Return True if a column contains a quantity, by its name or unit."""
        concepts = {concept_of(word) for word in quantity_words(column)}
        if quantity == "length" and column.unit in DURATION_UNITS:
            return True
        return quantity in concepts or (
            quantity == "temperature" and column.unit in ("°C", "°F", "K")
        )

    def _numeric_mentions(self) -> list[Mention]:
        return [m for m in self.parsed.columns if m.column.kind == "number"]

    def _parse_date_columns(self) -> None:
        """Select the date column that a word of the question refers to.

        If the question names no time, "was shipped" counts the rows with that date.
        """
        placed, own_column = (
            self.parsed,
            self.profile.time.columns[0] if self.profile.time else None,
        )
        parts = {*lex.UNIT_ORDER, *(name for name, _ in lex.TIME_PART_PHRASES)}
        timed = bool(self.time_spans) or bool(parts.intersection(placed.groups))
        timed = timed or any(self._time_part_at(place) for place in self.unused_positions)
        for mention in [m for m in placed.columns if m.column.name in self.profile.date_columns]:
            name = mention.column.name
            after = max(mention.positions) + 1
            if (
                after < len(self.words)
                and self.words[after].stem in self.row_nouns
                and find_values(self.words, mention.positions, self.profile)
            ):  # "delivered orders in May": in that state, or on that day?
                raise self.unparsed_error(self.words[after - 1].text)
            if timed and placed.time_column in (None, name):
                placed.time_column = name
            elif placed.kind == "count" and mention.score < 100 and not timed:
                placed.where.append(Filter(column=name, op="present"))
            else:
                continue
            placed.columns.remove(mention)
        if placed.time_column not in (None, own_column):
            raise self.unparsed_error(placed.time_column)

    def _parse_subject(self) -> None:
        """Find the item that "which X" or "X with the highest" refers to."""
        placed = self.parsed
        for mention in list(placed.columns):
            column = mention.column
            yes = self._boolean_value(mention) if placed.kind in ("count", "share") else None
            if yes is not None:
                # "How many smokers" counts the rows in which the column is true.
                placed.where.append(Filter(column=column.name, value=yes))
            elif column.kind in ("category", "text", "flag") and column.name not in placed.groups:
                if placed.subject not in (None, column.name):
                    raise self.unparsed_error(column.name)
                if placed.kind == "count" and not placed.rank and not self._is_counted(mention):
                    raise self.unparsed_error(column.name)
                placed.subject = column.name
            else:
                continue
            placed.columns.remove(mention)
        for place in sorted(self.unused_positions):
            if placed.subject is None and (part := self._time_part_at(place)):
                placed.subject = part[0]
                self.unused_positions -= part[1]

    def _boolean_value(self, mention: Mention) -> str | float | None:
        """Return the value that stands for true in a column, or for false after a negation."""
        column, place = mention.column, min(mention.positions, default=0)
        if not mention.positions:
            return None
        negations = {p for p in (place - 1, place - 2) if p in self.unused_positions} & {
            p for p, word in enumerate(self.words) if word.stem in ("not", "never", "non")
        }
        if column.kind == "number":
            values_by_flag: dict[bool, str | float] = {True: 1, False: 0}
            if (column.low, column.high) != (0, 1) or column.decimals:
                return None
        else:
            values = {value.casefold(): value for value in column.values}
            values_by_flag = {
                is_yes: values[word]
                for is_yes, words in lex.BOOLEAN_WORDS.items()
                for word in words
                if word in values
            }
            if len(values) != 2 or True not in values_by_flag:
                return None
            others = [value for value in values.values() if value != values_by_flag[True]]
            values_by_flag[False] = others[0]
        self.unused_positions -= negations
        return values_by_flag[not negations]

    def _is_counted(self, mention: Mention) -> bool:
        """Return True if "how many" counts the distinct values of a column."""
        begin, after = self.words[min(mention.positions)].begin, max(mention.positions) + 1
        between = split_words(self.text[self.parsed.count_phrase_end : begin])
        rows = after < len(self.words) and self.words[after].stem in self.row_nouns
        return not rows and all(word.stem in lex.FILLER_WORDS for word in between)

    def _parse_unit(self) -> None:
        """Parse the unit of the answer, as in "in MWh"."""
        for match in re.finditer(r"\bin\s++(?=(°?)\s*+([^\W\d]\w*(?:/\w+)?))", self.text):
            places, word = self.unused_between(*match.span(2)), match[2]
            has_durations = any(m.column.unit in DURATION_UNITS for m in self.parsed.columns)
            excluded = {
                *lex.FILLER_WORDS,
                *self.row_nouns,
                *(() if has_durations else lex.TIME_UNIT_WORDS),
            }
            if places and self.words[min(places)].stem not in excluded and is_unit(word):
                self.parsed.unit = {"C": "°C", "F": "°F"}.get(word, word)
                self.unused_positions -= places
                if word == "percent" and self.compares_periods():
                    self.parsed.unit = None  # changes always include a percentage
                break

    def _parse_row_nouns(self) -> None:
        """Parse words for the rows, including the name of the file."""
        for place in sorted(self.unused_positions):
            word = self.words[place]
            # Counted nouns are plural: "electricity" does not mean rows.
            counted = self.parsed.kind in ("count", "share", "distinct")
            if word.stem in self.row_nouns and not (
                counted and word.stem not in lex.ROW_NOUNS and word.text.lower() == word.stem
            ):
                self.unused_positions.discard(place)
                self.parsed.table_mentions += word.stem not in lex.ROW_NOUNS

    def _assign_limits(self) -> None:
        """Assign each limit to its column: the one it implies, or else the nearest mention."""
        placed = self.parsed
        numbers = [m for m in placed.columns if m.positions]
        for limit in placed.limits:
            degrees = limit.unit == "degree" and not numbers
            unit = None if limit.unit == "degree" else limit.unit
            quantity = limit.quantity or ("temperature" if degrees else None)
            if quantity is None and not numbers and unit in ("°C", "°F"):
                quantity = "temperature"
            if quantity is None and numbers:
                nearest = min(numbers, key=lambda m: abs(min(m.positions) - limit.position))
                name = nearest.column.name
                if len(numbers) > 1 and nearest is not numbers[0]:
                    placed.columns.remove(nearest)
            else:
                columns = self.profile.numeric_columns
                if quantity is not None:
                    columns = self.columns_for_quantity(
                        quantity, "max" if limit.operator == ">" else "min"
                    )
                if len(columns) != 1:
                    raise self.unparsed_error(self.words[limit.position].text)
                name = columns[0].name
            where = Filter(column=name, op=limit.operator, value=limit.value, unit=unit)
            placed.where.append(where)
