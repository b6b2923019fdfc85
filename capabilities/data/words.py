"""Functions that split texts and column names into normalized words."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)?", re.UNICODE)
_CAMEL_BOUNDARY = re.compile(
    r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=\D)(?=\d)|(?<=\d)(?=\D)"
)
_UNINFLECTED_WORDS = {
    "news", "gas", "bus", "gross", "mass", "class", "less", "loss", "address", "process", "status",
    "business", "series", "species", "celsius", "ibm", "aws", "us", "is", "was", "has", "this",
    "analysis", "basis", "plus", "minus", "always", "across", "stress", "pressure", "iris", "gps",
    "sms", "access", "success", "illness", "happiness", "darkness", "previous", "various", "as",
}  # fmt: skip


@dataclass(frozen=True)
class Word:
    """Word of a text, with its position and normalized form.

    Attributes:
        text: Word as written.
        stem: Normalized form for comparisons.
        begin: Start index in the text.
        end: End index in the text.
    """

    text: str
    stem: str
    begin: int
    end: int


def word_set(text: str) -> frozenset[str]:
    """Split a string at whitespace and return its words as a frozen set.

    >>> sorted(word_set("low high"))
    ['high', 'low']
    """
    return frozenset(text.split())


def fold(text: str) -> str:
    """Convert a string to lowercase and remove accents.

    >>> fold("Größe Été")
    'grosse ete'
    """
    if text.isascii():
        return text.casefold()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(char for char in decomposed if not unicodedata.combining(char))


def stem(word: str) -> str:
    """Normalize a word to singular, lowercase, and unaccented form.

    >>> [stem(word) for word in ("Temperatures", "cities", "boxes", "glass", "news")]
    ['temperature', 'city', 'box', 'glass', 'news']
    """
    text = fold(word).removesuffix("'s").replace("'", "")
    if (
        text in _UNINFLECTED_WORDS
        or len(text) <= 3
        or not text.endswith("s")
        or text.endswith("ss")
    ):
        return text
    if text.endswith("ies") and len(text) > 4:
        return text[:-3] + "y"
    if text.endswith(("xes", "ches", "shes", "sses", "zzes")):
        return text[:-2]
    return text if text.endswith(("us", "is")) else text[:-1]


def split_words(text: str) -> list[Word]:
    """Split a text into words, with the position and normalized form of each word.

    >>> [word.stem for word in split_words("Compare daily highs!")]
    ['compare', 'daily', 'high']
    """
    return [
        Word(match[0], stem(match[0]), match.start(), match.end())
        for match in _TOKEN.finditer(text)
    ]


def split_name(name: str) -> list[str]:
    """Split a column or file name into normalized words.

    >>> split_name("Temp_Max (°C)"), split_name("netGeneration2")
    (['temp', 'max', 'c'], ['net', 'generation', '2'])
    """
    pieces: list[str] = []
    for token in _TOKEN.findall(name):
        pieces += _CAMEL_BOUNDARY.split(token) if not token.isupper() else [token]
    return [stem(piece) for piece in pieces if piece]


def blank_spans(text: str, spans: list[tuple[int, int]]) -> str:
    """Replace parts of a text with spaces, so that the remaining indexes do not change.

    >>> blank_spans("in 2015 or so", [(0, 7)])
    '        or so'
    """
    for begin, end in spans:
        text = text[:begin] + " " * (end - begin) + text[end:]
    return text
