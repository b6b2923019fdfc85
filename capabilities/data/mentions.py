"""Which columns and values of a table the words of a question name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from capabilities.data.lexicon import CONCEPTS, HIGH, LOW, NOTHING
from capabilities.data.profile import Column, TableProfile
from capabilities.data.units import unit_in_name
from capabilities.data.words import Word, fold, name_words

_MOST_VALUES = 20_000


@dataclass(frozen=True)
class Mention:
    """A column, or a value of one, that words name.

    Attributes:
        column: The column.
        places: The words.
        value: The value, when it is one.
        exact: Whether the words spell the whole name.
    """

    column: Column
    places: frozenset[int]
    value: str | None = None
    exact: bool = True

    @property
    def begin(self) -> int:
        """Place of the first word."""
        return min(self.places)


def concept(word: str) -> str:
    """Return what a word means, in one form for all its synonyms.

    >>> concept("rainfall"), concept("sugar")
    ('precipitation', 'sugar')
    """
    if word.endswith(("temp", "temperatur")):  # compounds, such as Aussentemp
        return "temperature"
    return CONCEPTS.get(word, word)


def meaning(column: Column) -> list[str]:
    """Return the words of a column's name that say what it holds: no unit, no high or low."""
    unit = unit_in_name(column.name)
    words = name_words(column.name)
    if unit:
        units = {*name_words(unit), fold(unit), "celsius", "fahrenheit", "degf", "degc", "pct"}
        words = [word for word in words if word not in units] or words
    return [w for w in words if w not in HIGH | LOW or len(words) == 1] or words


def aspect(column: Column) -> str | None:
    """Say whether a column holds highs or lows."""
    words = set(name_words(column.name))
    return "max" if words & HIGH else "min" if words & LOW else None


def _alike(word: str, part: str, *, whole: bool) -> int:
    """Rate a word of the question against one of a name: 3 same, 2 same meaning, 1 shortened."""
    if word == part:
        return 3
    if concept(word) == concept(part):
        return 2
    if part.endswith(word) and len(word) >= 6:
        return 1
    short, long = sorted((word, part), key=len)
    if long.startswith(short) and len(short) >= (3 if whole and short == part else 4):
        return 1
    return 0


def columns_named(
    words: Sequence[Word], free: Iterable[int], profiles: Sequence[TableProfile]
) -> list[list[Mention]]:
    """Find the columns that words name.

    Each entry holds the mentions of the same words: one where it is clear which column is meant.
    """
    places = sorted(free)
    found: list[tuple[float, Mention]] = []
    for profile in profiles:
        timed = [Column(n, "text") for n in (profile.time.columns if profile.time else [])]
        for column in [*profile.columns, *timed]:
            found += _spelled(words, places, column)
            found += _meant(words, places, column)
    found.sort(key=lambda item: -item[0])
    groups: list[list[Mention]] = []
    taken: set[int] = set()
    best: dict[frozenset[int], float] = {}
    for score, mention in found:
        if mention.places in best:
            group = next(g for g in groups if g[0].places == mention.places)
            if best[mention.places] - score < 1 and all(
                m.column.name != mention.column.name for m in group
            ):
                group.append(mention)
        elif not mention.places & taken:
            best[mention.places] = score
            groups.append([mention])
            taken |= mention.places
    return sorted(groups, key=lambda group: group[0].begin)


def _spelled(
    words: Sequence[Word], places: list[int], column: Column
) -> list[tuple[float, Mention]]:
    """Find a name that is written out, as one word or several in a row."""
    whole = "".join(name_words(column.name))
    bare = "".join(meaning(column))
    found = []
    for start in places:
        text = ""
        stretch: list[int] = []
        for place in range(start, min(start + 8, len(words))):
            if place not in places:
                break
            text += fold(words[place].text) if words[place].text.isdigit() else words[place].stem
            stretch.append(place)
            plain = "".join(fold(words[p].text) for p in stretch)
            initials = "".join(part[0] for part in name_words(column.name))
            if (
                text in (whole, bare)
                or fold(column.name) == plain
                or (len(initials) > 2 and text == initials)
            ):
                if len(stretch) == 1 and words[start].stem in NOTHING:
                    continue
                score = 100.0 + 10 * len(stretch) + (text == whole)
                found.append((score, Mention(column, frozenset(stretch))))
    return found


