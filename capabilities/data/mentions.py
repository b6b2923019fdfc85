"""Functions that find the columns and values that a question mentions."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from capgraph.capabilities.data.lexicon import CONCEPTS, FILLER_WORDS, MAXIMUM_WORDS, MINIMUM_WORDS
from capgraph.capabilities.data.profile import TableColumn, TableProfile
from capgraph.capabilities.data.units import unit_in_name
from capgraph.capabilities.data.words import Word, fold, split_name, split_words

_MAX_RUN_LENGTH = 6
_LITERAL_BONUS = 16
"""Score bonus for a literal match, which must outweigh a synonym of a whole name."""


@dataclass(frozen=True)
class Mention:
    """Phrase in a question that refers to a table column or to one of the column's values.

    Attributes:
        column: Column that the phrase refers to.
        positions: Indexes of the words in the phrase.
        value: Column value that the phrase names, if any.
        score: Quality of the match. From 100 on, the words spell out the full name.
        is_literal: True if the name contains exactly these words.
    """

    column: TableColumn
    positions: frozenset[int]
    value: str | None = None
    score: float = 0.0
    is_literal: bool = False


def concept_of(word: str) -> str:
    """Return the concept that a word stands for, such as ``precipitation`` for "rainfall".

    A word without a known synonym is its own concept.

    >>> concept_of("rainfall"), concept_of("sugar")
    ('precipitation', 'sugar')
    """
    if word.endswith(("temp", "temperatur")):  # compounds, such as Aussentemp
        return "temperature"
    return CONCEPTS.get(word, word)


def quantity_words(column: TableColumn) -> list[str]:
    """Return the words of a column name that describe the measured quantity.

    The unit and qualifiers such as "high" and "low" are left out.
    """
    words = split_name(column.name)
    if unit := unit_in_name(column.name):
        units = {*split_name(unit), fold(unit), "celsius", "fahrenheit", "degf", "degc", "pct"}
        words = [word for word in words if word not in units] or words
    return [w for w in words if w not in MAXIMUM_WORDS | MINIMUM_WORDS or len(words) == 1] or words


def direction_of(column: TableColumn) -> str | None:
    """Return ``max`` for a column of highs, ``min`` for a column of lows, or ``None`` otherwise."""
    words = set(split_name(column.name))
    return "max" if words & MAXIMUM_WORDS else "min" if words & MINIMUM_WORDS else None


def _strip_ending(word: str) -> str:
    """Remove the verb or noun ending of a word, so that "generated" matches "generation"."""
    for ending in ("ions", "ion", "ing", "ed", "es", "er", "or", "al", "e"):
        if word.endswith(ending) and len(word) - len(ending) > 4:
            return word.removesuffix(ending)
    return word


@functools.lru_cache(maxsize=10_000)
def _rate_similarity(word: str, part: str, is_whole_name: bool) -> int:
    """Rate the similarity of a word in a question to part of a column name.

    Returns 3 for equal words, 2 for a shared concept, 1 for an abbreviation or the same stem,
    and 0 otherwise.
    """
    if word == part:
        return 3
    if concept_of(word) == concept_of(part):
        return 2
    if len(word) > 5 and _strip_ending(word) == _strip_ending(part):
        return 1
    short, long = sorted((word, part), key=len)
    prefix = long.startswith(short) and len(short) >= (3 if is_whole_name and short == part else 4)
    return 1 if prefix or (part.endswith(word) and len(word) >= 6) else 0


def _iterate_runs(words: Sequence[Word], positions: Iterable[int]) -> Iterator[list[int]]:
    """Yield every run of consecutive word positions, up to a maximum length."""
    available = set(positions)
    for start in sorted(available):
        for length in range(1, _MAX_RUN_LENGTH + 1):
            run = list(range(start, start + length))
            if not available.issuperset(run):
                break
            yield run


def find_columns(
    words: Sequence[Word], positions: Iterable[int], profile: TableProfile
) -> list[list[Mention]]:
    """Find the columns that the words of a question refer to.

    Each inner list contains the candidate columns for the same words. A list with one column is
    unambiguous.
    """
    timed = [TableColumn(name, "text") for name in (profile.time.columns if profile.time else [])]
    runs = [(run, [words[place] for place in run]) for run in _iterate_runs(words, positions)]
    found = []
    for column in [*profile.columns, *timed]:
        names, parts = split_name(column.name), quantity_words(column)
        for run, run_words in runs:
            if score := _rate_match(run_words, fold(column.name), names, parts):
                literal = {word.stem for word in run_words} <= {*names}
                found.append(Mention(column, frozenset(run), score=score, is_literal=literal))
    return _group_mentions(found)


def _rate_match(words: list[Word], name: str, names: list[str], parts: list[str]) -> float:
    """Score how well consecutive words of a question match a column name."""
    text, full_name = "".join(word.stem for word in words), "".join(names)
    plain = "".join(fold(word.text) for word in words)
    initials = "".join(part[0] for part in names)
    # "GDP per capita" matches gdpPercap: the name may cut off the last word.
    cut = (
        len(words) > 2
        and text.startswith(full_name)
        and len(full_name) > len(text) - len(words[-1].stem)
    )
    are_fillers = [word.stem in FILLER_WORDS for word in words]
    if (
        text in (full_name, "".join(parts))
        or plain in (name, full_name)
        or (len(initials) > 2 and text == initials)
        or cut
    ):
        return 0.0 if are_fillers == [True] else 100.0 + 10 * len(words) + (text == full_name)
    if any(are_fillers):
        return 0.0
    remaining, total = list(parts), 0
    for word in words:
        best = max(
            remaining,
            key=lambda part: _rate_similarity(word.stem, part, len(parts) == 1),
            default="",
        )
        alike = _rate_similarity(word.stem, best, len(parts) == 1) if best else 0
        if not alike:
            return 0.0
        remaining.remove(best)
        total += alike
    return 20 * (1 - len(remaining) / len(parts)) + 10 * len(words) + total / len(words)


def find_values(
    words: Sequence[Word], positions: Iterable[int], profile: TableProfile
) -> list[list[Mention]]:
    """Find the category values that the words of a question refer to.

    Several columns may contain the same value, so each inner list contains the candidates for
    the same words.
    """
    runs_by_form: dict[tuple[str, ...], list[int]] = {}
    for run in _iterate_runs(words, positions):
        for form in _list_comparison_forms([words[place] for place in run]):
            runs_by_form.setdefault(form, run)
    found = []
    for column in profile.category_columns:
        for value in column.values:
            tokens = split_words(value)
            if not tokens or (
                len(tokens) == 1 and (value.isdigit() or tokens[0].stem in FILLER_WORDS)
            ):
                continue
            forms = [*_list_comparison_forms(tokens), *_list_demonyms(tokens)]
            run = next((runs_by_form[form] for form in forms if form in runs_by_form), [])
            if run and (len(value) > 2 or words[run[0]].text == value):
                found.append(Mention(column, frozenset(run), value, len(run)))
    return _group_mentions(found)


def _list_demonyms(words: Sequence[Word]) -> list[tuple[str, ...]]:
    """Return possible adjective forms of a country name, such as "japanese" for "Japan"."""
    name = words[0].stem
    if len(words) > 1 or len(name) < 4 or not words[0].text[0].isupper():
        return []
    return [(name + ending,) for ending in ("n", "an", "ian", "ese", "ish")]


def _list_comparison_forms(words: Sequence[Word]) -> list[tuple[str, ...]]:
    stems = tuple(word.stem for word in words)
    return [tuple(fold(word.text) for word in words), stems, tuple(map(concept_of, stems))]


def _group_mentions(mentions: list[Mention]) -> list[list[Mention]]:
    """Select the best non-overlapping mentions and group them by the words that they cover."""
    groups: list[list[Mention]] = []
    for mention in sorted(mentions, key=lambda m: -(m.score + _LITERAL_BONUS * m.is_literal)):
        same = next((g for g in groups if g[0].positions & mention.positions), None)
        if same is None:
            groups.append([mention])
        elif (
            same[0].positions == mention.positions
            and same[0].is_literal == mention.is_literal
            and same[0].score - mention.score < 1
            and all(other.column is not mention.column for other in same)
        ):
            same.append(mention)
    return sorted(groups, key=lambda group: min(group[0].positions))
