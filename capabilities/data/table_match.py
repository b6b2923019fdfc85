"""How well one table fits a question, and which of several tables is meant."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from capabilities.contexts import Filter
from capabilities.data.categories import RowChoice, choose_rows
from capabilities.data.matching import (
    ColumnChoice,
    QuestionWords,
    choose_columns,
    column_by_name,
    read_question,
)
from capabilities.data.profile import Column, TableProfile
from capabilities.data.session import Session
from capabilities.data.vocabulary import ADJECTIVES, STOP_WORDS, canonical
from capabilities.data.words import blank, fold, name_words, quoted_names, simplest
from framework.base import ValidationError

_GENERIC = {
    "people", "person", "case", "event", "incident", "record", "row", "entry", "item", "name",
    "city", "place", "location", "stock", "company", "company's", "firm", "ran", "spent", "live",
    "located", "listed", "called", "belong", "weather", "victim", "car",
}  # fmt: skip


@dataclass(frozen=True)
class Wish:
    """What a step states outright; wins over what its text says.

    Attributes:
        columns: Columns to measure.
        series: Values of a category to keep.
        group_by: Column to group by.
        table: Table or file to use.
        unit: Unit of the values.
    """

    columns: tuple[str, ...] = ()
    series: tuple[str, ...] = ()
    group_by: str | None = None
    table: str | None = None
    unit: str | None = None


@dataclass
class Match:
    """How well a table fits a question."""

    profile: TableProfile
    question: QuestionWords
    rows: RowChoice
    columns: ColumnChoice
    named: list[Column] = field(default_factory=list)
    label_hits: int = 0
    leftover: list[int] = field(default_factory=list)

    @property
    def score(self) -> float:
        """The higher, the better."""
        filters = 8.0 * len(self.rows.filters) + 4.0 * len(self.rows.groups)
        return self.columns.score + filters + 9.0 * self.label_hits + 60.0 * len(self.named)


def match_table(
    session: Session, profile: TableProfile, text: str, spans: list[tuple[int, int]], wish: Wish
) -> Match:
    """Find what a question means in one table.

    Args:
        session: Where to look values up.
        profile: The table.
        text: The question.
        spans: Its words about time.
        wish: What is stated outright.
    """
    quoted = quoted_names(text)
    plain = blank(text, [*spans, *((begin, end) for _, begin, end in quoted)])
    question = read_question(plain)
    rows = choose_rows(session, question, profile)
    named = [c for name in wish.columns if (c := column_by_name(profile, name)) is not None]
    for name, _, _ in quoted:
        column = column_by_name(profile, name)
        values = [
            Filter(column=c.name, values=[value])
            for c in profile.categories
            for value in c.values
            if fold(value) == fold(name)
        ]
        if column is not None and column.kind == "number":
            named.append(column)
        elif column is not None and column.kind == "category":
            rows.groups.append(column.name)
        elif values:
            rows.filters.append(values[0])
    columns = choose_columns(question, profile, frozenset(rows.positions))
    result = Match(profile, question, rows, columns, named)
    _count_label_hits(result)
    result.leftover = _leftover(result)
    return result


def label_words(profile: TableProfile) -> set[str]:
    """Return the words of the file's and the table's name."""
    label = Path(profile.table.path).stem + " " + (profile.table.table or "")
    return set(name_words(label))


def _count_label_hits(match: Match) -> None:
    label = label_words(match.profile)
    words = match.question.words
    hits = {word.stem for word in words if word.stem in label and word.stem not in STOP_WORDS}
    # "San Francisco" is meant by sf-temps.csv.
    for a, b in pairwise(words):
        initials = fold(a.text[:1] + b.text[:1])
        if a.text[:1].isupper() and b.text[:1].isupper() and initials in label:
            hits.add(initials)
    match.label_hits = len(hits)


def _leftover(match: Match) -> list[int]:
    """Return the words with a meaning of their own that nothing in the table explains."""
    profile = match.profile
    known = label_words(profile) | _GENERIC
    known |= {word for column in profile.columns for word in name_words(column.name)}
    known |= {word for time in profile.times for word in name_words(time)}
    known |= {canonical(word) for word in known} | {simplest(word) for word in known}
    label = label_words(profile)
    left: list[int] = []
    words = match.question.words
    for index, word in enumerate(words):
        following = words[index + 1].text[:1] if index + 1 < len(words) else ""
        before = words[index - 1].text[:1] if index else ""
        initials = {fold(word.text[:1] + following), fold(before + word.text[:1])}
        if (
            index in match.rows.positions
            or index in match.columns.positions
            or word.text.lower() in STOP_WORDS
            or word.stem in STOP_WORDS
            or word.text.lower() in ADJECTIVES
            or any(char.isdigit() for char in word.text)
            or len(word.stem) < 3
            or {word.stem, canonical(word.stem), simplest(word.stem)} & known
            or (word.text[0].isupper() and initials & label)
        ):
            continue
        left.append(index)
    return left


def missing_columns(profile: TableProfile, what: str) -> ValidationError:
    """Say that a column is missing, and which ones there are."""
    return ValidationError(
        f"{profile.table.label} has no column for {what}.",
        fix=f"Ask about one of its columns: {profile.names()}.",
    )


def _check_stated(matches: list[Match], text: str, wish: Wish) -> None:
    """Refuse names that were stated outright and are in no table."""
    for name in wish.columns:
        if not any(column_by_name(m.profile, name) for m in matches):
            raise missing_columns(matches[0].profile, repr(name))
    for name, _, _ in quoted_names(text):
        known = any(
            column_by_name(m.profile, name)
            or name in m.profile.times
            or any(fold(v) == fold(name) for c in m.profile.categories for v in c.values)
            for m in matches
        )
        if not known:
            raise missing_columns(matches[0].profile, repr(name))


def choose_match(matches: list[Match], text: str, wish: Wish) -> list[Match]:
    """Choose the table that a question is about, or several that hold the same quantity."""
    _check_stated(matches, text, wish)
    if wish.table:
        wanted = [m for m in matches if fold(wish.table) in fold(m.profile.table.label)]
        if not wanted:
            known = ", ".join(m.profile.table.label for m in matches)
            raise ValidationError(f"There is no table {wish.table!r}.", fix=f"Use one of: {known}.")
        matches = wanted
    best = max(match.score for match in matches)
    # Naming the file of a city chooses that city; naming two of them chooses both.
    first = next(match for match in matches if match.score == best)
    alike = [m for m in matches if _same_quantity(first, m) and abs(m.score - best) < 4]
    if first.label_hits == 0 or len(alike) > 1:
        return alike or [first]
    return [first]


def _same_quantity(a: Match, b: Match) -> bool:
    if a is b:
        return True
    names = [
        [fold(c.column.name) for c in match.columns.chosen] or [c.name for c in match.named]
        for match in (a, b)
    ]
    timed = (a.profile.time is None) == (b.profile.time is None)
    return names[0] == names[1] and bool(names[0]) and timed
