"""Choice of the candidates that a request needs, from the evidence for each.

A candidate with examples has learned which requests need it. A candidate without examples is known
only by its own words, which its siblings often share. It is therefore chosen in addition to others
only if the request has unexplained words, or if one clause clearly belongs to it. The required
evidence rises with the number of candidates, because the best of many candidates scores high by
chance. The constants were tuned on the data that ``tests/benchmarks/function_choice.py`` names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from capgraph.selection.tfidf import Array

_NEARLY = 0.8
# Logistic regression divides the evidence of a text among the candidates, so a second one that the
# text needs, too, is nearly as strong as the first.
_EXCLUSIVE_POWER = 0.3
# Minimum evidence: a constant, plus a term that is multiplied by the log of the number of candidates.
_MIN_UNEXPLAINED = (0.25, 0.10)  # of the unexplained words
_MIN_CLAUSE = (0.30, 0.15)  # of a clause
_MAX_FIRST_SHARE = 0.65  # of a clause's evidence, for the first candidate


def max_evidence(evidence: Array) -> Array:
    """Return each candidate's highest similarity score for a task and its clauses.

    The best candidate for the whole task always ranks first, because a clause lacks the context
    of the rest of the request.
    """
    found: Array = evidence.max(axis=0)
    found[evidence[0].argmax()] = 1.001 * found.max()  # avoids a tie
    return found


def choose_candidates(
    evidence: Array,
    has_examples: Sequence[bool],
    unexplained_evidence: Callable[[Sequence[int]], Array] | None,
    margin: float,
    min_evidence: float,
    is_exclusive: bool = False,
) -> Array:
    """Choose the capabilities that a task needs, based on similarity scores.

    The best candidate must itself fit the task.

    Args:
        evidence: Evidence (similarity scores) with one row for the task and one for each clause,
            and one column for each candidate. Excluded candidates have an evidence of 0.
        has_examples: Whether each candidate has examples.
        unexplained_evidence: Function that returns the evidence in the words of the task that
            the chosen candidates do not explain. ``None`` treats all candidates as if they had
            examples.
        margin: Minimum evidence for an additional candidate with examples, as a fraction of the
            highest evidence. A candidate that nearly fits on its own is also chosen.
        min_evidence: Minimum evidence with which a candidate fits on its own.
        is_exclusive: Whether the evidence for a text is divided among the candidates, as in
            logistic regression.

    Returns:
        A Boolean mask with one entry for each candidate.
    """
    values = max_evidence(evidence)
    if is_exclusive:
        return _choose_exclusive(evidence, margin**_EXCLUSIVE_POWER, min_evidence)
    # The clauses of a compound request weaken each other, hence "nearly".
    fitting: Array = values >= min(margin * values.max(), _NEARLY * min_evidence)
    if unexplained_evidence is None or all(has_examples):
        return fitting
    first = int(values.argmax())
    log_count = np.log(evidence.shape[1])
    chosen = [
        first,
        *_choose_by_clause(
            evidence, first, min_evidence * (_MIN_CLAUSE[0] + _MIN_CLAUSE[1] * log_count)
        ),
    ]
    min_unexplained = min_evidence * (_MIN_UNEXPLAINED[0] + _MIN_UNEXPLAINED[1] * log_count)
    while True:
        additional = fitting & (unexplained_evidence(chosen) >= min_unexplained)
        additional[chosen] = False
        if not additional.any():
            break
        chosen.append(int(np.where(additional, values, -1.0).argmax()))
    chosen_mask = np.zeros(len(values), bool)
    chosen_mask[chosen] = True
    result: Array = np.where(has_examples, fitting, chosen_mask)
    return result


def _choose_exclusive(evidence: Array, margin: float, min_evidence: float) -> Array:
    """Choose the best candidates for a task, and the best fitting candidate for each clause."""
    chosen: Array = evidence[0] >= margin * evidence[0].max()
    chosen[max_evidence(evidence).argmax()] = True
    for row in evidence[1:]:
        chosen |= (row == row.max()) & (row >= min_evidence)
    return chosen


def _choose_by_clause(evidence: Array, first: int, min_evidence: float) -> list[int]:
    """Choose the best candidate for each clause that the first candidate does not cover."""
    best = [int(column) for column in evidence[1:].argmax(axis=1)]
    if first not in best:
        return []
    return [
        column
        for row, column in zip(evidence[1:], best, strict=True)
        if row[column] >= min_evidence and row[first] <= _MAX_FIRST_SHARE * row[column]
    ]
