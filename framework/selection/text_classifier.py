"""Text classifier for a set of candidates, which combines TF-IDF and embedding similarities.

The two kinds of similarity complement each other: embeddings relate "rain" to "umbrella", and
character n-grams distinguish two part numbers.
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
    """Text classifier that compares a text with an index of its training texts.

    Args:
        rows: Training texts and their target evidence.
        vectors: Embeddings of the training texts, or ``None`` to use TF-IDF only.

    Raises:
        ModelError: ``vectors`` does not contain one vector of finite numbers for each text.
    """

    def __init__(self, rows: TrainingData, vectors: Sequence[Sequence[float]] | None) -> None:
        self._rows = rows
        self._index = TextIndex(rows.texts, damp=not rows.uses_logistic)
        gram = self._index.gram()
        if vectors is None:
            self._head = SimilarityClassifier(rows, gram, _LEXICAL)
            return
        raw = _to_array(vectors, len(rows.texts))
        # Many models embed all texts in a small region. Subtracting the mean of the general
        # texts makes the similarity of unrelated texts close to zero for any model.
        self._center: Array = raw[rows.candidate_text_count :].mean(axis=0)
        self._vectors = self._center_and_scale(raw)
        near = self._vectors @ self._vectors.T
        self._head = SimilarityClassifier(
            rows, _VECTOR_SHARE * near + (1 - _VECTOR_SHARE) * gram, _VECTORS
        )

    @property
    def is_exclusive(self) -> bool:
        """True if the candidates share a text's evidence, as in logistic regression."""
        return self._rows.uses_logistic

    def evidence(self, texts: Sequence[str], vectors: Sequence[Sequence[float]] | None) -> Array:
        """Compute each candidate's evidence as a multiple of its threshold, with one row per text.

        Args:
            texts: The task, followed by its clauses.
            vectors: Embeddings of the texts. ``None`` if the classifier was fitted without
                embeddings.

        Raises:
            ModelError: The vectors and the candidates' vectors differ in dimension.
        """
        similarities = self._index.similarities(texts)
        if vectors is not None:
            near = multiply_in_thread(
                self._center_and_scale(_to_array(vectors, len(texts))), self._vectors.T
            )
            similarities = _VECTOR_SHARE * near + (1 - _VECTOR_SHARE) * similarities
        return self._head.evidence(similarities)

    def unexplained_evidence(self, task: str) -> Callable[[Sequence[int]], Array]:
        """Return a function that scores the part of a task that chosen candidates do not explain.

        The function takes the columns of the chosen candidates. It ignores words that the texts of
        these candidates contain.
        """

        def evidence_beyond(columns: Sequence[int]) -> Array:
            explained_rows = np.flatnonzero((self._rows.targets[:, list(columns)] > 0).any(axis=1))
            evidence: Array = self._head.evidence(
                self._index.unexplained_similarities(task, explained_rows)
            )[0]
            return evidence

        return evidence_beyond

    def _center_and_scale(self, raw: Array) -> Array:
        if raw.shape[1] != self._center.shape[0]:
            raise ModelError(
                f"The embeddings have {raw.shape[1]} dimensions, but earlier ones have "
                f"{self._center.shape[0]}.",
                fix="Use one embedding model for documents and queries.",
            )
        centered = raw - self._center
        scaled: Array = centered / np.maximum(np.linalg.norm(centered, axis=1, keepdims=True), 1e-9)
        return scaled


def _to_array(vectors: Sequence[Sequence[float]], expected: int) -> Array:
    array: Array = np.asarray(vectors, np.float32)
    if array.ndim != 2 or len(array) != expected or not np.isfinite(array).all():
        raise ModelError(
            f"The embeddings of {expected} texts have the shape {array.shape} or contain values "
            "that are not finite.",
            fix="Return one vector of finite numbers for each text from the Embeddings object.",
        )
    return array
