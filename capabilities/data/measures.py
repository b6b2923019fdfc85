"""Which columns of the chosen table are measured, or whether its rows are counted."""

from __future__ import annotations

import re

from capabilities.contexts import Measure
from capabilities.data.analysis.request import parse_request
from capabilities.data.matching import measurable
from capabilities.data.meaning import meaning_of
from capabilities.data.profile import Column, TableProfile
from capabilities.data.table_match import Match, Wish, label_words, missing_columns
from capabilities.data.units import guess_temperature_unit, unit_in_name
from capabilities.data.vocabulary import QUANTITIES, STOP_WORDS, canonical
from capabilities.data.wording import listed
from capabilities.data.words import name_words, simplest
from framework.base import ValidationError

_COUNTING = re.compile(
    r"\bhow (?:many|often)\b|\bdid it\b|\b(?:was|were|are|is) there any\b|\bnumber of\b|\bcount\b|\b(?:most|least)\s+(?:common|frequent|popular)"
    r"|\bfrequency\b|\bhow frequent",
    re.IGNORECASE,
)
_MOST = re.compile(r"\b(?:most|fewest|least|highest number|largest number|lowest number)\b", re.I)
_EVERYTHING = re.compile(
    r"\b(?:values|everything|all columns|readings|conditions|weather|data|summar\w+|describe"
    r"|overview|measurements)\b",
    re.IGNORECASE,
)
_AFTER_PREPOSITION = re.compile(r"\b(?:for|of|from|by|with|about|on|in|at|via|using)\s+$", re.I)


def choose_measures(match: Match, text: str) -> tuple[list[Column], list[str]]:
    """Choose the columns to measure; the second value holds notes for the reader.

    Raises:
        ValidationError: No column, or more than one, may be meant.
    """
    profile = match.profile
    notes: list[str] = []
    if match.named:
        return _named_measures(match), notes
    words = [match.question.words[index].text for index in match.leftover]
    if match.columns.rivals:
        names = listed([c.column.name for c in match.columns.rivals], "or")
        raise ValidationError(
            f"The question does not tell which column of {profile.table.label} is meant: {names}.",
            fix="Name one of them.",
        )
    if match.columns.chosen:
        chosen = [candidate.column for candidate in match.columns.chosen]
        _check_series_words(match)
        odd = [words[n] for n, i in enumerate(match.leftover) if _is_foreign_quantity(match, i)]
        if odd:
            names = listed([f"'{word}'" for word in dict.fromkeys(odd)])
            used = listed([column.name for column in chosen])
            notes.append(f"No column is about {names}; the answer is about {used}")
        return chosen, notes
    return _unnamed_measures(match, text, notes)


def _named_measures(match: Match) -> list[Column]:
    profile = match.profile
    for column in match.named:
        if column.kind != "number":
            raise ValidationError(
                f"The column {column.name!r} of {profile.table.label} holds no numbers.",
                fix=f"Columns with numbers: {listed([c.name for c in profile.numbers])}.",
            )
    return list(dict.fromkeys(match.named))


def _unnamed_measures(match: Match, text: str, notes: list[str]) -> tuple[list[Column], list[str]]:
    """Choose what to measure when no word names a column: rows, or the only one there is."""
    profile = match.profile
    foreign = [match.question.words[i].text for i in match.leftover if not _is_verbal(match, i)]
    if _counts_rows(match, text):
        if foreign and match.rows.groups:
            notes.append(f"Not understood: {listed(list(dict.fromkeys(foreign)))}")
        if not foreign or match.rows.groups:
            return [Column("", "number", "rows")], notes
    candidates = measurable(profile)
    if _EVERYTHING.search(text) and 1 < len(candidates) <= 8 and not foreign:
        return candidates, notes
    if len(candidates) == 1 and not foreign:
        _check_series_words(match)
        return candidates, notes
    if not candidates:
        raise ValidationError(
            f"{profile.table.label} has no column with numbers to compute with.",
            fix=f"Ask how many rows there are; its columns are: {profile.names()}.",
        )
    if foreign:
        raise missing_columns(profile, listed([f"'{word}'" for word in dict.fromkeys(foreign)]))
    raise ValidationError(
        f"The question does not tell which column of {profile.table.label} is meant.",
        fix=f"Name one of: {listed([column.name for column in candidates], 'or')}.",
    )


