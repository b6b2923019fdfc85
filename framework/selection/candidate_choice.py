"""Which candidates are needed, given the evidence for each: no more than the request shows.

A candidate with examples has learned which requests need it. One without has only its own words,
and a request speaks for its siblings and opposites in the same words. So beside the first it is
needed only for what those before it do not explain: words of the request that they have nothing
of, or a part of the request that is clearly another's. What counts as clear rises with the number
of candidates, since the best of many comes high by chance. The settings were chosen on the
tuning data that ``tests/benchmarks/function_choice.py`` names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from capgraph.selection.tfidf import Array

_NEARLY = 0.8
_BY_WORDS = (0.25, 0.10)  # evidence of the unexplained words; and more for each e-fold candidates
_BY_PART = (0.30, 0.15)  # evidence of a part, the same way
_FIRST_IN_PART = 0.65  # at most this share of the part's evidence may be the first's


def max_evidence(evidence: Array) -> Array:
    """Return each candidate's evidence over the whole task and its clauses.

    A clause has lost the rest of the request: it brings in what the whole hides, but what
    resembles the whole most comes first.
    """
    found: Array = evidence.max(axis=0)
    found[evidence[0].argmax()] = 1.001 * found.max()  # more than equal: no tie
    return found


def choose_candidates(
    evidence: Array,
    has_examples: Sequence[bool],
    unexplained_evidence: Callable[[Sequence[int]], Array] | None,
    margin: float,
    min_evidence: float,
) -> Array:
    """Return which candidates to choose, once the best one fits.

    Args:
        evidence: The evidence, a row for the task and for each of its clauses; 0 for a candidate
            that must not be chosen.
        has_examples: Whether each candidate has examples.
        unexplained_evidence: Gives the evidence of what some candidates do not explain; ``None`` where that
            is not known: then all are chosen as those with examples are.
        margin: A candidate with examples is chosen from this share of the best one's evidence on,
            or when it nearly fits by itself.
        min_evidence: From which evidence on a candidate fits by itself.
    """
    values = max_evidence(evidence)
    # The parts of a compound request weaken one another, hence "nearly".
    close: Array = values >= min(margin * values.max(), _NEARLY * min_evidence)
    if unexplained_evidence is None or all(has_examples):
        return close
    first = int(values.argmax())
    chance = np.log(evidence.shape[1])
    chosen = [
        first,
        *_by_part(evidence, first, min_evidence * (_BY_PART[0] + _BY_PART[1] * chance)),
    ]
    least_words = min_evidence * (_BY_WORDS[0] + _BY_WORDS[1] * chance)
    while True:
        further = close & (unexplained_evidence(chosen) >= least_words)
        further[chosen] = False
        if not further.any():
            break
        chosen.append(int(np.where(further, values, -1.0).argmax()))
    untaught = np.zeros(len(values), bool)
    untaught[chosen] = True
    result: Array = np.where(has_examples, close, untaught)
    return result


def _by_part(rows: Array, first: int, enough: float) -> list[int]:
    """Return the best candidates of the parts that are clearly not the first one's."""
    best = [int(column) for column in rows[1:].argmax(axis=1)]
    if first not in best:
        return []
    return [
        column
        for row, column in zip(rows[1:], best, strict=True)
        if row[column] >= enough and row[first] <= _FIRST_IN_PART * row[column]
    ]
