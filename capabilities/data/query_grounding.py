"""Check that a query that a model wrote contains what its question says, and nothing else.

A model may omit a condition of the question or add an invented one. Both change the answer without
a visible error, so a query is used only if each of its parts corresponds to words of the question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError as PydanticError

from capgraph.capabilities.data import lexicon as lex
from capgraph.capabilities.data.mentions import Mention, concept_of, find_columns, find_values
from capgraph.capabilities.data.profile import TableColumn, TableProfile
from capgraph.capabilities.data.query_builder import recurring_filters
from capgraph.capabilities.data.question_parser import QuestionParser
from capgraph.capabilities.data.words import split_name, split_words
from capgraph.capabilities.periods.expressions import ParsedTime
from capgraph.capabilities.query import TIME_PARTS, TIME_UNITS, Query

_SHARE_PHRASE = re.compile(r"\b(?:share|percent\w*|fraction|proportion)\b", re.IGNORECASE)
_COUNT_WORD = re.compile(r"\b(?:most|fewest|least|common|frequent\w*|busiest)\b", re.IGNORECASE)
_PERIOD_WORD = re.compile(r"\b(?:during|since|in) (?:the )?\w+$", re.IGNORECASE)
_GROUP_WORD = re.compile(r"\b(?:by|per|each|every) \w+$", re.IGNORECASE)
_AFFIRMATIVE_WORDS = frozenset(lex.BOOLEAN_WORDS[True])
_ORDINAL_WORD = re.compile(
    r"\b(?:first|last|earliest|latest|most recent|beg[ia]n\w*|start\w*|end(?:ed)?|initial\w*"
    r"|final\w*)\b",
    re.IGNORECASE,
)
_UNRANKED_AGGREGATES = frozenset({"rows", "sum", "first", "last", "std", "distinct"})
_MIN_PREFIX = 3
_UNMEASURED_AGGREGATES = frozenset({"rows", "none"})


def ground_query(
    reply: Mapping[str, Any], question: str, profile: TableProfile, times: ParsedTime
) -> Query | None:
    """Return the query that a model wrote, without its invented conditions.

    The times of the query are those of the question, which is parsed without the model.

    Args:
        reply: Fields of the query as the model wrote them.
        question: Question that the query answers.
        profile: Profile of the table that the query reads.
        times: Times that were parsed from the question.

    Returns:
        The query, or ``None`` if a part of the question is missing in the query, or if the question
        does not mention the measured column.
    """
    return _QueryCheck(question, profile, times).ground(reply)


class _QueryCheck(QuestionParser):
    """Comparison of a query with the words of its question."""

    def __init__(self, question: str, profile: TableProfile, times: ParsedTime) -> None:
        super().__init__(question, profile, times)
        free = self.unused_positions
        self.stems = {self.words[place].stem for place in free}
        self.column_mentions = find_columns(self.words, free, profile)
        self.value_mentions = find_values(self.words, free, profile)
        numbers = [(place, self._parse_number(place)) for place in sorted(free)]
        self._value_words = {
            word.stem
            for column in profile.category_columns
            for value in column.values
            for word in split_words(value)
        }
        self.numbers = {number[0] for _, number in numbers if number is not None}
        self.required_numbers = {
            number[0]
            for place, number in numbers
            if number is not None and self.words[place].text[0].isdigit()
        }

    def ground(self, reply: Mapping[str, Any]) -> Query | None:
        """Return the grounded query, or ``None`` if it does not match the question."""
        aggregate, value = str(reply.get("aggregate")), reply.get("value")
        conditions = [c for c in reply.get("where") or () if isinstance(c, Mapping)]
        where = [condition for condition in conditions if self._is_grounded(condition)]
        groups = [name for name in reply.get("group_by") or () if self._names_group(str(name))]
        used_names = {value, reply.get("by"), *groups, *(str(c["column"]) for c in where)}
        if aggregate in _UNMEASURED_AGGREGATES:
            value = None
        dropped = [condition for condition in conditions if condition not in where]
        if (
            any(self._repeats_words(condition.get("value")) for condition in dropped)
            or not self._has_supported_times()
            or self._replaces_qualifier(value)
            or self._omits_part(reply, where, used_names)
            or not self._fits_aggregate(aggregate, where, groups)
            or (aggregate not in _UNMEASURED_AGGREGATES and not self._names_measure(value))
        ):
            return None
        fields: dict[str, Any] = {
            "aggregate": aggregate, "value": value, "by": reply.get("by"), "group_by": groups,
            "where": [*where, *recurring_filters(self.times)],
            "periods": [(period.start, period.end) for period in self.times.periods],
            "change": len(self.times.periods) > 1,
            "share": bool(reply.get("share")) and aggregate == "rows" and bool(where),
        }  # fmt: skip
        if self._selects_extreme(aggregate, groups, reply):
            fields |= self._rank(aggregate, groups, reply)
        try:
            return Query.model_validate({k: v for k, v in fields.items() if v is not None})
        except PydanticError:
            return None

    # --- parts of the question -----------------------------------------------------------------

    def _has_supported_times(self) -> bool:
        """Return True if the query can have the times of the question.

        An unknown word such as "seventies" may be a time.
        """
        times = self.times
        if times.days or times.window or times.endpoints:
            return False
        if not self.has_time:
            return not times.periods
        mentions = [group[0] for group in (*self.column_mentions, *self.value_mentions)]
        named = {place for mention in mentions for place in mention.positions}
        return not any(self._may_select_rows(place) for place in self.unused_positions - named)

    def _may_select_rows(self, position: int) -> bool:
        """Return True if an unknown word is a name, or follows a word such as "in" or "by"."""
        word = self.words[position]
        if self._is_known(word.stem) or any(_is_alike(v, word.stem) for v in self._value_words):
            return False
        is_name = position > 0 and word.text[0].isupper()
        text = self.text[: word.end]
        return is_name or any(phrase.search(text) for phrase in (_PERIOD_WORD, _GROUP_WORD))

    def _is_known(self, word: str) -> bool:
        """Return True if a word has a meaning for every table."""
        return (
            word in lex.FILLER_WORDS
            or word in lex.TIME_UNIT_WORDS
            or word in self.row_nouns
            or word in lex.AGGREGATES
            or word in lex.SUPERLATIVES
        )

    def _omits_part(
        self, reply: Mapping[str, Any], where: list[Mapping[str, Any]], used_names: set[Any]
    ) -> bool:
        """Return True if the query omits a value, a column, or a number of the question."""
        for group in self.value_mentions:
            if not any(self._uses_value(mention, where, used_names) for mention in group):
                return True
        for group in self.column_mentions:
            if group[0].score >= 100 and not self._uses_column(group, used_names):
                return True
        numbers = {_to_number(c.get("value")) for c in where} | {_to_number(reply.get("limit"))}
        return not self.required_numbers <= numbers

    def _uses_column(self, group: list[Mention], used_names: set[Any]) -> bool:
        """Return True if the query uses a mentioned column, or one whose name has the same words."""
        words = {self.words[place].stem for place in group[0].positions}
        if words <= self.row_nouns | lex.TIME_UNIT_WORDS.keys() or any(
            mention.column.name in used_names for mention in group
        ):
            return True
        return any(words <= {*split_name(name)} for name in used_names if isinstance(name, str))

    @staticmethod
    def _uses_value(mention: Mention, where: list[Mapping[str, Any]], used_names: set[Any]) -> bool:
        name = mention.column.name
        filtered = [str(c.get("value")) for c in where if c["column"] == name]
        return mention.value in filtered if filtered else name in used_names

    # --- parts of the query --------------------------------------------------------------------

    def _is_grounded(self, condition: Mapping[str, Any]) -> bool:
        """Return True if the question states the value of a condition."""
        column = self._find_column(condition.get("column"))
        value = condition.get("value")
        if column is None or not isinstance(value, str | int | float):
            return False
        number = _to_number(value)
        if column.kind == "number":
            return number is not None and number in self.numbers
        text, mentions = str(value), [*self.value_mentions, *self.column_mentions]
        for mention in (mention for group in mentions for mention in group):
            # A column of yes and no is named without its value: "smokers".
            is_flag = mention.value is None and text.lower() in _AFFIRMATIVE_WORDS
            if mention.column.name == column.name and (mention.value == text or is_flag):
                return True
        if column.values and text not in column.values:
            return False
        other_words = {w.stem for v in column.values if v != text for w in split_words(v)}
        parts = {word.stem for word in split_words(text)} - other_words
        return any(_is_alike(word, part) for word in self.stems for part in parts)

    def _repeats_words(self, value: Any) -> bool:
        """Return True if a text is in the question, although no column contains it."""
        words = split_words(value) if isinstance(value, str) else []
        return bool(words) and {word.stem for word in words} <= self.stems

    def _replaces_qualifier(self, value: Any) -> bool:
        """Return True if the question qualifies a quantity with another word than the column.

        An example is "bearing temperature" for a column "Motor Temp".
        """
        for group in self.column_mentions:
            mention = next((m for m in group if m.column.name == value), None)
            if mention is None or mention.score >= 100:
                continue
            before = min(mention.positions) - 1
            if before in self.unused_positions and not self._is_known(self.words[before].stem):
                return not any(before in other[0].positions for other in self.column_mentions)
        return False

    def _find_column(self, name: Any) -> TableColumn | None:
        return next((c for c in self.profile.columns if c.name == name), None)

    def _names_group(self, name: str) -> bool:
        """Return True if the question mentions a group column or a unit of time."""
        if name in TIME_UNITS or name in TIME_PARTS:
            return name in self.stems or name.split("_")[0] in self.stems
        return any(m.column.name == name for group in self.column_mentions for m in group)

    def _names_measure(self, value: Any) -> bool:
        """Return True if the question mentions the measured column or its quantity."""
        if any(m.column.name == value for group in self.column_mentions for m in group):
            return True
        degrees = (self._get_degree(place) for place in self.unused_positions)
        quantities = {quantity for quantity, _ in degrees if quantity}
        return any(
            column.name == value
            for quantity in quantities
            for column in self.columns_for_quantity(quantity, None)
        )

    def _fits_aggregate(
        self, aggregate: str, where: list[Mapping[str, Any]], groups: list[str]
    ) -> bool:
        """Return True if the words of the question allow an aggregate function."""
        asked = {lex.AGGREGATES[word] for word in self.stems & lex.AGGREGATES.keys()}
        names = {word.stem for c in self.profile.columns for word in split_words(c.name)}
        asked -= {lex.AGGREGATES[word] for word in names & lex.AGGREGATES.keys()}
        if aggregate == "none" or (asked and asked != {aggregate}):
            return False
        if aggregate in ("first", "last") and not _ORDINAL_WORD.search(self.text):
            return False
        if self._direction() and aggregate in _UNRANKED_AGGREGATES and not groups:
            return False
        is_share = bool(_SHARE_PHRASE.search(self.text))
        if aggregate != "rows":
            return not is_share
        counts = lex.COUNT_PHRASE.search(self.text) or _COUNT_WORD.search(self.text)
        return bool(where or groups) and (bool(counts) or is_share)

    def _direction(self) -> str | None:
        """Return the direction of the question's superlative: ``max``, ``min``, or ``None``."""
        found = {lex.SUPERLATIVES[word][1] for word in self.stems & lex.SUPERLATIVES.keys()}
        return found.pop() if len(found) == 1 else None

    def _selects_extreme(self, aggregate: str, groups: list[str], reply: Mapping[str, Any]) -> bool:
        return aggregate in ("max", "min", "values") or bool(groups and reply.get("order"))

    def _rank(self, aggregate: str, groups: list[str], reply: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that select the highest or lowest results."""
        order = {"max": "highest", "min": "lowest"}.get(aggregate) or reply.get("order")
        if direction := self._direction():
            order = "highest" if direction == "max" else "lowest"
        limit = reply.get("limit") or 1
        if groups or order is None:
            return {"order": order, "limit": limit} if order else {}
        # Single rows also state when the extreme occurred.
        return {"aggregate": "values", "order": order, "limit": limit}


def _is_alike(word: str, part: str) -> bool:
    """Return True if a word and a part of a value have the same concept or beginning."""
    short = min(len(word), len(part))
    return concept_of(word) == concept_of(part) or (
        short >= _MIN_PREFIX and (word.startswith(part) or part.startswith(word))
    )


def _to_number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
