"""TF-IDF similarity of texts, based on their words and character n-grams."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capgraph.selection.texts import FUNCTION_WORDS, normalize

_WORD = re.compile(r"\w+")
_LENGTHS = (2, 3, 4)  # of character sequences
_WORD_SHARE = 0.3  # of the similarity; character sequences give the rest
_FUNCTION_WORD_WEIGHT = 0.2

Array = NDArray[Any]
Vector = tuple[Array, Array]  # columns, and their weights


class _Features:
    """TF-IDF features of one kind, such as word or character n-grams.

    Each unit vector is scaled by the share of this kind in the total similarity.
    """

    def __init__(
        self, split: Callable[[str], Iterator[str]], texts: Sequence[str], first: int, share: float
    ) -> None:
        self._split = split
        self._share = share**0.5
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(set(split(text)))
        self.columns = {feature: first + index for index, feature in enumerate(counts)}
        seen = np.fromiter(counts.values(), np.float32, len(counts))
        self.rarity: Array = np.log((1 + len(texts)) / (1 + seen)) + 1
        self._first = first

    def vector(self, text: str) -> Vector:
        counts = Counter(feature for feature in self._split(text) if feature in self.columns)
        columns = np.fromiter((self.columns[f] for f in counts), np.int64, len(counts))
        often = np.fromiter(counts.values(), np.float32, len(counts))
        weights = (1 + np.log(often)) * self.rarity[columns - self._first]
        length = float(np.sqrt((weights**2).sum()))
        return columns, weights * np.float32(self._share / length if length else 0.0)


class TextIndex:
    """Text index that computes similarities to a fixed set of texts.

    Args:
        texts: Texts to index.
        damp: True to reduce the weight of function words. Few texts share such words mostly by
            chance, but with many texts they help to distinguish requests.

    >>> index = TextIndex(["the price of tea", "a long walk"], damp=True)
    >>> index.similarities(["tea prices"]).argmax()
    np.int64(0)
    """

    def __init__(self, texts: Sequence[str], *, damp: bool) -> None:
        plain = [_strip_punctuation(text) for text in texts]
        self._words = _Features(_word_sequences, plain, 0, _WORD_SHARE)
        if damp:
            for feature, column in self._words.columns.items():
                if FUNCTION_WORDS.issuperset(feature.split()):
                    self._words.rarity[column] *= _FUNCTION_WORD_WEIGHT
        first = len(self._words.columns)
        self._characters = _Features(_character_sequences, plain, first, 1 - _WORD_SHARE)
        self._vectors = [self._vector(text) for text in plain]
        # Inverted index: for each feature, the texts that have it.
        rows = np.repeat(np.arange(len(plain)), [len(columns) for columns, _ in self._vectors])
        columns = np.concatenate([columns for columns, _ in self._vectors])
        order = np.argsort(columns, kind="stable")
        self._rows = rows[order]
        self._weights = np.concatenate([weights for _, weights in self._vectors])[order]
        counts = np.bincount(columns, minlength=first + len(self._characters.columns))
        self._starts = np.concatenate([[0], np.cumsum(counts)])

    def gram(self) -> Array:
        """Compute the matrix of similarities between all pairs of indexed texts."""
        out = np.zeros((len(self._vectors),) * 2, np.float32)
        reached = np.zeros(len(self._starts) - 1, np.int64)
        for row, vector in enumerate(self._vectors):
            # Rows are sorted for each feature, so only half of the matrix is computed.
            reached[vector[0]] += 1
            out[row] = self._similarity_row(vector, reached[vector[0]])
        out += np.tril(out, -1).T
        return out

    def similarities(self, texts: Sequence[str]) -> Array:
        """Compute the similarity of each text to every indexed text."""
        return np.stack([self._compare(self._vector(_strip_punctuation(text))) for text in texts])

    def unexplained_similarities(self, text: str, rows: Array) -> Array:
        """Compute a text's similarities to the indexed texts, ignoring explained features.

        A feature is explained if one of the indexed texts at ``rows`` contains it.

        Args:
            text: Text to compare.
            rows: Indices of the indexed texts whose features are ignored.
        """
        columns, weights = self._vector(_strip_punctuation(text))
        known = np.concatenate([self._vectors[row][0] for row in rows])
        left = ~np.isin(columns, known)
        return self._compare((columns[left], weights[left]))[None]

    def _compare(self, vector: Vector) -> Array:
        return self._similarity_row(vector, self._starts[vector[0] + 1] - self._starts[vector[0]])

    def _vector(self, plain: str) -> Vector:
        words, characters = self._words.vector(plain), self._characters.vector(plain)
        return np.concatenate([words[0], characters[0]]), np.concatenate([words[1], characters[1]])

    def _similarity_row(self, vector: Vector, counts: Array) -> Array:
        columns, weights = vector
        # Positions of all texts that have any of the features: concatenated ranges.
        before = np.cumsum(counts) - counts
        places = np.arange(counts.sum()) + np.repeat(self._starts[columns] - before, counts)
        shared = self._weights[places] * np.repeat(weights, counts)
        return np.bincount(self._rows[places], shared, len(self._vectors)).astype(np.float32)


def _strip_punctuation(text: str) -> str:
    text = normalize(text)
    if text.isascii():
        return text
    parts = unicodedata.normalize("NFKD", text)
    return "".join(char for char in parts if not unicodedata.combining(char))


def _word_sequences(text: str) -> Iterator[str]:
    words = _WORD.findall(text)
    yield from words
    for first, second in itertools.pairwise(words):
        yield f"{first} {second}"


def _character_sequences(text: str) -> Iterator[str]:
    """Yield the character n-grams of each word, padded with a space at both ends."""
    for word in text.split():
        padded = f" {word} "
        for length in _LENGTHS:
            if length >= len(padded):
                yield padded
                break
            for start in range(len(padded) - length + 1):
                yield padded[start : start + length]
