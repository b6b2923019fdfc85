"""The classifier behind the selectors: similarities in, a score for each candidate out.

It works on similarities between texts, whatever they come from, so words and sentence
vectors share it:

- regularised least squares ("ridge") gives every candidate its own evidence, so that
  several can fit one task. It is solved in closed form and is what a prototype (the
  mean of the examples) becomes when the examples of the others are taken into account;
- from 20 candidates with 5 examples each on, where telling close ones apart is the hard
  part, multinomial logistic regression over the same similarities is added.

General texts that no capability serves are trained against in both, which is what
makes "none fits" reliable when there are only a few capabilities.
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

MAX_ROWS = 4000  # bounds the time and memory of a fit; above it, examples are pooled
_RIDGE = 0.3
_NEGATIVE_TARGET = -1.0
_LOGISTIC_PENALTY = 1 / 30
_LOGISTIC_STEPS = 100
_LOGISTIC_FROM = (20, 5.0)  # candidates, and mean examples of each
_LOGISTIC_WORK = 5e8  # rows squared times candidates: some seconds; ridge alone above
_PIECES_FROM = 3
_PARAMETERS_WORTH = 0.15  # of an example
_RIDGE_SHARE = 0.25  # of the evidence when logistic regression gives the rest


@dataclass(frozen=True)
class Calibration:
    """From which evidence on a candidate fits; more examples give stronger evidence.

    The threshold rises from ``base_threshold`` (description only) towards ``max_threshold`` as examples
    are added; with logistic regression it is ``logistic_threshold + logistic_slope * example_counts``.
    """

    base_threshold: float
    max_threshold: float
    logistic_threshold: float
    logistic_slope: float
    max_unrelated_similarity: (
        float  # similarity to a capability's text that ends a text's use as unrelated
    )

    def thresholds(self, examples: Array, logistic: bool) -> Array:
        """Return one threshold for each candidate from its number of examples."""
        if logistic:
            rising: Array = self.logistic_threshold + self.logistic_slope * np.minimum(examples, 15)
        else:
            rising = self.base_threshold + (self.max_threshold - self.base_threshold) * examples / (
                examples + 4.0
            )
        return rising


@dataclass(frozen=True)
class TrainingData:
    """The training texts of a set of candidates and what each should score.

    Attributes:
        texts: The candidates' texts first, then the unrelated ones.
        targets: One row for each text, one column for each candidate.
        candidate_text_count: How many of the texts come from the candidates.
        example_counts: Number of positive examples of each candidate; parameters count for a little.
    """

    texts: list[str]
    targets: Array
    candidate_text_count: int
    example_counts: Array

    @property
    def uses_logistic(self) -> bool:
        """Whether there are enough candidates and examples for logistic regression."""
        candidates = len(self.example_counts)
        return bool(
            candidates >= _LOGISTIC_FROM[0]
            and self.example_counts.mean() >= _LOGISTIC_FROM[1]
            and len(self.texts) ** 2 * candidates <= _LOGISTIC_WORK
        )


def collect_training_data(candidates: Sequence[Candidate]) -> TrainingData:
    """Collect the training texts; one that several candidates share is one row.

    Raises:
        ValidationError: Two candidates have one name.
    """
    names = [candidate.name for candidate in candidates]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValidationError(
            f"Several candidates are named {', '.join(map(repr, twice))}.",
            fix="Give every capability its own name.",
        )
    room = max(1, MAX_ROWS // max(1, len(candidates)) - 1)
    rows: dict[str, dict[int, float]] = {}

    def put(text: str, column: int, target: float) -> None:
        if text.strip():
            row = rows.setdefault(normalize(text.strip()), {})
            row[column] = max(row.get(column, target), target)

    for column, candidate in enumerate(candidates):
        put(candidate_text(candidate), column, 1.0)
        put(" ".join(map(identifier_words, candidate.parameters)), column, 1.0)
        for text in _pooled(candidate.positives, room):
            put(text, column, 1.0)
        if len(candidates) < _LOGISTIC_FROM[0] and len(candidate.positives) >= _PIECES_FROM:
            # A request often takes up one word of a list in the description, which counts
            # for little in the whole. Without examples beside them pieces mislead.
            for text in description_parts(candidate):
                put(text, column, 1.0)
        for text in _pooled(candidate.negatives, room):
            put(text, column, _NEGATIVE_TARGET)
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


def _pooled(texts: tuple[str, ...], room: int) -> list[str]:
    """Join texts so that at most ``room`` remain."""
    if len(texts) <= room:
        return list(texts)
    return ["\n".join(texts[start::room]) for start in range(room)]


class SimilarityClassifier:
    """A fitted classifier over the similarities of a task to the training texts."""

    def __init__(self, rows: TrainingData, gram: Array, calibration: Calibration) -> None:
        """Fit.

        Args:
            rows: The training texts.
            gram: Similarity of every training text to every other.
            calibration: The thresholds that belong to this kind of similarity.
        """
        near = gram[rows.candidate_text_count :, : rows.candidate_text_count].max(
            axis=1, initial=0.0
        )
        far = rows.candidate_text_count + np.flatnonzero(
            near < calibration.max_unrelated_similarity
        )
        self._kept = np.concatenate([np.arange(rows.candidate_text_count), far])
        gram = gram[np.ix_(self._kept, self._kept)]  # a copy, which fitting may overwrite
        targets = rows.targets[self._kept]
        self._logistic = _fit_logistic(gram, targets) if rows.uses_logistic else None
        gram.flat[:: len(gram) + 1] += _RIDGE
        self._ridge = np.linalg.solve(gram, targets)
        self._thresholds = calibration.thresholds(rows.example_counts, rows.uses_logistic)

    def evidence(self, similarities: Array) -> Array:
        """Return each candidate's evidence as a multiple of its threshold.

        Args:
            similarities: One row for each text, one column for each training text.

        Returns:
            One row for each text, one column for each candidate.
        """
        similarities = np.asarray(similarities, np.float32)[:, self._kept]
        found = multiply_in_thread(similarities, self._ridge)
        if self._logistic is not None:
            shares = _shares(multiply_in_thread(similarities + 1, self._logistic))
            found = shares[:, : found.shape[1]] + _RIDGE_SHARE * found
        evidence: Array = np.clip(found, 0.0, None) / self._thresholds
        return evidence


def multiply_in_thread(left: Array, right: Array) -> Array:
    """Multiply two matrices, the first with a few rows, in the calling thread.

    The linear algebra library would share the work among threads that wait for one another by
    spinning: on a busy machine that turns a millisecond into a hundred.
    """
    result: Array = np.einsum("ij,jk->ik", left, right)
    return result


def _shares(logits: Array) -> Array:
    """Turn logits into shares that sum to one, row by row."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Array = raised / raised.sum(axis=1, keepdims=True)
    return shares


def _fit_logistic(gram: Array, targets: Array) -> Array:
    """Fit multinomial logistic regression; the last class is "none of the candidates".

    The weights lie in the span of the texts, so one is found for each text and class. The
    curvature of the loss is bounded by that of a quadratic function which is the same for all
    classes and steps (Böhning 1992): one inverse serves every step, and momentum makes them few.
    Adding 1 to every similarity stands for the intercept.
    """
    wanted = np.hstack([targets > 0, ~(targets > 0).any(axis=1, keepdims=True)])
    wanted = (wanted / wanted.sum(axis=1, keepdims=True)).astype(np.float32)
    kernel = gram + np.float32(1)
    bound = kernel / 2
    bound.flat[:: len(bound) + 1] += np.float32(_LOGISTIC_PENALTY)
    inverse = np.linalg.inv(bound)
    weights = ahead = np.zeros_like(wanted)
    for step in range(_LOGISTIC_STEPS):
        slope = _shares(kernel @ ahead) - wanted + np.float32(_LOGISTIC_PENALTY) * ahead
        before, weights = weights, ahead - inverse @ slope
        ahead = weights + np.float32(step / (step + 3)) * (weights - before)
    fitted: Array = weights
    return fitted
