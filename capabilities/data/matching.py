"""Which columns a question means."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from capabilities.data.meaning import Meaning, meaning_of
from capabilities.data.profile import Column, TableProfile
from capabilities.data.vocabulary import (
    ADJECTIVES,
    ASPECTS,
    QUANTITIES,
    STOP_WORDS,
    Aspect,
    canonical,
)
from capabilities.data.words import Word, fold, name_words, simplest, words_of

_COORDINATES = {"latitude", "longitude", "lat", "lon", "lng", "long"}
_MOVES = re.compile(
    r"\b(?:did|does|do|has|have|will)\b[^.?!,;]*?\b(change|rise|fall|grow|drop|increase|decrease"
    r"|decline|develop|move|trend)\w*",
    re.IGNORECASE,
)
_OVER = re.compile(r"\b(?:above|over|exceed\w*|more than|at least)\s+\d", re.IGNORECASE)
_UNDER = re.compile(
    r"\b(?:below|under|less than|at most)\s+(?:-?\d|freezing|zero)|\bfreezing\b|\bfrost",
    re.IGNORECASE,
)
_NOUN_ASPECT = re.compile(
    r"\b(?:daily\s+|daytime\s+|average\s+|mean\s+|night\s*time\s+)?(highs|lows)\b"
    r"|\b(?:daily|day's|the|average|mean|record|overnight|typical)\s+(high|low)\b(?!\s*(?:est|er))|\b(high|low)\s+temp\w*",
    re.IGNORECASE,
)


@dataclass
class QuestionWords:
    """The words of a question, with what they mean for columns.

    Attributes:
        text: The text, times of the question blanked out.
        words: Its words.
        aspects: The aspects that the text asks for.
        firm_aspects: Whether they were said as nouns ("daily highs").
    """

    text: str
    words: list[Word]
    aspects: set[Aspect] = field(default_factory=set)
    firm_aspects: bool = False
    verbs: set[int] = field(default_factory=set)


def read_question(text: str) -> QuestionWords:
    """Prepare a question for matching."""
    words = words_of(text)
    question = QuestionWords(text, words)
    for match in _MOVES.finditer(text):
        question.verbs.update(
            index for index, word in enumerate(words) if word.begin == match.start(1)
        )
    for match in _NOUN_ASPECT.finditer(text):
        said = next(group for group in match.groups() if group).lower()
        question.aspects.add("high" if said.startswith("high") else "low")
        question.firm_aspects = True
    if not question.aspects:
        if _OVER.search(text):
            question.aspects.add("high")
        elif _UNDER.search(text):
            question.aspects.add("low")
    if not question.aspects:
        for word in words:
            adjective = ADJECTIVES.get(word.text.lower())
            if word.stem in ASPECTS and ASPECTS[word.stem] != "mean":
                question.aspects.add(ASPECTS[word.stem])
            elif adjective and adjective[0] in ("temperature", None):
                question.aspects.add("high" if adjective[1] == "max" else "low")
    return question


@dataclass(frozen=True)
class Candidate:
    """A column that a question may mean."""

    column: Column
    meaning: Meaning
    score: float
    positions: frozenset[int]
    complete: bool


def _same(a: str, b: str) -> bool:
    if a == b:
        return True
    if min(len(a), len(b)) >= 4 and (a.startswith(b) or b.startswith(a)):
        return abs(len(a) - len(b)) <= 6
    return min(len(a), len(b)) >= 6 and SequenceMatcher(None, a, b).ratio() >= 0.88


def score_column(
    question: QuestionWords, column: Column, taken: frozenset[int]
) -> Candidate | None:
    """Rate how well a column fits; ``None`` when nothing of it is in the question.

    Args:
        question: The question.
        column: The column.
        taken: Words that mean something else, such as values of a category.
    """
    meaning = meaning_of(column.name)
    spelled = _spelled(question, column, taken)
    if spelled:
        return Candidate(column, meaning, 45.0 + 3 * len(spelled), spelled, True)
    positions: set[int] = set()
    matched, literal, weak = 0, 0, 0
    for canon, plain in zip(meaning.words, meaning.literal, strict=False):
        hits = [
            (index, kind)
            for index, word in enumerate(question.words)
            if index not in taken and (kind := _hit(word, canon, plain, index in question.verbs))
        ]
        if not hits:
            continue
        best = max(kind for _, kind in hits)
        positions.update(index for index, kind in hits if kind == best)
        matched += 1
        literal += best == 3
        weak += best == 1
    stops = [i for i in positions if _says_nothing(question.words[i])]
    if stops and len(stops) == len(positions) and not all(w in STOP_WORDS for w in meaning.literal):
        return None
    if not matched:
        return _initials(question, column, meaning) or _aspect_only(question, column, meaning)
    share = matched / len(meaning.words)
    score = 20 * share + 4 * matched + literal + (10 if share == 1 else 0)
    score *= 0.3 if weak == matched else 1.0
    score *= 0.2 if len(stops) == len(positions) else 1.0
    if meaning.aspect and question.aspects:
        score += 5 if meaning.aspect in question.aspects else -3
    elif meaning.aspect == "mean":
        score += 1
    return Candidate(column, meaning, score, frozenset(positions), share == 1)


def _spelled(question: QuestionWords, column: Column, taken: frozenset[int]) -> frozenset[int]:
    """Return the words that spell the name of a column out, as one word or several in a row."""
    pieces = name_words(column.name)
    whole = fold(column.name)
    words = question.words
    spots: set[int] = set()
    for start, word in enumerate(words):
        if start in taken or start in question.verbs:
            continue
        stretch = range(start, start + len(pieces))
        if len(pieces) < 2:
            continue
        in_row = [w.stem for w in words[start : start + len(pieces)]] == pieces
        if fold(word.text) in (whole, "".join(pieces)):
            spots.add(start)
        elif in_row and not (taken | question.verbs).intersection(stretch):
            spots.update(stretch)
    return frozenset(spots)


def _says_nothing(word: Word) -> bool:
    adjective = ADJECTIVES.get(word.text.lower())
    return word.stem in STOP_WORDS and not (adjective and adjective[0])


def _hit(word: Word, canon: str, plain: str, is_verb: bool) -> int:
    """Rate a word against one word of a column name: 3 literal, 2 meant, 1 weakly meant, 0 no."""
    if is_verb:
        return 0
    if word.stem == plain or (_same(word.stem, plain) and word.stem not in STOP_WORDS):
        return 3
    adjective = ADJECTIVES.get(word.text.lower())
    if adjective and adjective[0] == canon:
        return 2
    if word.stem in STOP_WORDS and word.stem not in QUANTITIES:
        weak_only = canon in QUANTITIES and word.stem in QUANTITIES[canon].weak
        return 1 if weak_only else 0
    if canonical(word.stem) == canon or canonical(simplest(word.stem)) == canon:
        return 2
    if simplest(word.stem) == plain:
        return 2
    return 1 if canon in QUANTITIES and word.stem in QUANTITIES[canon].weak else 0


def _initials(question: QuestionWords, column: Column, meaning: Meaning) -> Candidate | None:
    """Match "mpg" with "Miles per Gallon"."""
    initials = "".join(word[0] for word in name_words(column.name))
    spots = [i for i, word in enumerate(question.words) if word.stem == initials]
    if len(initials) < 3 or not spots:
        return None
    return Candidate(column, meaning, 25.0, frozenset(spots), True)


def _aspect_only(question: QuestionWords, column: Column, meaning: Meaning) -> Candidate | None:
    """Match a column that is just called "high" or "low"."""
    name = meaning.literal[0] if len(meaning.literal) == 1 else ""
    if name in ASPECTS and question.firm_aspects and ASPECTS[name] in question.aspects:
        spots = [i for i, w in enumerate(question.words) if w.stem == name]
        return Candidate(column, meaning, 15.0, frozenset(spots), True)
    if question.firm_aspects and meaning.aspect in question.aspects and meaning.quantity:
        # "The lowest daily high" names no quantity, but only temperatures have highs here.
        words = {"high": "high", "low": "low"}
        spots = [i for i, w in enumerate(question.words) if w.stem == words.get(meaning.aspect, "")]
        return Candidate(column, meaning, 12.0, frozenset(spots), True)
    return None


@dataclass
class ColumnChoice:
    """The columns that a question means.

    Attributes:
        chosen: In the order of the question.
        rivals: Columns that fit equally well, when none can be chosen.
        positions: Words that were understood as columns.
        score: How well the best one fits.
    """

    chosen: list[Candidate] = field(default_factory=list)
    rivals: list[Candidate] = field(default_factory=list)
    positions: set[int] = field(default_factory=set)
    score: float = 0.0


def choose_columns(
    question: QuestionWords, profile: TableProfile, taken: frozenset[int]
) -> ColumnChoice:
    """Choose the number columns that a question means."""
    candidates = [
        candidate
        for column in profile.numbers
        if (candidate := score_column(question, column, taken)) is not None and candidate.score > 3
    ]
    candidates.sort(key=lambda c: (-c.score, min(c.positions, default=0)))
    choice = ColumnChoice()
    for candidate in candidates:
        if not choice.chosen:
            choice.chosen.append(candidate)
        elif candidate.positions <= choice.positions:
            if not _sibling(question, choice, candidate):
                continue
            choice.chosen.append(candidate)
        elif candidate.complete and not candidate.positions & choice.positions:
            choice.chosen.append(candidate)
        choice.positions |= candidate.positions
    if choice.chosen:
        choice.score = choice.chosen[0].score
        choice.rivals = _rivals(choice.chosen[0], candidates)
    _keep_asked_aspects(question, choice)
    choice.chosen.sort(key=lambda c: min(c.positions, default=0))
    return choice


def _sibling(question: QuestionWords, choice: ColumnChoice, candidate: Candidate) -> bool:
    """Say whether a column is another aspect of a chosen quantity: highs beside lows."""
    return any(
        other.meaning.words == candidate.meaning.words
        and other.meaning.aspect != candidate.meaning.aspect
        and other.positions == candidate.positions
        and (candidate.score >= other.score - 0.5 or candidate.meaning.aspect in question.aspects)
        and "mean" not in (other.meaning.aspect, None)
        for other in choice.chosen
    )


def _rivals(first: Candidate, candidates: list[Candidate]) -> list[Candidate]:
    rivals = [
        other
        for other in candidates
        if other is not first
        and abs(other.score - first.score) < 0.5
        and other.positions == first.positions
        and other.meaning.words != first.meaning.words
    ]
    return [first, *rivals] if rivals else []


def _keep_asked_aspects(question: QuestionWords, choice: ColumnChoice) -> None:
    asked = question.aspects
    if not asked:
        return
    quantities = {c.meaning.words for c in choice.chosen if c.meaning.aspect in asked}
    choice.chosen = [
        c
        for c in choice.chosen
        if c.meaning.aspect in asked
        or c.meaning.aspect is None
        or c.meaning.words not in quantities
    ]


def column_by_name(profile: TableProfile, name: str) -> Column | None:
    """Find a column that is named outright, whatever its case and accents."""
    exact = [column for column in profile.columns if column.name == name]
    loose = [column for column in profile.columns if fold(column.name) == fold(name)]
    words = [c for c in profile.columns if name_words(c.name) == name_words(name)]
    return next(iter([*exact, *loose, *words]), None)


def measurable(profile: TableProfile) -> list[Column]:
    """Columns that a question without any column word may mean."""
    return [
        column
        for column in profile.numbers
        if not _COORDINATES.intersection(name_words(column.name))
    ]