def _meant(words: Sequence[Word], places: list[int], column: Column) -> list[tuple[float, Mention]]:
    """Find words in a row that mean words of a name."""
    parts = meaning(column)
    found = []
    start = 0
    while start < len(places):
        stretch: dict[int, int] = {}
        covered: set[int] = set()
        for offset in range(start, len(places)):
            place = places[offset]
            if place in stretch:
                continue
            if stretch and place != max(stretch) + 1:
                break
            if words[place].stem in NOTHING:
                break
            rated = [
                (_alike(words[place].stem, part, whole=len(parts) == 1), -number)
                for number, part in enumerate(parts)
                if number not in covered
            ]
            best = max(rated, default=(0, 0))
            joined = _joined(words, places, place, parts, covered)
            if not best[0] and joined is not None:
                covered.add(joined)
                stretch[place] = stretch[place + 1] = 1
                continue
            if not best[0]:
                break
            covered.add(-best[1])
            stretch[place] = best[0]
        if stretch:
            share = len(covered) / len(parts)
            score = 20 * share + 10 * len(stretch) + sum(stretch.values()) / len(stretch)
            mention = Mention(column, frozenset(stretch), exact=share == 1)
            found.append((score, mention))
        start += max(1, len(stretch))
    return found


def _joined(
    words: Sequence[Word], places: list[int], place: int, parts: list[str], covered: set[int]
) -> int | None:
    """Find the part of a name that two words make together: "per capita" in gdpPercap."""
    if place + 1 not in places:
        return None
    both = words[place].stem + words[place + 1].stem
    return next(
        (
            number
            for number, part in enumerate(parts)
            if number not in covered and len(part) >= 5 and both.startswith(part)
        ),
        None,
    )


def values_named(
    words: Sequence[Word], free: Iterable[int], profiles: Sequence[TableProfile]
) -> list[list[Mention]]:
    """Find the values of categories that words name; several columns may hold one."""
    places = set(free)
    index: dict[str, list[int]] = {}
    for place in sorted(places):
        for key in {words[place].stem, concept(words[place].stem), fold(words[place].text)}:
            index.setdefault(key, []).append(place)
    found: list[Mention] = []
    looked = 0
    for profile in profiles:
        for column in profile.categories:
            for value in column.values:
                looked += 1
                if looked > _MOST_VALUES:
                    break
                found += _value(words, places, index, column, value)
    found.sort(key=lambda m: -len(m.places))
    groups: list[list[Mention]] = []
    taken: set[int] = set()
    for mention in found:
        group = next((g for g in groups if g[0].places == mention.places), None)
        if group is not None:
            if all(m.column.name != mention.column.name for m in group):
                group.append(mention)
        elif not mention.places & taken:
            groups.append([mention])
            taken |= mention.places
    return groups


def _value(
    words: Sequence[Word],
    places: set[int],
    index: dict[str, list[int]],
    column: Column,
    value: str,
) -> list[Mention]:
    parts = name_words(value)
    if not parts or (len(parts) == 1 and (parts[0] in NOTHING or parts[0].isdigit())):
        return []
    plain = [fold(part) for part in _pieces(value)]
    for start in (
        index.get(parts[0], []) + index.get(plain[0], []) + index.get(concept(parts[0]), [])
    ):
        for pieces in (parts, plain):
            stretch = range(start, start + len(pieces))
            if stretch.stop > len(words) or not places.issuperset(stretch):
                continue
            pairs = list(zip((words[p] for p in stretch), pieces, strict=True))
            if all(
                part in (word.stem, fold(word.text)) or concept(word.stem) == concept(part)
                for word, part in pairs
            ) and (len(value) > 2 or words[start].text == value):
                return [Mention(column, frozenset(stretch), value)]
    return []


def _pieces(value: str) -> list[str]:
    from capabilities.data.words import words_of

    return [word.text for word in words_of(value)] or [value]
