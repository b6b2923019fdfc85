"""From a question and its tables to a described data set."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from capabilities.contexts import (
    ColumnRef,
    DataPart,
    Dataset,
    Filter,
    Measure,
    TimeRange,
)
from capabilities.data.categories import RowChoice, choose_rows
from capabilities.data.files import Session
from capabilities.data.matching import (
    ColumnChoice,
    QuestionWords,
    choose_columns,
    column_by_name,
    measurable,
    read_question,
)
from capabilities.data.meaning import meaning_of
from capabilities.data.profile import Column, TableProfile
from capabilities.data.units import guess_temperature_unit, unit_in_name
from capabilities.data.vocabulary import ADJECTIVES, QUANTITIES, STOP_WORDS, canonical
from capabilities.data.wording import listed
from capabilities.data.words import blank, fold, name_words, quoted_names, simplest
from framework.base import ValidationError

_COUNTING = re.compile(
    r"\bhow (?:many|often)\b|\bnumber of\b|\bcount\b|\b(?:most|least)\s+(?:common|frequent|popular)"
    r"|\bfrequency\b|\bhow frequent",
    re.IGNORECASE,
)
_MOST = re.compile(r"\b(?:most|fewest|least|highest number|largest number|lowest number)\b", re.I)
_GENERIC = {
    "people", "person", "case", "event", "incident", "record", "row", "entry", "item", "name",
    "city", "place", "location", "stock", "company", "company's", "firm", "ran", "spent", "live",
    "located", "listed", "called", "belong", "weather", "victim", "car",
}  # fmt: skip
_EVERYTHING = re.compile(
    r"\b(?:values|everything|all columns|readings|conditions|weather|data|summar\w+|describe"
    r"|overview|measurements)\b",
    re.IGNORECASE,
)
_SHARE = re.compile(r"\b(?:share|proportion|fraction|percent(?:age)?|part)\b(?!\s+change)", re.I)
_AFTER_PREPOSITION = re.compile(r"\b(?:for|of|from|by|with|about|on|in|at|via|using)\s+$", re.I)


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


def _label_words(profile: TableProfile) -> set[str]:
    label = Path(profile.table.path).stem + " " + (profile.table.table or "")
    return set(name_words(label))


def _count_label_hits(match: Match) -> None:
    label = _label_words(match.profile)
    words = match.question.words
    hits = {word.stem for word in words if word.stem in label and word.stem not in STOP_WORDS}
    # "San Francisco" is meant by sf-temps.csv.
    for a, b in zip(words, words[1:], strict=False):
        initials = fold(a.text[:1] + b.text[:1])
        if a.text[:1].isupper() and b.text[:1].isupper() and initials in label:
            hits.add(initials)
    match.label_hits = len(hits)


def _leftover(match: Match) -> list[int]:
    """Return the words with a meaning of their own that nothing in the table explains."""
    profile = match.profile
    known = _label_words(profile) | _GENERIC
    known |= {word for column in profile.columns for word in name_words(column.name)}
    known |= {word for time in profile.times for word in name_words(time)}
    known |= {canonical(word) for word in known} | {simplest(word) for word in known}
    label = _label_words(profile)
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


def _missing_columns(profile: TableProfile, what: str) -> ValidationError:
    return ValidationError(
        f"{profile.table.label} has no column for {what}.",
        fix=f"Ask about one of its columns: {profile.names()}.",
    )


def _check_stated(matches: list[Match], text: str, wish: Wish) -> None:
    """Refuse names that were stated outright and are in no table."""
    for name in wish.columns:
        if not any(column_by_name(m.profile, name) for m in matches):
            raise _missing_columns(matches[0].profile, repr(name))
    for name, _, _ in quoted_names(text):
        known = any(
            column_by_name(m.profile, name)
            or name in m.profile.times
            or any(fold(v) == fold(name) for c in m.profile.categories for v in c.values)
            for m in matches
        )
        if not known:
            raise _missing_columns(matches[0].profile, repr(name))


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


def choose_measures(match: Match, text: str) -> tuple[list[Column], list[str]]:
    """Choose the columns to measure; the second value holds notes for the reader.

    Raises:
        ValidationError: No column, or more than one, may be meant.
    """
    profile, notes = match.profile, []
    if match.named:
        for column in match.named:
            if column.kind != "number":
                raise ValidationError(
                    f"The column {column.name!r} of {profile.table.label} holds no numbers.",
                    fix=f"Columns with numbers: {listed([c.name for c in profile.numbers])}.",
                )
        return list(dict.fromkeys(match.named)), notes
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
        odd = [words[n] for n, i in enumerate(match.leftover) if _is_quantity(match, i)]
        if odd:
            names = listed([f"'{word}'" for word in dict.fromkeys(odd)])
            used = listed([column.name for column in chosen])
            notes.append(f"No column is about {names}; the answer is about {used}")
        return chosen, notes
    counting = bool(_COUNTING.search(text)) or (
        bool(_MOST.search(text)) and bool(match.rows.groups)
    )
    foreign = [words[n] for n, i in enumerate(match.leftover) if not _is_verbal(match, i)]
    if counting and not foreign:
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
        raise _missing_columns(profile, listed([f"'{word}'" for word in dict.fromkeys(foreign)]))
    raise ValidationError(
        f"The question does not tell which column of {profile.table.label} is meant.",
        fix=f"Name one of: {listed([column.name for column in candidates], 'or')}.",
    )


def _is_quantity(match: Match, index: int) -> bool:
    return canonical(match.question.words[index].stem) in QUANTITIES


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
    if words & {"count", "number", "total", "amount", "quantity", "unit", "order", "birth", "ticket"}:
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


def _share_of(match: Match, text: str) -> Filter | None:
    """Return the category whose share of the whole is asked for."""
    filters = match.rows.filters
    return filters[-1] if filters and _SHARE.search(text) else None


def build_part(
    match: Match, columns: list[Column], wish: Wish, focused: Filter | None = None
) -> DataPart:
    """Describe what is taken from a table.

    Args:
        match: The table and what the question means in it.
        columns: What to measure.
        wish: What is stated outright.
        focused: A category whose share is asked for, so that the others are needed too.
    """
    profile = match.profile
    filters = list(match.rows.filters)
    for value in wish.series:
        owner = next(
            (c for c in profile.categories for v in c.values if fold(v) == fold(value)), None
        )
        if owner is None:
            names = [c.name for c in profile.categories]
            raise ValidationError(
                f"No column of {profile.table.label} holds {value!r}.",
                fix=f"Columns with names: {listed(names) or 'none'}.",
            )
        exact = next(v for v in owner.values if fold(v) == fold(value))
        same = next((item for item in filters if item.column == owner.name), None)
        if same is None:
            filters.append(Filter(column=owner.name, values=[exact]))
        elif exact not in same.values:
            same.values.append(exact)
    groups = [wish.group_by] if wish.group_by else match.rows.groups
    if wish.group_by and column_by_name(profile, wish.group_by) is None:
        raise _missing_columns(profile, repr(wish.group_by))
    if focused is not None:
        filters = [item for item in filters if item is not focused]
        groups = [focused.column]
    single = {item.column for item in filters if len(item.values) == 1}
    several = [item.column for item in filters if len(item.values) > 1]
    series = groups or [name for name in profile.series if name not in single]
    series = list(dict.fromkeys([*series, *(name for name in several if name not in series)]))
    return DataPart(
        table=profile.table,
        time=profile.time,
        columns=[ColumnRef(name=c.name, reading=c.reading) for c in columns],
        series=series,
        filters=filters,
        label_column=profile.label_column,
    )


def build_dataset(
    matches: list[Match], text: str, time_range: TimeRange, wish: Wish
) -> Dataset:
    """Describe the data set that a question means, before anything is counted."""
    first = matches[0]
    # A word that one of several chosen files explains is explained.
    common = [i for i in first.leftover if all(i in match.leftover for match in matches)]
    for match in matches:
        match.leftover = common
    columns, notes = choose_measures(first, text)
    measures = [to_measure(first.profile, column, wish) for column in columns]
    focused = _share_of(first, text)
    parts = [build_part(first, columns, wish, focused)]
    for other in matches[1:]:
        theirs, _ = choose_measures(other, text)
        parts.append(build_part(other, theirs, wish))
    series_name = ", ".join(parts[0].series) or None
    series: list[str] = []
    if len(parts) > 1:
        series_name = "file"
        series = [Path(part.table.path).stem + (part.table.table or "") for part in parts]
        for part in parts:
            part.series = []
    proper = [
        first.question.words[i].text
        for i in first.leftover
        if first.question.words[i].text[0].isupper() and first.question.words[i].begin > 0
    ]
    if proper and not notes:
        notes.append(f"The data does not mention {listed(list(dict.fromkeys(proper)))}")
    return Dataset(
        parts=parts,
        measures=measures,
        series_name=series_name,
        series=series,
        focus=focused.values if focused else [],
        group_columns=[wish.group_by] if wish.group_by else first.rows.groups,
        time_range=time_range,
        frequency=first.profile.frequency,
        notes=notes,
    )
