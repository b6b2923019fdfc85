"""Classifier behind the selectors: text similarities in, evidence for each candidate out.

It works on similarities between texts, so that TF-IDF and embeddings share it:

- Ridge regression computes the evidence for each candidate independently, so that several
  candidates can fit one task. It is solved in closed form.
- From 20 candidates with 5 examples each, multinomial logistic regression on the same similarities
  is added, which separates similar candidates better.

Both are also trained on general texts that no capability serves, which makes "no candidate fits"
reliable with few capabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capgraph.base import ValidationError
from capgraph.registry import Candidate
from capgraph.selection.texts import (
    candidate_text,
    description_parts,
    identifier_words,
    normalize,
    unrelated_texts,
)
from capgraph.selection.tfidf import Array

MAX_ROWS = 4000  # limits the time and memory of a fit; more examples are pooled
_RIDGE = 0.3
_NEGATIVE_TARGET = -1.0
_LOGISTIC_PENALTY = 1 / 30
_LOGISTIC_STEPS = 100
_LOGISTIC_FROM = (20, 5.0)  # candidates, and mean examples of each
_LOGISTIC_WORK = 5e8  # maximum of rows squared times candidates, which takes a few seconds
_TYPICAL_AGREEMENT = 0.35  # ridge evidence for an example that is left out, on the tuning data
_AGREEMENT_POWER = 2
_MIN_AGREEMENT = 0.5  # of the typical one
_PIECES_FROM = 3
_PARAMETERS_WORTH = 0.15  # of an example
_RIDGE_SHARE = 0.25  # of the evidence when logistic regression gives the rest


@dataclass(frozen=True)
class Calibration:
    """Parameters for the thresholds above which a candidate matches a task.

    The thresholds rise with a candidate's number of examples.

    Attributes:
        base_threshold: Threshold for a candidate without examples.
        max_threshold: Value that the threshold approaches as examples are added.
        logistic_threshold: Threshold for a candidate without examples if logistic regression is
            used.
        logistic_slope: Increase of ``logistic_threshold`` for each example.
        max_unrelated_similarity: Maximum similarity between a general text and a candidate's
            text. General texts with a higher similarity are ignored.
    """

    base_threshold: float
    max_threshold: float
    logistic_threshold: float
    logistic_slope: float
    max_unrelated_similarity: float

    def thresholds(self, examples: Array, logistic: bool) -> Array:
        """Compute the evidence threshold above which each candidate matches.

        Args:
            examples: Number of examples for each candidate.
            logistic: Whether the evidence is computed by logistic regression.
        """
        if logistic:
            rising: Array = self.logistic_threshold + self.logistic_slope * np.minimum(examples, 15)
        else:
            rising = self.base_threshold + (self.max_threshold - self.base_threshold) * examples / (
                examples + 4.0
            )
        return rising


@dataclass(frozen=True)
class TrainingData:
    """Training texts for a set of candidates, with the target evidence for each text.

    Attributes:
        texts: The candidates' texts, followed by the general texts.
        targets: Target evidence, with one row for each text and one column for each candidate.
        candidate_text_count: Number of texts that belong to the candidates.
        example_counts: Number of positive examples for each candidate. Each parameter counts as
            a fraction of an example.
    """

    texts: list[str]
    targets: Array
    candidate_text_count: int
    example_counts: Array

    @property
    def uses_logistic(self) -> bool:
        """True if there are enough candidates and examples for logistic regression."""
        candidates = len(self.example_counts)
        return bool(
            candidates >= _LOGISTIC_FROM[0]
            and self.example_counts.mean() >= _LOGISTIC_FROM[1]
            and len(self.texts) ** 2 * candidates <= _LOGISTIC_WORK
        )


def collect_training_data(candidates: Sequence[Candidate]) -> TrainingData:
    """Collect the training texts of a set of candidates.

    A text that several candidates share becomes a single row.

    Raises:
        ValidationError: Two candidates have the same name.
    """
    names = [candidate.name for candidate in candidates]
    if len(set(names)) < len(names):
        duplicates = sorted({name for name in names if names.count(name) > 1})
        raise ValidationError(
            f"Candidate names must be unique, but these names are repeated: {', '.join(map(repr, duplicates))}.",
            fix="Use a different name for each capability.",
        )
    max_texts = max(1, MAX_ROWS // max(1, len(candidates)) - 1)
    rows: dict[str, dict[int, float]] = {}

    def add_text(text: str, column: int, target: float) -> None:
        if text.strip():
            row = rows.setdefault(normalize(text.strip()), {})
            row[column] = max(row.get(column, target), target)

    for column, candidate in enumerate(candidates):
        add_text(candidate_text(candidate), column, 1.0)
        add_text(" ".join(map(identifier_words, candidate.parameters)), column, 1.0)
        for text in _pool_texts(candidate.positives, max_texts):
            add_text(text, column, 1.0)
        if len(candidates) < _LOGISTIC_FROM[0] and len(candidate.positives) >= _PIECES_FROM:
            # A request often matches one word of a list in the description, which has little
            # weight in the whole text. Without examples, such parts are misleading.
            for text in description_parts(candidate):
                add_text(text, column, 1.0)
        for text in _pool_texts(candidate.negatives, max_texts):
            add_text(text, column, _NEGATIVE_TARGET)
    texts = list(rows)
    general = unrelated_texts()
    targets = np.zeros((len(texts) + len(general), len(candidates)), np.float32)
    for index, row in enumerate(rows.values()):
        for column, target in row.items():
            targets[index, column] = target
    examples = np.array(
        [len(c.positives) + (_PARAMETERS_WORTH if c.parameters else 0) for c in candidates]
    )
    return TrainingData([*texts, *general], targets, len(texts), examples)


def _pool_texts(texts: tuple[str, ...], max_texts: int) -> list[str]:
    """Join texts with newlines so that at most ``max_texts`` strings remain."""
    if len(texts) <= max_texts:
        return list(texts)
    return ["\n".join(texts[start::max_texts]) for start in range(max_texts)]


class SimilarityClassifier:
    """Text classifier that is fitted to the pairwise similarities of its training texts."""

    def __init__(self, rows: TrainingData, gram: Array, calibration: Calibration) -> None:
        """Fit the classifier to the training texts.

        Args:
            rows: Training texts with their target evidence.
            gram: Matrix of pairwise similarities between the training texts.
            calibration: Threshold parameters for this kind of similarity.
        """
        near = gram[rows.candidate_text_count :, : rows.candidate_text_count].max(
            axis=1, initial=0.0
        )
        far = rows.candidate_text_count + np.flatnonzero(
            near < calibration.max_unrelated_similarity
        )
        self._row_indices = np.concatenate([np.arange(rows.candidate_text_count), far])
        # Indexing copies the matrix, so that fitting may overwrite it.
        gram = gram[np.ix_(self._row_indices, self._row_indices)]
        targets = rows.targets[self._row_indices]
        self._logistic = _fit_logistic(gram, targets) if rows.uses_logistic else None
        gram.flat[:: len(gram) + 1] += _RIDGE
        self._thresholds = calibration.thresholds(rows.example_counts, rows.uses_logistic)
        if not rows.uses_logistic:
            self._ridge = np.linalg.solve(gram, targets)
        else:
            inverse = np.linalg.inv(gram)
            self._ridge = inverse @ targets
            agreement = _mean_left_out_evidence(inverse, self._ridge, targets) / _TYPICAL_AGREEMENT
            self._thresholds *= min(1.0, max(_MIN_AGREEMENT, agreement)) ** _AGREEMENT_POWER

    def evidence(self, similarities: Array) -> Array:
        """Compute each candidate's evidence as a multiple of its threshold.

        Args:
            similarities: Similarity matrix with a row for each text and a column for each training
                text.

        Returns:
            Evidence matrix with a row for each text and a column for each candidate.
        """
        similarities = np.asarray(similarities, np.float32)[:, self._row_indices]
        found = multiply_in_thread(similarities, self._ridge)
        if self._logistic is not None:
            shares = _softmax(multiply_in_thread(similarities + 1, self._logistic))
            found = shares[:, : found.shape[1]] + _RIDGE_SHARE * found
        evidence: Array = np.clip(found, 0.0, None) / self._thresholds
        return evidence


def _mean_left_out_evidence(inverse: Array, ridge: Array, targets: Array) -> float:
    """Compute the mean leave-one-out evidence of the examples for their own candidates.

    If the examples are not similar to each other, requests are not similar to them either, so
    the threshold must be lower. Ridge regression provides the leave-one-out evidence in closed
    form.
    """
    left_out = targets - ridge / np.diag(inverse)[:, None]
    own = np.where(targets > 0, left_out, -np.inf).max(axis=1)
    found = own[np.isfinite(own)]
    return max(0.0, float(found.mean())) if len(found) else 1.0


def multiply_in_thread(first: Array, second: Array) -> Array:
    """Multiply a matrix with few rows by a second matrix in the calling thread.

    BLAS would distribute the work across threads that spin while they wait, which is a hundred
    times slower on a busy machine.
    """
    result: Array = np.einsum("ij,jk->ik", first, second)
    return result


def _softmax(logits: Array) -> Array:
    """Return the softmax of each row."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Array = raised / raised.sum(axis=1, keepdims=True)
    return shares


def _fit_logistic(gram: Array, targets: Array) -> Array:
    """Fit multinomial logistic regression with an extra "none of the candidates" class.

    The weights are a linear combination of the training texts, so one weight is fitted for each
    text and class. A quadratic function bounds the curvature of the loss for all classes and
    steps (Böhning 1992), so one matrix inverse suffices for every step. Momentum reduces the
    number of steps. Adding 1 to every similarity represents the intercept.
    """
    expected = np.hstack([targets > 0, ~(targets > 0).any(axis=1, keepdims=True)])
    expected = (expected / expected.sum(axis=1, keepdims=True)).astype(np.float32)
    kernel = gram + np.float32(1)
    bound = kernel / 2
    bound.flat[:: len(bound) + 1] += np.float32(_LOGISTIC_PENALTY)
    inverse = np.linalg.inv(bound)
    weights = ahead = np.zeros_like(expected)
    for step in range(_LOGISTIC_STEPS):
        gradient = _softmax(kernel @ ahead) - expected + np.float32(_LOGISTIC_PENALTY) * ahead
        previous, weights = weights, ahead - inverse @ gradient
        ahead = weights + np.float32(step / (step + 3)) * (weights - previous)
    fitted: Array = weights
    return fitted
