"""Grounding of parameter values in the conversation, in results, or in declarations.

A model that gets a request that no capability serves may plan an effect with invented values. This
module finds such values. Values are compared in normalized form: numbers by value, dates and times
by moment, names and other text by their words. Relative dates are recognized in English.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, NamedTuple

from capgraph.base import CapabilitySpec
from capgraph.helpers.plain_data import is_equal_json
from capgraph.planning.problems import Path, render_path
from capgraph.planning.references import iter_references
from capgraph.planning.schema_shapes import Shape

_LONGEST = 100_000  # maximum number of compared characters
_MONTHS = "january february march april may june july august september october november december"
_MONTH = {name[:3]: number for number, name in enumerate(_MONTHS.split(), 1)}
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_NUMBER_WORDS = {word: number for number, word in enumerate(_UNITS.split())} | {
    word: 10 * number for number, word in enumerate(_TENS.split(), 2)
}
_FACTORS = {"k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, "hundred": 100.0, "dozen": 12.0}
_ARTICLES = frozenset({"a", "an", "the"})
# Words without a meaning of their own. "not" and "no" are not among them.
_FILLERS = _ARTICLES | frozenset(
    [
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "has",
        "have",
        "had",
        "to",
        "of",
        "on",
        "in",
        "at",
        "for",
        "by",
        "with",
        "and",
        "or",
        "that",
        "this",
        "it",
        "i",
        "you",
        "we",
        "my",
        "your",
        "our",
        "me",
        "us",
        "please",
        "will",
        "s",
        "t",
    ]
)
_WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+")
_NUMBER = re.compile(
    r"(?P<sign>[-−]|\bminus )?(?P<digits>\d+(?:[.,'\u00a0\u202f]\d+)*)\s?(?P<factor>[a-z%]+)?"
)
_ISO = re.compile(r"\b(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?=\D|$|t)")
_DOTTED = re.compile(r"\b(\d{1,2})[./](\d{1,2})[./](\d{4}|\d{2})\b")
_NAMED = "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS.split())
_DAY_MONTH = re.compile(
    rf"\b(\d{{1,2}})(?:st|nd|rd|th|\.)?(?: of)? ({_NAMED})\b\.?,?(?: (\d{{4}}))?"
)
_MONTH_DAY = re.compile(rf"\b({_NAMED})\.? (\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? (\d{{4}}))?")
_TIME = re.compile(
    r"(?:\b|(?<=t))(\d{1,2})(?:[:.h](\d{2}))?(?::\d{2}(?:\.\d+)?)?\s?([ap])\.?m\b\.?"
)
_CLOCK = re.compile(r"(?:\b|(?<=t))(\d{1,2}):(\d{2})(?::\d{2}(?:\.\d+)?)?(?:z|[+-]\d{2}:?\d{2})?\b")
_IN_DAYS = re.compile(r"\bin (\w+) (day|week)s?\b")


class UngroundedValue(NamedTuple):
    """Parameter value that the model may have invented, because no source contains it.

    Attributes:
        path: Path to the value in the step's parameters.
        value: Ungrounded value.
    """

    path: str
    value: Any


@dataclass
class GroundingSources:
    """Conversation texts and results in which parameter values must occur to be grounded.

    A value that occurs in none of the sources may have been invented by the model.

    Args:
        texts: Texts of the conversation.
        results: Plain data of the results that the step refers to.
        today: Dates that the word "today" may mean.

    >>> sources = GroundingSources(["Pay Ada 1,200 euros tomorrow"], today=[date(2026, 3, 4)])
    >>> [sources.supports(value) for value in (1200, "2026-03-05", "ada", 1300, "Grace")]
    [True, True, True, False, False]
    """

    texts: Sequence[str]
    results: Sequence[Any] = ()
    today: Sequence[date] = ()
    _words: list[str] = field(init=False)
    _found: _TextParts = field(init=False)
    _relative: set[date] = field(init=False)

    def __post_init__(self) -> None:
        scalars = (str(value) for _, value in _iter_leaves(list(self.results), ()))
        whole = _normalize_text("\n".join([*self.texts, *scalars]))[-_LONGEST:]
        self._words = [word for word in _WORD.findall(whole) if word not in _ARTICLES]
        self._found = _split_text(whole, self.today)
        self._relative = set(_iter_relative_dates(whole, self.today))
        # "Monday at 9" may mean 9:00 or 21:00.
        for number in self._found.numbers:
            if number in range(25):
                hour = int(number) % 24
                self._found.times.add(time(hour))
                self._found.times |= {time(hour + 12)} if 1 <= hour < 12 else set()

    def supports(self, value: object) -> bool:
        """Return True if a parameter value occurs in the sources, also in a different format.

        ``None`` and booleans are always supported.
        """
        if value is None or isinstance(value, bool):
            return True
        if isinstance(value, (int, float)):
            return any(_is_close(value, number) for number in self._found.numbers)
        text = _normalize_text(str(value))
        return not text.strip() or self._has_phrase(text) or self._contains_parts(text)

    def _has_phrase(self, text: str) -> bool:
        """Return True if a source contains the words of a text in the same order.

        Separators and articles are ignored.
        """
        phrase = "".join(word for word in _WORD.findall(text) if word not in _ARTICLES)
        if not phrase:
            return True
        for start in range(len(self._words)):
            joined = ""
            for word in self._words[start:]:
                joined += word
                if joined == phrase:
                    return True
                if not phrase.startswith(joined):
                    break
        return False

    def _contains_parts(self, text: str) -> bool:
        """Return True if every date, time, number, and word of a text occurs in the sources."""
        parts = _split_text(text, self.today)
        known_dates = self._found.dates | self._relative
        implied = set(self.today) if parts.times and not known_dates else set()
        if any(day not in known_dates | implied for day in parts.dates):
            return False
        midnight = {time()} if parts.dates else set()
        if any(moment not in self._found.times | midnight for moment in parts.times):
            return False
        if any(
            not any(_is_close(n, known) for known in self._found.numbers) for n in parts.numbers
        ):
            return False
        words = [word for word in parts.words if word not in _FILLERS and word not in _NUMBER_WORDS]
        if not words or (parts.is_compound and not re.search(r"\s", text.strip())):
            return not words and bool(parts.dates or parts.times or parts.numbers)
        if len(words) <= 2:
            return any(
                sorted(words) == sorted(self._words[n : n + len(words)])
                for n in range(len(self._words))
            )
        return set(words) <= set(self._words)


@dataclass
class _TextParts:
    dates: set[date]
    times: set[time]
    numbers: set[float]
    words: list[str]
    is_compound: bool


def find_ungrounded_values(
    spec: CapabilitySpec,
    values: Mapping[str, Any],
    planned_parameters: Mapping[str, Any],
    sources: GroundingSources,
    declared_values: Sequence[Any] = (),
) -> list[UngroundedValue]:
    """Find parameter values of a step that occur in no source.

    The model may have invented such values.

    Args:
        spec: Specification of the capability that the step calls.
        values: Validated parameters, as plain data.
        planned_parameters: Parameters as planned. A reference to a result counts as grounded.
        sources: The conversation and the results that the step refers to.
        declared_values: Values that a recipe's author declared for this capability.
    """
    shape = Shape.from_model(spec.parameters, "validation") if spec.parameters is not None else None
    fields = shape.schema.get("properties", {}) if shape is not None else {}
    references = [path for path, _ in iter_references(planned_parameters)]
    ungrounded = []
    for name, parameter in values.items():
        if "default" in fields.get(name, {}) and is_equal_json(fields[name]["default"], parameter):
            continue
        for path, value in _iter_leaves(parameter, (name,)):
            is_reference = any(path[: len(other)] == other for other in references)
            is_choice = shape is not None and _is_choice(shape.at_path(path), value)
            is_declared = any(is_equal_json(value, other) for other in declared_values)
            if not (is_reference or is_choice or is_declared or sources.supports(value)):
                ungrounded.append(UngroundedValue(render_path(path), value))
    return ungrounded


def _iter_leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield each scalar in nested plain data together with its path."""
    inside: list[tuple[Path, Any]] = [(path, value)]
    while inside:
        place, item = inside.pop(0)
        if isinstance(item, Mapping):
            inside[:0] = [((*place, str(key)), one) for key, one in item.items()]
        elif isinstance(item, (list, tuple)):
            inside[:0] = [((*place, number), one) for number, one in enumerate(item)]
        else:
            yield place, item


