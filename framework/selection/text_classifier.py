"""A set of candidates, fitted: from the texts of a task to the evidence for each of them.

Vectors and TF-IDF similarities are added, since each finds what the other misses: vectors know
that "rain" and "umbrella" belong together, n-grams that two part numbers differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from capgraph.base import ModelError
from capgraph.selection.similarity_classifier import (
    Calibration,
    SimilarityClassifier,
    TrainingData,
    multiply_in_thread,
)
from capgraph.selection.tfidf import Array, TextIndex

_LEXICAL = Calibration(
    base_threshold=0.10,
    max_threshold=0.40,
    logistic_threshold=0.10,
    logistic_slope=0.01,
    max_unrelated_similarity=0.35,
)
_VECTORS = Calibration(
    base_threshold=0.13,
    max_threshold=0.50,
    logistic_threshold=0.14,
    logistic_slope=0.02,
    max_unrelated_similarity=0.50,
)
_VECTOR_SHARE = np.float32(0.8)  # of the similarity; TF-IDF gives the rest


class TextClassifier:
    """A fitted head with what it needs to compare texts.

    Args:
        rows: The training texts.
        vectors: Their sentence vectors, or ``None`` to go by words alone.

    Raises:
        ModelError: The vectors are not one of finite numbers for each text.
    """

    def __init__(self, rows: TrainingData, vectors: Sequence[Sequence[float]] | None) -> None:
        self._rows = rows
        self._index = TextIndex(rows.texts, damp=not rows.uses_logistic)
        gram = self._index.gram()
        if vectors is None:
            self._head = SimilarityClassifier(rows, gram, _LEXICAL)
            return
        raw = _array(vectors, len(rows.texts))
        # Many models put all texts in one corner of the space. Seen from the middle of
        # the general texts, unrelated texts have a similarity near zero with any model.
        self._centre: Array = raw[rows.candidate_text_count :].mean(axis=0)
        self._vectors = self._scaled(raw)
        near = self._vectors @ self._vectors.T
        self._head = SimilarityClassifier(
            rows, _VECTOR_SHARE * near + (1 - _VECTOR_SHARE) * gram, _VECTORS
        )

    def evidence(self, texts: Sequence[str], vectors: Sequence[Sequence[float]] | None) -> Array:
        """Return each candidate's evidence as a multiple of its threshold, a row for each text.

        Args:
            texts: The task, then its clauses.
            vectors: Their sentence vectors, if the candidates have some.

        Raises:
            ModelError: The vectors are unlike those of the candidates.
        """
        similarities = self._index.similarities(texts)
        if vectors is not None:
            near = multiply_in_thread(self._scaled(_array(vectors, len(texts))), self._vectors.T)
            similarities = _VECTOR_SHARE * near + (1 - _VECTOR_SHARE) * similarities
        return self._head.evidence(similarities)

    def unexplained_evidence(self, task: str) -> Callable[[Sequence[int]], Array]:
        """Return what gives the evidence of a task beyond the words of some candidates."""

        def beyond(columns: Sequence[int]) -> Array:
            own = np.flatnonzero((self._rows.targets[:, list(columns)] > 0).any(axis=1))
            evidence: Array = self._head.evidence(self._index.unexplained_similarities(task, own))[
                0
            ]
            return evidence

        return beyond

    def _scaled(self, raw: Array) -> Array:
        if raw.shape[1] != self._centre.shape[0]:
            raise ModelError(
                f"The embeddings gave vectors of {raw.shape[1]} dimensions after vectors of "
                f"{self._centre.shape[0]}.",
                fix="Use one embedding model for documents and queries.",
            )
        moved = raw - self._centre
        scaled: Array = moved / np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-9)
        return scaled


def _array(vectors: Sequence[Sequence[float]], expected: int) -> Array:
    array: Array = np.asarray(vectors, np.float32)
    if array.ndim != 2 or len(array) != expected or not np.isfinite(array).all():
        raise ModelError(
            f"The embeddings gave an array of shape {array.shape} for {expected} texts, "
            "or values that are not finite.",
            fix="Check the Embeddings object: one vector of finite numbers for each text.",
        )
    return array
