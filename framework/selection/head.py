"""The classifier behind the selectors: similarities in, a score for each candidate out.

It works on similarities between texts, whatever they come from, so the lexical and
the sentence-vector selector share it:

- regularised least squares ("ridge") gives every candidate its own evidence, so that
  several can fit one task. It is solved in closed form and is what a prototype (the
  mean of the examples) becomes when the examples of the others are taken into account;
- from 20 candidates with 5 examples each on, where telling close ones apart is the hard
  part, multinomial logistic regression is added. It is fitted in the span of the
  examples, where it is small and exact.

General texts that no capability serves are trained against in both, which is what
makes "none fits" reliable when there are only a few capabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from framework.base import ValidationError, require_extra
from framework.registry import Candidate
from framework.selection.texts import UNRELATED, describe, normalise, pieces
from framework.selection.threads import one_blas_thread

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXTRA = "offline"
MAX_ROWS = 4000  # bounds the time and memory of a fit; above it, examples are pooled
_RIDGE = 0.3
_NEGATIVE_TARGET = -1.0
_LOGISTIC_C = 30.0
_LOGISTIC_FROM = (20, 5.0)  # candidates, and mean examples of each
_LOGISTIC_WORK = 5e8  # rows squared times candidates: some seconds; ridge alone above
_PIECES_FROM = 3
_RIDGE_SHARE = 0.25  # of the evidence when logistic regression gives the rest


@dataclass(frozen=True)
class Calibration:
    """From which evidence on a candidate fits; more examples give stronger evidence.

    The threshold rises from ``none`` (description only) towards ``many`` as examples
    are added; with logistic regression it is ``logistic + slope * examples``.
    """

    none: float
    many: float
    logistic: float
    slope: float
    drop_unrelated: float  # similarity to a capability's text that ends a text's use as unrelated

    def thresholds(self, examples: NDArray[Any], logistic: bool) -> NDArray[Any]:
        """Return one threshold for each candidate from its number of examples."""
        np = require_extra("numpy", EXTRA)
        rising: NDArray[Any]
        if logistic:
            rising = self.logistic + self.slope * np.minimum(examples, 15)
        else:
            rising = self.none + (self.many - self.none) * examples / (examples + 4.0)
        return rising


@dataclass(frozen=True)
class Rows:
    """The training texts of a set of candidates and what each should score.

    Attributes:
        texts: The candidates' texts first, then the unrelated ones.
        targets: One row for each text, one column for each candidate.
        own: How many of the texts come from the candidates.
        examples: Number of positive examples of each candidate.
    """

    texts: list[str]
    targets: NDArray[Any]
    own: int
    examples: NDArray[Any]

    @property
    def logistic(self) -> bool:
        """Whether there are enough candidates and examples for logistic regression."""
        candidates = len(self.examples)
        return bool(
            candidates >= _LOGISTIC_FROM[0]
            and self.examples.mean() >= _LOGISTIC_FROM[1]
            and len(self.texts) ** 2 * candidates <= _LOGISTIC_WORK
        )


def training_rows(candidates: Sequence[Candidate]) -> Rows:
    """Collect the training texts; one that several candidates share is one row.

    Raises:
        ValidationError: Two candidates have one name.
    """
    np = require_extra("numpy", EXTRA)
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
            row = rows.setdefault(normalise(text.strip()), {})
            row[column] = max(row.get(column, target), target)

    for column, candidate in enumerate(candidates):
        put(describe(candidate), column, 1.0)
        for text in _pooled(candidate.positives, room):
            put(text, column, 1.0)
        if len(candidates) < _LOGISTIC_FROM[0] and len(candidate.positives) >= _PIECES_FROM:
            # A request often takes up one word of a list in the description, which counts
            # for little in the whole. Without examples beside them pieces mislead.
            for text in pieces(candidate):
                put(text, column, 1.0)
        for text in _pooled(candidate.negatives, room):
            put(text, column, _NEGATIVE_TARGET)
    texts = list(rows)
    targets = np.zeros((len(texts) + len(UNRELATED), len(candidates)), np.float32)
    for index, row in enumerate(rows.values()):
        for column, target in row.items():
            targets[index, column] = target
    examples = np.array([len(candidate.positives) for candidate in candidates], np.float64)
    return Rows([*texts, *UNRELATED], targets, len(texts), examples)


def _pooled(texts: tuple[str, ...], room: int) -> list[str]:
    """Join texts so that at most ``room`` remain."""
    if len(texts) <= room:
        return list(texts)
    return ["\n".join(texts[start::room]) for start in range(room)]


class Head:
    """A fitted classifier over the similarities of a task to the training texts."""

    def __init__(self, rows: Rows, gram: NDArray[Any], calibration: Calibration) -> None:
        """Fit.

        Args:
            rows: The training texts.
            gram: Similarity of every training text to every other.
            calibration: The thresholds that belong to this kind of similarity.
        """
        np = require_extra("numpy", EXTRA)
        near = gram[rows.own :, : rows.own].max(axis=1, initial=0.0)
        far = rows.own + np.flatnonzero(near < calibration.drop_unrelated)
        self._kept = np.concatenate([np.arange(rows.own), far])
        gram = gram[np.ix_(self._kept, self._kept)]
        targets = rows.targets[self._kept]
        with one_blas_thread():
            self._logistic = _fit_logistic(gram, targets) if rows.logistic else None
            self._ridge = _fit_ridge(gram, targets)
        self._thresholds = calibration.thresholds(rows.examples, rows.logistic)

    def evidence(self, similarities: NDArray[Any]) -> NDArray[Any]:
        """Return each candidate's evidence as a multiple of its threshold.

        Args:
            similarities: One row for the task, then one for each of its clauses; one
                column for each training text.
        """
        np = require_extra("numpy", EXTRA)
        similarities = np.asarray(similarities, np.float32)[:, self._kept]
        with one_blas_thread():
            found = similarities @ self._ridge
            if self._logistic is not None:
                weights, intercept = self._logistic
                special = require_extra("scipy.special", EXTRA)
                shares = special.softmax(similarities @ weights + intercept, axis=1)
                found = shares[:, : found.shape[1]] + _RIDGE_SHARE * found
        # A clause has lost the rest of the request: it brings in what the whole hides, but
        # what resembles the whole most comes first.
        found = np.clip(found, 0.0, None) / self._thresholds
        strongest = found.max(axis=0)
        strongest[found[0].argmax()] = 1.001 * strongest.max()  # more than equal: no tie
        return strongest  # type: ignore[no-any-return]


def _fit_ridge(gram: NDArray[Any], targets: NDArray[Any]) -> NDArray[Any]:
    """Solve regularised least squares for all candidates at once; overwrites ``gram``."""
    linalg = require_extra("scipy.linalg", EXTRA)
    gram.flat[:: len(gram) + 1] += _RIDGE
    # Single precision and in place (the transpose of a symmetric matrix is in the order
    # that this needs): with a thousand candidates the matrix has 64 MB.
    solved: NDArray[Any] = linalg.solve(gram.T, targets, assume_a="pos", overwrite_a=True)
    return solved


def _fit_logistic(gram: NDArray[Any], targets: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Fit multinomial logistic regression; the last class is "none of the candidates"."""
    np = require_extra("numpy", EXTRA)
    linalg = require_extra("scipy.linalg", EXTRA)
    linear_model = require_extra("sklearn.linear_model", EXTRA)
    # A text that several candidates share stands once for each of them.
    row, label = np.nonzero(targets > 0)
    alone = np.flatnonzero(~(targets > 0).any(axis=1))
    rows = np.concatenate([row, alone])
    labels = np.concatenate([label, np.full(len(alone), targets.shape[1])])
    # The weights lie in the span of the texts (L2 penalty), so the rows of a Cholesky
    # factor are features that lose nothing and are far fewer than the n-grams.
    factor = np.linalg.cholesky(gram.astype(np.float64) + 1e-4 * np.eye(len(gram)))
    model = linear_model.LogisticRegression(C=_LOGISTIC_C, max_iter=1000, tol=1e-4)
    model.fit(factor[rows].astype(np.float32), labels)
    weights = linalg.solve_triangular(factor.T, model.coef_.T, lower=False)
    return weights.astype(np.float32), model.intercept_