def _is_choice(shape: Shape | None, value: object) -> bool:
    """Return True if the parameter's JSON schema lists a value as an ``enum`` or ``const``."""
    for form in shape.alternatives() if shape is not None else ():
        listed = [*form.schema.get("enum", ())]
        listed += [form.schema["const"]] if "const" in form.schema else []
        if any(is_equal_json(value, one) for one in listed):
            return True
    return False


def _is_close(first: float, second: float) -> bool:
    return abs(first - second) <= 1e-9 * max(1.0, abs(first), abs(second))


def _normalize_text(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _split_text(text: str, today: Sequence[date]) -> _TextParts:
    """Split normalized text into dates, times, numbers, and words.

    Each character is used only once, so that the digits of a date do not also count as numbers.
    """
    dates: set[date] = set()
    times: set[time] = set()

    def take(pattern: re.Pattern[str], rest: str, read: Any, into: set[Any]) -> str:
        for match in pattern.finditer(rest):
            into.update(read(*match.groups()))
        return pattern.sub(" ", rest)

    rest = take(_ISO, text, lambda y, m, d: _iter_dates((y, m, d)), dates)
    rest = take(_DOTTED, rest, lambda a, b, y: _iter_dates((y, b, a), (y, a, b)), dates)
    rest = take(_DAY_MONTH, rest, lambda d, m, y: _iter_dates_in_years(d, m, y, today), dates)
    rest = take(_MONTH_DAY, rest, lambda m, d, y: _iter_dates_in_years(d, m, y, today), dates)
    rest = take(_TIME, rest, lambda h, m, half: _iter_times(h, m, half), times)
    rest = take(_CLOCK, rest, lambda h, m: _iter_times(h, m, ""), times)
    for word, hour in (("noon", 12), ("midnight", 0)):
        times |= {time(hour)} if re.search(rf"\b{word}\b", rest) else set()
    words = _WORD.findall(rest)
    numbers = set(_iter_numbers(rest)) | {
        float(_NUMBER_WORDS[w]) for w in words if w in _NUMBER_WORDS
    }
    letters = [word for word in words if not word[0].isdigit()]
    letters = [w for w in letters if w not in _FACTORS and not (w == "t" and dates)]
    compound = bool(re.search(r"[^\W\d_]", rest)) and bool(re.search(r"[\d@./_:-]", rest))
    return _TextParts(dates, times, numbers, letters, compound)


def _iter_numbers(text: str) -> Iterator[float]:
    """Yield every possible value of each number in a text.

    Separators are ambiguous: ``1,200`` may mean 1200 or 1.2.
    """
    for match in _NUMBER.finditer(text):
        digits = re.sub(r"['\u00a0\u202f]", "", match["digits"])
        readings = {digits.replace(",", ""), digits.replace(".", "").replace(",", ".")}
        readings |= {digits.replace(",", ".")}
        for reading in readings:
            if reading.count(".") > 1 or len(reading) > 40:
                continue
            number = float(reading)
            factor = match["factor"] or ""
            scaled = number / 100 if factor == "%" else number * _FACTORS.get(factor, 1.0)
            yield from (number, scaled)
            if match["sign"]:
                yield from (-number, -scaled)


def _iter_dates(*candidates: tuple[str, str, str]) -> Iterator[date]:
    for year, month, day in candidates:
        full = int(year) + (2000 if len(year) == 2 else 0)
        try:
            yield date(full, int(month), int(day))
        except ValueError:
            continue


def _iter_dates_in_years(
    day: str, month: str, year: str | None, today: Iterable[date]
) -> Iterator[date]:
    years = [year] if year else [f"{one.year + n:04}" for one in today for n in (-1, 0, 1)]
    for one in years:
        yield from _iter_dates((one, str(_MONTH[month[:3]]), day))


def _iter_times(hour: str, minute: str | None, half: str) -> Iterator[time]:
    number = int(hour) % 12 + (12 if half == "p" else 0) if half else int(hour)
    if number < 24 and int(minute or 0) < 60:
        yield time(number, int(minute or 0))


def _iter_relative_dates(text: str, today: Sequence[date]) -> Iterator[date]:
    """Yield the dates that relative expressions such as "tomorrow" or "in 3 days" may mean."""
    days = {"today": 0, "tonight": 0, "yesterday": -1, "tomorrow": 1, "next week": 7}
    offsets = [n for word, n in days.items() if re.search(rf"\b{word}\b", text)]
    offsets += [2] if "day after tomorrow" in text else []
    for count, unit in _IN_DAYS.findall(text):
        number = _NUMBER_WORDS.get(count, int(count) if count.isdecimal() and len(count) < 5 else 1)
        offsets.append(number * (7 if unit == "week" else 1))
    for base in today:
        for number, name in enumerate(_DAYS):
            if re.search(rf"\b{name}\b", text):
                ahead = (number - base.weekday()) % 7
                offsets += [ahead, ahead + 7, ahead - 7]
        yield from (base + timedelta(days=n) for n in offsets)


def possible_today(now: float) -> list[date]:
    """Return the possible dates of "today", which can differ between local time and UTC.

    Args:
        now: Current time, in seconds since the epoch.

    >>> len(possible_today(0.0)) >= 1
    True
    """
    return sorted({datetime.fromtimestamp(now).date(), datetime.fromtimestamp(now, UTC).date()})
