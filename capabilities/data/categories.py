"""Which rows a question means: values of categories, and what it groups by."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from capabilities.contexts import Filter
from capabilities.data.matching import QuestionWords
from capabilities.data.meaning import meaning_of
from capabilities.data.profile import Column, TableProfile
from capabilities.data.session import Session, identifier
from capabilities.data.vocabulary import CODES, ENTITY_WORDS, QUANTITIES, STOP_WORDS, canonical
from capabilities.data.words import fold, name_words, simplest, stem, words_of

_TIME_UNITS = {
    "day", "week", "month", "quarter", "year", "hour", "minute", "season", "decade", "weekday",
    "time", "date", "weekend", "one", "period", "half", "night", "morning", "temperature",
}  # fmt: skip
_GROUP_BY = re.compile(
    r"\b(?:which|what|each|every|per|by|across|between|among|for each|grouped by|split by"
    r"|broken down by|for every|different|distinct|(?:most|least)\s+(?:common|frequent|popular))"
    r"\s+(?:[\w-]+\s+)?$",
    re.IGNORECASE,
)
_STRONG_GROUP = re.compile(
    r"\b(?:which|what|each|every|per|by|across|among|for each|grouped by|split by|broken down by"
    r"|for every)\s+$",
    re.IGNORECASE,
)


@dataclass
class RowChoice:
    """Rows and groups that a question means.

    Attributes:
        filters: Values of categories that it names.
        groups: Columns that it groups by.
        positions: Words that were understood so.
    """

    filters: list[Filter] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    positions: set[int] = field(default_factory=set)


def choose_rows(session: Session, question: QuestionWords, profile: TableProfile) -> RowChoice:
    """Find the values and groups that a question names in a table."""
    choice = RowChoice()
    measured = {word for column in profile.numbers for word in meaning_of(column.name).words}
    measured |= {word for name in profile.times for word in name_words(name)}
    for column in profile.columns:
        if column.kind == "category":
            values, positions = _named_values(question, column, measured, profile)
        elif column.kind == "text":
            values, positions = _looked_up(session, question, profile, column)
        else:
            continue
        positions -= choice.positions
        if values and positions:
            choice.filters.append(Filter(column=column.name, values=values))
            choice.positions |= positions
    _choose_groups(question, profile, choice)
    return choice


def _named_values(
    question: QuestionWords, column: Column, measured: set[str], profile: TableProfile
) -> tuple[list[str], set[int]]:
    found: dict[str, set[int]] = {}
    for value in column.values:
        spots = _spots(question, value, measured)
        if spots:
            found[value] = spots
    if not found and len(column.values) <= 100:
        found = _partly_named(question, column, measured, profile)
    for value, spots in _coded(question, column).items():
        found.setdefault(value, spots)
    # A longer name wins over a shorter one inside it ("North Dakota" over "Dakota").
    kept = {
        value: spots for value, spots in found.items() if not any(spots < o for o in found.values())
    }
    positions = set().union(*kept.values()) if kept else set()
    return list(kept), positions


def _spots(question: QuestionWords, value: str, measured: set[str]) -> set[int]:
    """Return the words of the question that spell a value, if they do so in one stretch."""
    parts = [word.stem for word in words_of(value)]
    if not parts or all(part.isdigit() for part in parts):
        return set()
    words = question.words
    for start in range(len(words) - len(parts) + 1):
        stretch = words[start : start + len(parts)]
        stems = [word.stem for word in stretch]
        single = len(parts) == 1
        if stems != parts and not (
            single and len(parts[0]) > 2 and simplest(stems[0]) in (parts[0], simplest(parts[0]))
        ):
            continue
        same = all(w.text == part for w, part in zip(stretch, value.split(), strict=False))
        # "or" is no Oregon and "in" no Indiana; "rain" and "sun" are words of their own.
        short = len(value) <= 2 or (len(value) <= 3 and value.isupper() and stems[0] in STOP_WORDS)
        if short and not same:
            continue
        if single and parts[0] in STOP_WORDS and not value.isupper():
            continue
        meant = {stems[0], canonical(stems[0]), canonical(simplest(stems[0]))}
        if single and meant & measured and not _means_days(question, start):
            continue
        return set(range(start, start + len(parts)))
    return set()


def _means_days(question: QuestionWords, position: int) -> bool:
    """Say whether "rain" is the weather of a day here and not an amount."""
    following = question.words[position + 1 : position + 2]
    text = question.text.lower()
    return bool(following and following[0].stem in ("day", "weather")) and "how many" not in text


def _partly_named(
    question: QuestionWords, column: Column, measured: set[str], profile: TableProfile
) -> dict[str, set[int]]:
    """Match "fossil" with "Fossil Fuels", when only one value has that word."""
    owners: dict[str, list[str]] = {}
    names = {word for other in profile.columns for word in name_words(other.name)}
    for value in column.values:
        for part in {w.stem for w in words_of(value)}:
            owners.setdefault(part, []).append(value)
    found: dict[str, set[int]] = {}
    for index, word in enumerate(question.words):
        if word.stem in names:
            continue
        for part, values in owners.items():
            fits = word.stem == part or (
                min(len(part), len(word.stem)) >= 5
                and (part.startswith(word.stem) or word.stem.startswith(part))
            )
            if (
                fits
                and len(values) == 1
                and len(part) >= 4
                and part not in STOP_WORDS
                and canonical(part) not in QUANTITIES
                and canonical(word.stem) not in measured
            ):
                found.setdefault(values[0], set()).add(index)
    return found


def _coded(question: QuestionWords, column: Column) -> dict[str, set[int]]:
    """Match names of companies and states with the codes that a column holds."""
    known = {value.upper(): value for value in column.values}
    found: dict[str, set[int]] = {}
    words = question.words
    for start, word in enumerate(words):
        for length in (1, 2, 3):
            name = fold(" ".join(w.text for w in words[start : start + length])).replace("'s", "")
            for code in CODES.get(name, ()):
                if code in known:
                    found[known[code]] = set(range(start, min(start + length, len(words))))
        letters = fold(word.text).upper()
        if word.stem in STOP_WORDS or len(letters) < 5 or not word.text[0].isupper():
            continue
        short = [
            value
            for code, value in known.items()
            if 3 <= len(code) <= 5 and code.isalpha() and code[0] == letters[0]
            and value == code and _is_subsequence(code, letters)
        ]  # fmt: skip
        if len(short) == 1:
            found.setdefault(short[0], {start})
    return found


def _is_subsequence(code: str, letters: str) -> bool:
    rest = iter(letters)
    return all(char in rest for char in code)


def _looked_up(
    session: Session, question: QuestionWords, profile: TableProfile, column: Column
) -> tuple[list[str], set[int]]:
    """Look for stretches of the question among the many values of a text column."""
    stretches: dict[str, set[int]] = {}
    words = question.words
    for start in range(len(words)):
        for length in range(1, 5):
            stretch = words[start : start + length]
            if len(stretch) < length or stretch[0].stem in STOP_WORDS:
                continue
            text = question.text[stretch[0].begin : stretch[-1].end]
            if len(text) < 3 or (not text[0].isupper() and length == 1):
                continue
            stretches[text.lower()] = set(range(start, start + length))
    if not stretches:
        return [], set()
    name = identifier(column.name)
    marks = ", ".join("?" * len(stretches))
    rows = session.query(
        f"SELECT DISTINCT CAST({name} AS VARCHAR) FROM {session.relation(profile.table)}"  # noqa: S608
        f" WHERE lower(trim(CAST({name} AS VARCHAR))) IN ({marks}) LIMIT 20",
        list(stretches),
        label=profile.table.label,
    )
    values = [row[0] for row in rows]
    if not values:
        return [], set()
    longest = max(len(stretches[value.strip().lower()]) for value in values)
    values = [v for v in values if len(stretches[v.strip().lower()]) == longest]
    return values, set().union(*(stretches[value.strip().lower()] for value in values))


def _choose_groups(question: QuestionWords, profile: TableProfile, choice: RowChoice) -> None:
    label_words = {stem(word) for word in name_words(profile.table.label.rsplit(".", 1)[0])}
    only_series = profile.series[0] if len(profile.series) == 1 else None
    for index, word in enumerate(question.words):
        if index in choice.positions or word.stem in _TIME_UNITS:
            continue
        before = question.text[: word.begin]
        if not _GROUP_BY.search(before):
            continue
        strong = bool(_STRONG_GROUP.search(before))
        for column in profile.columns:
            if column.kind not in ("category", "text", "flag"):
                continue
            names = set(name_words(column.name))
            entity = set().union(*(ENTITY_WORDS.get(name, frozenset()) for name in names))
            if word.stem in names or (strong and word.stem in entity):
                _add_group(choice, column.name, index)
                break
        else:
            if strong and only_series and word.stem in label_words:
                _add_group(choice, only_series, index)


def _add_group(choice: RowChoice, column: str, index: int) -> None:
    if column not in choice.groups:
        choice.groups.append(column)
    choice.positions.add(index)
