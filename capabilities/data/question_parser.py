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

UNPARSED_WORDS = "unparsed_words"
"""Name of the error fact that lists the words of a question that the parser does not understand."""


class TwoReadingsError(Exception):
    """Raised if a question has two readings that should both be answered.

    Attributes:
        readings: ``max`` and ``min`` for highs and lows, or ``mean`` and ``values`` for each
            item's mean and single values.
    """

    def __init__(self, *readings: str) -> None:
        super().__init__(*readings)
        self.readings = readings


class UnparsedWordsError(Exception):
    """Raised if a question cannot be parsed completely or is ambiguous.

    Attributes:
        words: Unknown or ambiguous words.
        error: Error to show to the user.
        replacements: Texts that make the question clear when they replace the words.
    """

    def __init__(
        self, words: Sequence[str], error: ValidationError, replacements: Sequence[str] = ("",)
    ) -> None:
        super().__init__(words, error)
        self.words: list[str] = list(words)
        self.error = error
        self.replacements: list[str] = list(replacements)

    def __str__(self) -> str:
        return str(self.error)


@dataclass
class NumericLimit:
    """Numeric threshold in a question, such as "above 30 degrees".

    Attributes:
        position: Position of the word that introduces the limit.
        quantity: Quantity that the comparative implies, such as ``temperature`` for "warmer".
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
    """Superlative in a question, such as "hottest" or "most".

    Attributes:
        quantity: Quantity that the word implies, if any.
        direction: ``max`` or ``min``.
        word: Word in the question.
    """

    quantity: str | None
    direction: str
    word: str


def _parse_sales_rank(match: re.Match[str]) -> Rank:
    """Parse a superlative about sales, such as "best-selling" or "most profitable"."""
    groups = {name: (text or "").lower() for name, text in match.groupdict().items()}
    if groups["loss"]:
        return Rank("profit", "min", "loss")
    if groups["best"]:
        lowest = groups["best"] in ("worst", "least")
        return Rank("revenue", "min" if lowest else "max", groups["best"])
    word = groups["most"] or groups["most2"]
    lowest = (word == "least") != groups["verb"].startswith("los")
    return Rank("profit", "min" if lowest else "max", word)


@dataclass
class ParsedQuestion:
    """Parsed parts of a question: its columns, filters, groups, limits, and kind."""

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
    compares_items: bool = False
    table_mentions: int = 0
    time_column: str | None = None
    divisor: str | None = None
    count_phrase_end: int = 0


class QuestionParser:
    """Rule-based parser for one question about one table.

    Each parsing rule marks the words that it matches as used.

    Args:
        text: Question in natural language.
        profile: Profile of the table that the question may refer to.
        times: Times that were parsed from the question.
        reading: One of the readings of a :class:`TwoReadingsError`.
    """

    def __init__(
        self, text: str, profile: TableProfile, times: ParsedTime, reading: str | None = None
    ) -> None:
        self.profile: TableProfile = profile
        self.times: ParsedTime = times
        self.reading: str | None = reading
        self.direction: str | None = reading if reading in ("max", "min") else None
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
        if held & {"age", "gender"} | held & lex.CASUALTIES:
            self.row_nouns |= lex.PERSON_NOUNS
        self.parsed: ParsedQuestion = ParsedQuestion()

    # --- helpers -------------------------------------------------------------------------------

    def unused_between(self, begin: int, end: int) -> set[int]:
        """Return the positions of unused words that overlap a span of the text."""
        return {
            p
            for p in self.unused_positions
            if self.words[p].begin < end and begin < self.words[p].end
        }

    def consume(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match a regular expression in the question and mark the matched words as used.

        Returns ``None`` if nothing matches or all matched words are already used.
        """
        for match in pattern.finditer(self.text):
            if places := self.unused_between(*match.span()):
                self.unused_positions -= places
                return match
        return None

    def consume_word(self, words: dict[str, str] | frozenset[str]) -> str | None:
        """Find the first unused word in the given set, mark it as used, and return its stem.

        Returns ``None`` if the question has no such word.
        """
        for place in sorted(self.unused_positions):
            if self.words[place].stem in words:
                self.unused_positions.discard(place)
                return self.words[place].stem
        return None

    def unparsed_error(
        self, *words: object, message: str = "", fix: str = "", replacements: Sequence[str] = ("",)
    ) -> UnparsedWordsError:
        """Create an error that lists the words of the question that cannot be parsed."""
        listed = ", ".join(repr(str(word)[:60]) for word in words[:8])
        return UnparsedWordsError(
            list(map(str, words)),
            ValidationError(
                message or f"These words of the question are not understood: {listed}.",
                fix=fix
                or "Ask for the mean, total, count, highest, or lowest of a column, by a group, with"
                f" a limit, or for a time; {self.profile.table.label} has the columns"
                f" {self.profile.column_list()}.",
                facts={UNPARSED_WORDS: list(map(str, words))},
            ),
            replacements,
        )

    def compares_periods(self) -> bool:
        """Return True if the question compares different time periods."""
        return len(self.times.periods) > 1 or len(self.times.endpoints) == 2

    def compares_endpoints(self) -> bool:
        """Return True if the question compares the start of a time range with its end."""
        patterns = (lex.COMPARISON_PHRASE, lex.CHANGE_VERB, lex.TREND_VERB)
        return bool(self.times.endpoints) and any(p.search(self.text) for p in patterns)

    def columns_for_quantity(self, quantity: str, direction: str | None) -> list[TableColumn]:
        """Find the numeric columns that measure a quantity, such as temperature.

        If several columns match, only columns of highs or lows are returned, according to
        ``direction``.
        """
        numbers = self.profile.numeric_columns
        found = [c for c in numbers if quantity in {concept_of(word) for word in quantity_words(c)}]
        if quantity == "price":  # prefer the price of an item to its unit price
            found = [c for c in found if "unit" not in split_name(c.name)]
        fitting = [c for c in found if direction_of(c) == direction] if direction else []
        return fitting if len(found) > 1 and fitting else found

    def is_additive(self, name: str) -> bool | None:
        """Return whether it makes sense to sum the values of a column.

        Returns ``None`` if neither the column name nor the unit indicates it.
        """
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
        """Parse all words of the question.

        Raises:
            UnparsedWordsError: A word cannot be parsed, or the question is ambiguous.
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
        left = [self.words[p].text for p in sorted(self.unused_positions) if not self._is_filler(p)]
        if left:
            raise self.unparsed_error(*left)
        self._assign_limits()
        return self.parsed

    def _is_filler(self, position: int) -> bool:
        """Return True if an unused word can be ignored because it adds no meaning."""
        word, columns = self.words[position], [m.column for m in self._list_numeric_mentions()]
        if {word.stem, word.text.lower()} & lex.FILLER_WORDS:
            return True
        concepts = {concept_of(part) for column in columns for part in split_name(column.name)}
        if columns and word.stem in lex.ACTION_VERBS:
            return True
        if word.stem in lex.MEDIUM_NOUNS and self._measures_one_temperature():
            return True
        if concept_of(word.stem) == "death" and concepts & lex.CASUALTIES:
            return True
        if position == 0 or self.words[position - 1].stem != "how":
            return False
        quantity = lex.ADJECTIVES.get(word.stem, (None, ""))[0]
        if quantity == "price" and columns and not self.columns_for_quantity("price", None):
            return True
        return quantity is not None and any(self._is_measure_of(c, quantity) for c in columns)

    def _measures_one_temperature(self) -> bool:
        """Return True if the table has exactly one temperature column, with an unqualified name."""
        columns = self.columns_for_quantity("temperature", None)
        return len(columns) == 1 and len(quantity_words(columns[0])) == 1

    def _parse_kind(self) -> None:
        placed, frequency = self.parsed, self.profile.frequency
        while self.consume(lex.CHART_PHRASE):
            placed.wants_chart = True
        self.consume(lex.PRECIPITATION_VERB)
        self._parse_how_adjective()
        self.consume(lex.EXTREME_REACHED_PHRASE)
        sold = lex.SALES_PHRASE.search(self.text)
        is_column = sold and sold["loss"] and self._has_word("loss")
        if sold and not is_column and placed.rank is None and self.consume(lex.SALES_PHRASE):
            placed.rank = _parse_sales_rank(sold)
        self._parse_margin()
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
        self._parse_trends()

    def _has_word(self, word: str) -> bool:
        """Return True if the name of any table column contains a word."""
        return any(word in split_name(column.name) for column in self.profile.columns)

    def _parse_margin(self) -> None:
        """Parse "profit margin" as the ratio of total profit to total revenue."""
        profits = self.columns_for_quantity("profit", None)
        revenues = self.columns_for_quantity("revenue", None)
        if len(profits) != 1 or len(revenues) != 1 or self._has_word("margin"):
            return
        if self.consume(lex.MARGIN_PHRASE):
            self.parsed.kind, self.parsed.divisor = "ratio", revenues[0].name
            self.parsed.columns.append(Mention(profits[0], frozenset()))

    def _parse_how_adjective(self) -> None:
        """Parse "how cold did it get", an extreme, and "how strong was the wind", a value."""
        phrase = lex.HOW_PHRASE.search(self.text)
        if phrase is None:
            return
        word = phrase["word"].lower()
        quantity, direction = lex.ADJECTIVES[word]
        places = self.unused_between(*phrase.span())
        if lex.REACHED_EXTREME.match(phrase["rest"]):
            self.parsed.rank = Rank(quantity, direction, word)
            self.unused_positions -= places
            self.consume(lex.AT_EXTREME)
            while self.consume(lex.HOW_EXTREME_VERB):
                pass
        elif quantity is None or any(
            self._get_degree(place)[0] == quantity for place in self.unused_positions - places
        ):
            self.unused_positions -= places  # "how long is the longest bill"

    def _get_degree(self, position: int) -> tuple[str | None, str]:
        """Return the quantity and direction that a superlative or comparative implies."""
        stem = self.words[position].stem
        return lex.SUPERLATIVES.get(stem) or lex.COMPARATIVES.get(stem) or (None, "")

    def _parse_trends(self) -> None:
        """Parse comparisons, trends such as "how did prices develop", and aggregate functions."""
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
        in_names = self._find_aggregates_in_names()
        self.unused_positions -= in_names  # "the average price" of a column AveragePrice
        while word := self.consume_word(frozenset(lex.AGGREGATES)):
            if placed.aggregate not in (None, lex.AGGREGATES[word]):
                raise self.unparsed_error(word)
            placed.aggregate = lex.AGGREGATES[word]
        self.unused_positions |= in_names

    def _find_aggregates_in_names(self) -> set[int]:
        """Return the positions of aggregate words, such as "mean", that belong to column names."""
        names = [split_name(column.name) for column in self.profile.numeric_columns]
        stems = [word.stem for word in self.words]
        return {
            place
            for place in self.unused_positions
            if stems[place] in lex.AGGREGATES
            for name in names
            if len(name) > 1 and name == stems[place : place + len(name)]
        }

    def _parse_limits(self) -> None:
        """Parse numeric thresholds such as "above 30 degrees".

        The method ``_assign_limits`` later assigns a column to each threshold.
        """
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
                elif (
                    sign and len(self.times.periods) > 1 and word.stem not in lex.TIME_PREPOSITIONS
                ):
                    self.unused_positions.discard(place)  # the answer states the change
                continue
            value, unit, until = number
            self.unused_positions -= set(range(place, until))
            if place and self.words[place - 1].stem in lex.MOTION_VERBS:
                self.unused_positions.discard(place - 1)
            limits.append(NumericLimit(place, quantity, sign, value, unit))
        if match := self.consume(lex.SIGN_ADJECTIVE):
            place = next(p for p, w in enumerate(self.words) if w.begin >= match.start())
            is_positive = (match["sign"] or "").lower() == "positive"
            has_profit = match["loss"] and self.columns_for_quantity("profit", None)
            quantity = "profit" if has_profit else None
            limits.append(NumericLimit(place, quantity, ">" if is_positive else "<", 0.0))
        equal = re.search(r"\b(?:of|is|was|equals?|=)\s+(-?\d+(?:\.\d+)?)\b", self.text)
        if equal and (places := self.unused_between(*equal.span(1))):
            self.unused_positions -= places
            limits.append(NumericLimit(min(places), None, "=", float(equal[1])))

    def _parse_comparative(self, position: int, quantity: str) -> None:
        """Parse a comparative, such as "warmer", in a comparison of two time periods."""
        columns = self.columns_for_quantity(quantity, self.direction)
        if sorted(direction_of(column) or "" for column in columns) == ["max", "min"]:
            raise TwoReadingsError("max", "min")
        if len(columns) != 1:
            raise self.unparsed_error(self.words[position].text)
        self.parsed.columns.append(Mention(columns[0], frozenset({position})))
        self.unused_positions.discard(position)

    def _parse_number(self, position: int) -> tuple[float, str | None, int] | None:
        """Parse the number at a word position.

        Returns the number, its unit, and the position after it, or ``None`` without a number.
        """
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
        """Parse column names, and phrases such as "without" that select rows with empty cells."""
        placed = self.parsed
        self._parse_high_low()
        missing = next(
            (m for m in lex.MISSING_PHRASE.finditer(self.text) if self.unused_between(*m.span())),
            None,
        )
        self._find_mentions()
        self._parse_counts_of_items()
        self._parse_columns_of_units()
        for mention in [m for m in placed.columns if m.positions]:
            self._consume_measure_nouns(mention)
            if self._refers_to_rows(mention):
                placed.columns.remove(mention)
                placed.table_mentions += 1
        if missing and placed.columns:
            later = [
                m
                for m in placed.columns
                if m.positions and self.words[min(m.positions)].begin >= missing.end()
            ]
            if not later and missing[0].lower().endswith(("no", "without")):
                raise self.unparsed_error(missing[0])  # the word after it is a value
            target = later[0] if later else placed.columns[-1]
            self.unused_positions -= self.unused_between(*missing.span())
            placed.columns.remove(target)
            placed.where.append(Filter(column=target.column.name, op="missing"))

    def _find_mentions(self) -> None:
        """Find columns mentioned by unused words and add them to the parsed question."""
        placed = self.parsed
        degrees = {**lex.SUPERLATIVES, **lex.COMPARATIVES}
        ranking = {word for word, (quantity, _) in degrees.items() if quantity}
        if self.has_time:
            ranking.update(lex.FREQUENCY_ADJECTIVES)
        free = {p for p in self.unused_positions if self.words[p].stem not in ranking}
        named_like_file: list[Mention] = []
        for group in find_columns(self.words, free, self.profile):
            mention = self._choose_column(group)
            if mention is None and len(group) == 1 and group[0].score >= 20:
                named_like_file += group
            if mention is None or self._describes_rows(mention):
                continue  # "on cold days" is a limit without a number
            self.unused_positions -= mention.positions
            stems = {self.words[p].stem for p in mention.positions}
            fell = stems <= lex.NONZERO_WORDS and lex.FELL_PHRASE.search(self.text)
            if placed.kind == "count" and fell and not placed.limits:
                # A rainy day has rain above zero.
                placed.where.append(Filter(column=mention.column.name, op=">", value=0))
            else:
                placed.columns.append(mention)
        if not self._list_numeric_mentions() and len(named_like_file) == 1 and not placed.kind:
            mention = named_like_file[0]  # "google" in google_stock.csv names Google_Return
            if mention.column.kind == "number" and mention.positions <= self.unused_positions:
                placed.columns.append(mention)
                self.unused_positions -= mention.positions

    def _refers_to_rows(self, mention: Mention) -> bool:
        """Return True if a word that matches both the file name and a column refers to rows."""
        placed, begin = self.parsed, min(mention.positions)
        stems = {self.words[p].stem for p in mention.positions}
        is_counted = begin > 0 and self.words[begin - 1].stem in ("most", "fewest")
        is_counted = is_counted or placed.kind in ("count", "share")
        is_counted = is_counted or any(
            m.column.kind == "number" and not self._follows_grouping_word(m)
            for m in placed.columns
            if m is not mention
        )
        return (
            is_counted
            and stems <= self.row_nouns - lex.ROW_NOUNS
            and not self._follows_grouping_word(mention)
            and not self.is_additive(mention.column.name)
        )

    def _describes_rows(self, mention: Mention) -> bool:
        """Return True if an adjective only modifies a noun for rows or times, as in "cold days"."""
        begin, after = min(mention.positions), max(mention.positions) + 1
        word = self.words[begin].stem
        nouns = {*self.row_nouns, *lex.TIME_UNIT_WORDS}
        return (
            len(mention.positions) == 1
            and lex.ADJECTIVES.get(word, (None,))[0] is not None
            and not (self.parsed.kind == "count" and word in lex.NONZERO_WORDS)
            and after < len(self.words)
            and self.words[after].stem in nouns
            and not (begin and self.words[begin - 1].stem in ("how", "most", "least"))
        )

    def _parse_counts_of_items(self) -> None:
        """Parse a number before an integer column, such as "cars with 8 cylinders", as a filter."""
        placed = self.parsed
        numbers = [m for m in placed.columns if m.column.kind == "number"]
        for mention in numbers:
            place = min(mention.positions, default=0) - 1
            if place not in self.unused_positions or mention.column.decimals:
                continue
            text = self.words[place].text
            introduced = place > 0 and self.words[place - 1].stem in ("with", "of", "having", "has")
            if not (text.isdigit() and introduced and (placed.kind == "count" or len(numbers) > 1)):
                continue
            self.unused_positions.discard(place)
            placed.columns.remove(mention)
            placed.where.append(Filter(column=mention.column.name, op="=", value=int(text)))

    def _parse_columns_of_units(self) -> None:
        """Resolve a quantity such as "energy" to the only column with a matching unit.

        The rule applies only if the question does not mention a numeric column.
        """
        if self._list_numeric_mentions():
            return
        for place in sorted(self.unused_positions):
            units = lex.UNIT_QUANTITIES.get(self.words[place].stem, frozenset())
            columns = [c for c in self.profile.numeric_columns if c.unit in units]
            if len(columns) == 1:
                self.parsed.columns.append(Mention(columns[0], frozenset({place})))
                self.unused_positions.discard(place)
                return

    def _consume_measure_nouns(self, mention: Mention) -> None:
        """Mark nouns next to a column mention as used, such as "speed" in "wind speed"."""
        begin, after = min(mention.positions), max(mention.positions) + 1
        nouns = {after: lex.MEASURE_NOUNS, begin - 2: lex.MEASURE_NOUNS}
        if begin < 2 or self.words[begin - 1].stem != "of":
            del nouns[begin - 2]
        if len(quantity_words(mention.column)) == 1:
            nouns[begin - 1] = lex.MEDIUM_NOUNS
        for place, words in nouns.items():
            if place in self.unused_positions and self.words[place].stem in words:
                self.unused_positions.discard(place)

    def _parse_high_low(self) -> None:
        """Parse "the high" or "the low".

        The phrase selects a column of highs or lows if the table has one, and an extreme otherwise.
        """
        placed = self.parsed
        for match in lex.HIGH_LOW_NOUN.finditer(self.text):
            word = (match["word"] or match["plural"]).lower().removesuffix("s")
            places = self.unused_between(match.end() - len(word), match.end())
            if not places or any(word == fold(c.name) for c in self.profile.columns):
                continue
            direction = "max" if word == "high" else "min"
            is_record = (match["kind"] or "").lower() in lex.RECORD_WORDS
            columns = self.columns_for_quantity("temperature", direction)
            has_column = len(columns) == 1 and direction_of(columns[0]) == direction
            is_noun = lex.AFTER_NOUN.match(self.text, match.end()) is not None
            if has_column:
                placed.columns.append(Mention(columns[0], frozenset(places), score=100))
            if has_column or (is_noun and placed.rank is None and placed.aggregate is None):
                self.unused_positions -= places
                if is_record or not has_column:
                    placed.rank = Rank(None, direction, word)
                    self.unused_positions -= self.unused_between(*match.span())
                return

    def _follows_grouping_word(self, mention: Mention) -> bool:
        """Return True if a grouping word such as "by" or "per" directly precedes the column."""
        begin = min(mention.positions, default=0)
        return bool(begin and self.words[begin - 1].stem in ("by", "per", "each", "which"))

    def _choose_column(self, mentions: list[Mention]) -> Mention | None:
        """Choose one of several columns that the same words may refer to.

        Returns ``None`` if the words refer to rows or to times instead.
        """
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
                raise TwoReadingsError("max", "min")
            phrase = " ".join(self.words[p].text for p in sorted(mentions[0].positions))
            names = ", ".join(m.column.name for m in mentions[:8])
            raise self.unparsed_error(
                phrase,
                message=(
                    f"{phrase!r} is ambiguous: it may mean several columns of"
                    f" {self.profile.table.label}: {names}."
                ),
                fix="Name one of them.",
                replacements=[m.column.name for m in mentions[:8]],
            )
        return None if self.has_time and stems <= set(lex.TIME_UNIT_WORDS) else mentions[0]

    def _is_ranked(self, column: TableColumn) -> bool:
        """Return True if a superlative in the question applies to the quantity of a column.

        For wind, the quantity is the speed, not the direction.
        """
        words = {concept_of(word) for word in quantity_words(column)}
        ranked = {lex.SUPERLATIVES.get(word.stem, (None, ""))[0] for word in self.words}
        if {"wind", "gust"} & {concept_of(word) for word in split_name(column.name)}:
            return "speed" in words
        return bool(words & ranked)

    def _parse_direction(self) -> str | None:
        """Return ``max`` or ``min`` if the question refers to highs or lows, else ``None``."""
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
                self._parse_item_comparison()

    def _parse_item_comparison(self) -> None:
        """Parse "are males heavier than females" as a comparison of two group means."""
        placed = self.parsed
        placed.compares_items = True
        self.consume(lex.COMPARISON_PHRASE)
        for place in sorted(self.unused_positions):
            quantity, sign = lex.COMPARATIVES.get(self.words[place].stem, (None, ""))
            if self.words[place].stem == "or":
                self.unused_positions.discard(place)
            if not sign:
                continue
            if quantity and not self._list_numeric_mentions():
                self._parse_comparative(place, quantity)
            elif quantity is None:
                self.unused_positions.discard(place)

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
                part = self._find_time_part(place)
                if mention is not None:
                    place = max(mention.positions) + 1
                    names += self._list_group_columns(mention, place)
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

    def _list_group_columns(self, mention: Mention, position: int) -> list[str]:
        """Return the columns to group by for a mentioned column.

        In "hire year", the year only selects the date column, so no group column is returned.
        """
        self.parsed.columns.remove(mention)
        name, part = (
            mention.column.name,
            position < len(self.words) and self._find_time_part(position),
        )
        if part and name in self.profile.date_columns:
            self.parsed.time_column = name
            return []
        return [name]

    def _parse_ratio(self, names: list[str]) -> bool:
        """Parse a ratio of two totals, such as "revenue per unit".

        Returns True if the phrase is a ratio.
        """
        if len(names) > 1 or not self.is_additive(names[0]):
            return False
        if self.parsed.kind:
            raise self.unparsed_error("per")
        self.parsed.kind, self.parsed.divisor = "ratio", names[0]
        return True

    def _find_time_part(self, position: int) -> tuple[str, set[int]] | None:
        """Find the time unit or time part at a word position.

        Returns its name and the positions of its words, or ``None``.
        """
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
            superlative = self._find_superlative(place)
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
        if self._list_numeric_mentions():
            priced = rank.quantity == "price" and not self.columns_for_quantity("price", None)
            if not priced and not any(
                self._is_measure_of(m.column, str(rank.quantity))
                for m in self._list_numeric_mentions()
            ):
                raise self.unparsed_error(rank.word)  # "rainiest" does not rank temperatures
            return
        columns = self.columns_for_quantity(str(rank.quantity), rank.direction)
        if len(columns) > 1:
            columns = [c for c in columns if self._is_ranked(c)]
        if len(columns) != 1:
            raise self.unparsed_error(rank.word)
        placed.columns.append(Mention(columns[0], frozenset()))

    def _find_superlative(self, position: int) -> Rank | None:
        """Parse the superlative at a word position, or return ``None`` if there is none."""
        word = self.words[position].stem
        named = {concept_of(w) for m in self.parsed.columns for w in quantity_words(m.column)}
        following = self.words[position + 1].stem if position + 1 < len(self.words) else ""
        if word in ("most", "least") and lex.CONCEPTS.get(following) in named:
            return Rank(lex.CONCEPTS[following], "max" if word == "most" else "min", word)
        if word in ("most", "least") and lex.ADJECTIVES.get(following, (None,))[0]:
            quantity, direction = lex.ADJECTIVES[following]
            if word == "least":
                direction = "min" if direction == "max" else "max"
            self.unused_positions.discard(position + 1)
            return Rank(quantity, direction, f"{word} {following}")
        if word in ("best", "worst"):
            if named & lex.HIGHER_IS_BETTER:
                return Rank(None, "max" if word == "best" else "min", word)
            if named & lex.LOWER_IS_BETTER:
                return Rank(None, "min" if word == "best" else "max", word)
        return Rank(*lex.SUPERLATIVES[word], word) if word in lex.SUPERLATIVES else None

    @staticmethod
    def _is_measure_of(column: TableColumn, quantity: str) -> bool:
        """Return True if the name or unit of a column shows that it measures a quantity."""
        concepts = {concept_of(word) for word in quantity_words(column)}
        if quantity == "length" and column.unit in DURATION_UNITS:
            return True
        return quantity in concepts or (
            quantity == "temperature" and column.unit in ("°C", "°F", "K")
        )

    def _list_numeric_mentions(self) -> list[Mention]:
        return [m for m in self.parsed.columns if m.column.kind == "number"]

    def _parse_date_columns(self) -> None:
        """Select the date column that the question refers to.

        If the question names no time, a phrase such as "was shipped" counts the rows with a date in
        that column.
        """
        placed, own_column = (
            self.parsed,
            self.profile.time.columns[0] if self.profile.time else None,
        )
        parts = {*lex.UNIT_ORDER, *(name for name, _ in lex.TIME_PART_PHRASES)}
        timed = bool(self.time_spans) or bool(parts.intersection(placed.groups))
        timed = timed or any(self._find_time_part(place) for place in self.unused_positions)
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
        """Find the subject of the question, such as the city in "which city" questions."""
        placed = self.parsed
        for mention in list(placed.columns):
            column = mention.column
            yes = self._find_flag_value(mention) if placed.kind in ("count", "share") else None
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
            opposite = lex.OPPOSITES.get(self.words[place].stem)
            flags = [c for c in self.profile.columns if c.name == opposite]
            if not flags or placed.kind not in ("count", "share"):
                continue
            no = self._find_flag_value(Mention(flags[0], frozenset({place})), is_yes=False)
            if no is not None:
                placed.where.append(Filter(column=flags[0].name, value=no))
                self.unused_positions.discard(place)
        for place in sorted(self.unused_positions):
            if placed.subject is None and (part := self._find_time_part(place)):
                placed.subject = part[0]
                self.unused_positions -= part[1]

    def _find_flag_value(self, mention: Mention, *, is_yes: bool = True) -> str | float | None:
        """Return the value of a flag column that means true, or false after a negation."""
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
        return values_by_flag[is_yes != bool(negations)]

    def _is_counted(self, mention: Mention) -> bool:
        """Return True if a "how many" question counts the distinct values of a column."""
        begin, after = self.words[min(mention.positions)].begin, max(mention.positions) + 1
        between = split_words(self.text[self.parsed.count_phrase_end : begin])
        rows = after < len(self.words) and self.words[after].stem in self.row_nouns
        return not rows and all(word.stem in lex.FILLER_WORDS for word in between)

    def _parse_unit(self) -> None:
        """Parse the unit that the question requests for the answer, as in "in MWh"."""
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
        """Mark nouns that refer to table rows as used, including the name of the file."""
        for place in sorted(self.unused_positions):
            word = self.words[place]
            # Counted nouns are plural: "electricity" does not mean rows.
            counted = self.parsed.kind in ("count", "share", "distinct")
            if word.stem in self.row_nouns and not (
                counted
                and word.stem not in lex.ROW_NOUNS | {"people"}
                and word.text.lower() == word.stem
            ):
                self.unused_positions.discard(place)
                self.parsed.table_mentions += word.stem not in lex.ROW_NOUNS

    def _assign_limits(self) -> None:
        """Assign each numeric threshold to a column.

        The column is the one that the threshold implies, or else the nearest column mention.
        """
        placed = self.parsed
        numbers = [m for m in placed.columns if m.positions]
        for limit in placed.limits:
            degrees = limit.unit == "degree" and not numbers
            unit = None if limit.unit == "degree" else limit.unit
            quantity = limit.quantity or ("temperature" if degrees else None)
            of_weather = self._measures_one_temperature() and not lex.WEATHER_SUBJECTS.isdisjoint(
                word.stem for word in self.words
            )
            if quantity is None and not numbers and (of_weather or unit in ("°C", "°F")):
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