def _counts_rows(match: Match, text: str) -> bool:
    """Say whether rows are what is counted: people, airports, rainy days."""
    profile = match.profile
    if parse_request(text).threshold is not None:
        return False
    if _COUNTING.search(text):
        return True
    if _MOST.search(text) and match.rows.groups:
        return not profile.series
    if profile.label_column is None:
        return False
    # Where rows are things, naming the thing asks for their number: "deaths per day".
    names = label_words(profile) | {w for time in profile.times for w in name_words(time)}
    things = {canonical(word) for word in names} | names
    things -= set(STOP_WORDS)
    return any({w.stem, canonical(w.stem)} & things for w in match.question.words)


def _is_foreign_quantity(match: Match, index: int) -> bool:
    """Say whether a word names a quantity that is not one name with a column's: "wind speed"."""
    words = match.question.words
    if canonical(words[index].stem) not in QUANTITIES or words[index].stem in (
        "expensive",
        "cheap",
    ):
        return False
    joined = {index - 1, index + 1}
    for step in (-1, 1):
        between = words[index + step].stem if 0 <= index + step < len(words) else ""
        if between in ("of", "from"):
            joined.add(index + 2 * step)
    return not joined & match.columns.positions


def _is_verbal(match: Match, index: int) -> bool:
    """Say whether a word looks like a verb or adverb, which names no column."""
    word = match.question.words[index].text.lower()
    return word.endswith(("ed", "ing", "ly")) and canonical(simplest(word)) not in QUANTITIES


def _check_series_words(match: Match) -> None:
    """Refuse to answer about all series when the question names one that is not there."""
    profile = match.profile
    if not profile.series:
        return
    named = {item.column for item in match.rows.filters}
    for index in match.leftover:
        word = match.question.words[index]
        before = match.question.text[: word.begin]
        proper = word.text[0].isupper() and (bool(before.strip()) or word.text.endswith("'s"))
        if not proper and not _AFTER_PREPOSITION.search(before):
            continue
        if _is_verbal(match, index):
            continue
        column = next((c for c in profile.categories if c.name in profile.series), None)
        if column is None or column.name in named:
            continue
        values = listed(list(column.values[:12])) + (" …" if len(column.values) > 12 else "")
        raise ValidationError(
            f"Nothing in {profile.table.label} matches {word.text!r}.",
            fix=f"The values of {column.name!r} are: {values}.",
        )


def to_measure(profile: TableProfile, column: Column, wish: Wish) -> Measure:
    """Describe a column as a measured quantity."""
    if column.reading == "rows":
        return Measure(label="rows", column="", additive=True, decimals=0)
    meaning = meaning_of(column.name)
    quantity = meaning.quantity
    unit = wish.unit or unit_in_name(column.name, quantity)
    inferred = False
    if unit is None and quantity == "temperature":
        unit = _guess_unit(profile)
        inferred = unit is not None
    return Measure(
        label=column.name,
        column=column.name,
        quantity=quantity,
        unit=unit,
        unit_inferred=inferred,
        aspect=meaning.aspect,
        additive=_adds_up(column, quantity),
        decimals=column.decimals,
    )


def _adds_up(column: Column, quantity: str | None) -> bool:
    words = set(name_words(column.name))
    if words & {"rate", "index", "ratio", "percent", "pct", "share", "average", "avg", "mean", "per",
                "intensity", "probability", "price", "capita", "concentration"}:  # fmt: skip
        return False
    if words & {
        "count",
        "number",
        "total",
        "amount",
        "quantity",
        "unit",
        "order",
        "birth",
        "ticket",
    }:
        return True
    return quantity is not None and QUANTITIES[quantity].additive


def _guess_unit(profile: TableProfile) -> str | None:
    ranges = [
        (column.low, column.high)
        for column in profile.numbers
        if meaning_of(column.name).quantity == "temperature"
    ]
    lows = [low for low, _ in ranges if low is not None]
    highs = [high for _, high in ranges if high is not None]
    return guess_temperature_unit(min(lows), max(highs)) if lows and highs else None
