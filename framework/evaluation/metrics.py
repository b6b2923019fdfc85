"""Counting what was right, superfluous and missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from capgraph.planning import TERMINAL_STEPS


@dataclass(frozen=True, slots=True)
class Counts:
    """Right, superfluous and missing items; counts add up over cases (micro average).

    A share of nothing is 1.0: nothing was expected, and nothing was wrong.

    >>> both = Counts(correct=1, extra=1) + Counts(correct=1, missing=2)
    >>> both.precision, both.recall, round(both.f1, 3)
    (0.6666666666666666, 0.5, 0.571)
    """

    correct: int = 0
    extra: int = 0
    missing: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.correct + other.correct,
            self.extra + other.extra,
            self.missing + other.missing,
        )

    @property
    def precision(self) -> float:
        """Share of what was found that is right."""
        return _share(self.correct, self.correct + self.extra)

    @property
    def recall(self) -> float:
        """Share of what is right that was found."""
        return _share(self.correct, self.correct + self.missing)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return _share(2 * self.correct, 2 * self.correct + self.extra + self.missing)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def count_items(
    expected: Iterable[Hashable], found: Iterable[Hashable], optional: Collection[Hashable] = ()
) -> Counts:
    """Compare two collections in which an item may stand several times.

    Args:
        expected: What should be there.
        found: What is there.
        optional: Items that are not counted at all.

    >>> count_items(["read", "sum"], ["read", "read", "plot"], optional={"plot"})
    Counts(right=1, superfluous=1, missing=1)
    """
    wanted, got = (
        Counter(item for item in items if item not in optional) for items in (expected, found)
    )
    return Counts(
        correct=(wanted & got).total(),
        extra=(got - wanted).total(),
        missing=(wanted - got).total(),
    )


def count_edges(
    expected: Iterable[tuple[str, str]],
    found: Iterable[tuple[str, str]],
    optional: Collection[str] = (),
) -> Counts:
    """Compare edges; one with an optional end counts only when it is expected and there."""
    wanted = Counter(expected)
    got = Counter(found)
    ends = set(optional)
    return Counts(
        (wanted & got).total(),
        sum(count for edge, count in (got - wanted).items() if not ends & set(edge)),
        sum(count for edge, count in (wanted - got).items() if not ends & set(edge)),
    )


def plan_nodes(plan: Mapping[str, Any] | None) -> list[str]:
    """Return the capabilities of a plan's steps, without the step that ends the turn.

    >>> plan_nodes({"steps": [{"capability": "sum"}, {"capability": "respond"}]})
    ['sum']
    """
    steps = (plan or {}).get("steps") or []
    return [step["capability"] for step in steps if step["capability"] not in TERMINAL_STEPS]


def plan_edges(plan: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return which capability's output each step takes, in pairs of capabilities.

    Inputs from earlier turns or from the caller are no edges.

    >>> plan_edges({"steps": [
    ...     {"context_key": "a", "capability": "read"},
    ...     {"context_key": "b", "capability": "sum", "inputs": [{"DATA": "a"}, {"X": "stored"}]},
    ... ]})
    [('read', 'sum')]
    """
    found: list[tuple[str, str]] = []
    makers: dict[str, str] = {}
    for step in (plan or {}).get("steps") or []:
        capability = step["capability"]
        if capability in TERMINAL_STEPS:
            continue
        keys = [key for link in step.get("inputs") or [] for key in link.values()]
        # Two types from one step are still one edge.
        found += [(makers[key], capability) for key in dict.fromkeys(keys) if key in makers]
        makers[step["context_key"]] = capability
    return found
