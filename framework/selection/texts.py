"""Preparation of texts for comparison, and general texts that no capability serves."""

from __future__ import annotations

import calendar
import re
from functools import cache
from importlib.resources import files

from capgraph.registry import Candidate

MAX_CHARACTERS = 4000  # of a task; longer tasks are cut
MAX_CLAUSES = 8

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATORS = re.compile(r"[_\-.&/]+")
_DIGIT = re.compile(r"\d")
_WORD = re.compile(r"\w+")
_VALUE = re.compile(
    r"(?:in|at|near|from|to|for)\s+(?P<place>[^\W\d_]{3,})\b"
    r"|(?<=[a-z,] )(?P<name>[A-Z][\w-]+(?:\s[A-Z][\w-]+)*)|(?<![\w-])-*+(?P<code>(?=[\w-]*\d)\w[\w-]*)",
)
_NAME = re.compile(
    r"\b(?:about|at|by|for|from|in|near|of|on|to)\s+(?P<name>[A-Z][\w-]+(?:\s[A-Z][\w-]+)*)"
    r"|(?<![\w-])-*+(?P<code>(?=[\w-]*\d)(?=[\w-]*[A-Z])\w[\w-]*)"
)
_DATE_NAMES = frozenset(map(str.lower, (*calendar.day_name, *calendar.month_name, "I")))
_PUNCTUATION = re.compile(r"[.!?:;,()]\s+|[.!?:;,()]$")
_CLAUSE = re.compile(
    r"[.;?!]\s+|(?<!\s)(?:\s*+,\s++|\s++)(?:and|then|also|while|plus)\s++(?:also\s++|then\s++)*"
    r"|(?<!\s)\s++as well as\s+",
    re.IGNORECASE,
)


def identifier_words(name: str) -> str:
    """Split an identifier into lowercase words, separated by spaces.

    >>> identifier_words("time_range_parsing"), identifier_words("NewsTool")
    ('time range parsing', 'news tool')
    """
    return _SEPARATORS.sub(" ", _CAMEL.sub(" ", name)).strip().lower()


def normalize(text: str) -> str:
    """Convert a text to lower case and replace every digit with 0.

    >>> normalize("Sales in 2015, week 31")
    'sales in 0000, week 00'
    """
    return _DIGIT.sub("0", text.lower())


def candidate_text(candidate: Candidate) -> str:
    """Join a candidate's name, description, and instructions into one text for matching.

    >>> candidate_text(Candidate("sum_up", "Adds numbers.", "Choose it for totals."))
    'sum up. Adds numbers. Choose it for totals.'
    """
    parts = (identifier_words(candidate.name) + ".", candidate.description, candidate.instructions)
    return " ".join(part.strip() for part in parts if part.strip())


def description_parts(candidate: Candidate) -> list[str]:
    """Split a candidate's description and instructions into parts at punctuation marks.

    The list is empty if there are fewer than two parts.

    >>> description_parts(Candidate("statistics", "Computes figures: mean, median, trend."))
    ['Computes figures', 'mean', 'median', 'trend']
    """
    text = f"{candidate.description} {candidate.instructions}"
    parts = [part.strip() for part in _PUNCTUATION.split(text)]
    parts = [part for part in parts if len(part) > 3]
    return parts if len(parts) > 1 else []


def split_clauses(task: str) -> list[str]:
    """Split a compound request into its clauses.

    The list is empty for a request with a single clause.

    >>> split_clauses("Find the hottest day and plot the daily highs")
    ['Find the hottest day', 'plot the daily highs']
    >>> split_clauses("Find the hottest day")
    []
    """
    parts = [part.strip() for part in _CLAUSE.split(task)]
    parts = [part for part in parts if len(part.split()) >= 3]
    return parts[:MAX_CLAUSES] if len(parts) > 1 else []


# Words that say nothing about the subject of a request.
_FUNCTION_WORDS = """
    a about all also am an and any are as at be been being but by can could did do does doing
    for from get give had has have having he her here him his how i if in into is it its just
    let like may me might mine must my need no not of off on one or our out please s shall she
    should show so some t tell than that the their them then there these they this those to too
    us use want was we were what when where which while who whom whose why will with would you
    your yours
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())


def unexplained_values(candidate: Candidate, task: str) -> list[str]:
    """Return the values in a request that do not appear in the candidate's own texts.

    A value is a word that follows a preposition, is capitalized within a sentence, or contains
    a digit.

    >>> rain = Candidate("rain", "Forecast the rain.", positives=("will it rain tomorrow?",))
    >>> unexplained_values(rain, "Will it rain in Paris tomorrow?")
    ['Paris']
    >>> unexplained_values(rain, "Will it rain tomorrow?")
    []
    """
    texts = [candidate_text(candidate), *candidate.positives, *candidate.parameters]
    known = {*_WORD.findall(" ".join(texts).lower().replace("_", " "))} | FUNCTION_WORDS
    values = [match[match.lastgroup or 0] for match in _VALUE.finditer(task)]
    return [v for v in dict.fromkeys(values) if not known.issuperset(_WORD.findall(v.lower()))]


def find_missing_names(task: str, text: str) -> list[str]:
    """Return the names and codes in a request that do not occur in a text.

    A name is capitalized and follows an English preposition. A code contains a digit and a
    capital letter. The names of months and weekdays are omitted.

    >>> find_missing_names("How warm is it in Oslo on Monday, at station B7?", "roof: 21 °C")
    ['Oslo', 'B7']
    >>> find_missing_names("How warm is it in Oslo?", "oslo: 21 °C")
    []
    """
    known = {*_WORD.findall(text.lower().replace("_", " "))} | _DATE_NAMES
    names = [match[match.lastgroup or 0] for match in _NAME.finditer(task)]
    return [n for n in dict.fromkeys(names) if not known.issuperset(_WORD.findall(n.lower()))]


@cache
def unrelated_texts() -> tuple[str, ...]:
    """Return general requests that serve as examples of "no capability fits".

    The classifier ignores a request that is similar to a candidate's texts.

    >>> "hello" in unrelated_texts()
    True
    """
    text = files("capgraph.selection").joinpath("unrelated.txt").read_text("utf-8")
    return tuple(text.splitlines())
