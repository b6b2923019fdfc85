"""Metrics that count correct, extra, and missing items in selections and plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from capgraph.planning import TERMINAL_STEPS


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of correct, extra, and missing items, summed over all cases (micro average).

    A ratio with no items is 1.0, because nothing was expected and nothing was wrong.

    >>> both = Counts(correct=1, extra=1) + Counts(correct=1, missing=2)
    >>> both.precision, both.recall, round(both.f1, 3)
    (0.6666666666666666, 0.5, 0.571)
    """

    correct: int = 0
    extra: int = 0
    missing: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.correct + other.correct, self.extra + other.extra, self.missing + other.missing
        )

    @property
    def precision(self) -> float:
        """Fraction of the actual items that were expected."""
        return _divide(self.correct, self.correct + self.extra)

    @property
    def recall(self) -> float:
        """Fraction of the expected items that were found."""
        return _divide(self.correct, self.correct + self.missing)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return _divide(2 * self.correct, 2 * self.correct + self.extra + self.missing)


def _divide(part: int, total: int) -> float:
    return part / total if total else 1.0


def count_items(
    expected: Iterable[Hashable], actual: Iterable[Hashable], optional: Collection[Hashable] = ()
) -> Counts:
    """Count the correct, extra, and missing items of two collections with possible duplicates.

    Args:
        expected: Expected items.
        actual: Actual items.
        optional: Items to ignore.

    >>> count_items(["read", "sum"], ["read", "read", "plot"], optional={"plot"})
    Counts(correct=1, extra=1, missing=1)
    """
    expected_counts, actual_counts = (
        Counter(item for item in items if item not in optional) for items in (expected, actual)
    )
    return Counts(
        correct=(expected_counts & actual_counts).total(),
        extra=(actual_counts - expected_counts).total(),
        missing=(expected_counts - actual_counts).total(),
    )


def count_edges(
    expected: Iterable[tuple[str, str]],
    actual: Iterable[tuple[str, str]],
    optional: Collection[str] = (),
) -> Counts:
    """Count the correct, extra, and missing edges of a plan.

    An edge to or from an optional capability counts only if it is both expected and actual.
    """
    expected_counts = Counter(expected)
    actual_counts = Counter(actual)
    ends = set(optional)
    return Counts(
        (expected_counts & actual_counts).total(),
        sum(
            count
            for edge, count in (actual_counts - expected_counts).items()
            if not ends & set(edge)
        ),
        sum(
            count
            for edge, count in (expected_counts - actual_counts).items()
            if not ends & set(edge)
        ),
    )


def plan_nodes(plan: Mapping[str, Any] | None) -> list[str]:
    """Return the capability names of a plan's steps, excluding the step that ends the turn.

    >>> plan_nodes({"steps": [{"capability": "sum"}, {"capability": "respond"}]})
    ['sum']
    """
    steps = (plan or {}).get("steps") or []
    return [step["capability"] for step in steps if step["capability"] not in TERMINAL_STEPS]


def plan_edges(plan: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return the data flow of a plan as pairs of producing and consuming capabilities.

    Inputs from earlier turns or from the caller are not included.

    >>> plan_edges({"steps": [
    ...     {"context_key": "a", "capability": "read"},
    ...     {"context_key": "b", "capability": "sum", "inputs": [{"DATA": "a"}, {"X": "stored"}]},
    ... ]})
    [('read', 'sum')]
    """
    edges: list[tuple[str, str]] = []
    producers: dict[str, str] = {}
    for step in (plan or {}).get("steps") or []:
        capability = step["capability"]
        if capability in TERMINAL_STEPS:
            continue
        keys = [key for link in step.get("inputs") or [] for key in link.values()]
        # Several types from one step count as one edge.
        edges += [(producers[key], capability) for key in dict.fromkeys(keys) if key in producers]
        producers[step["context_key"]] = capability
    return edges
