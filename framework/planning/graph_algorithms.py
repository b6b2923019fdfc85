"""Graph algorithms that ``graphlib`` does not have."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def stable_topological_order(predecessors: Mapping[int, set[int]]) -> list[int] | None:
    """Sort nodes topologically and keep their original order where possible.

    Unlike this function, ``graphlib`` does not guarantee an order for independent nodes.

    Args:
        predecessors: Positions that must come before each position.

    Returns:
        The sorted positions, or ``None`` if there is a cycle.

    >>> stable_topological_order({0: {2}, 1: set(), 2: set()})
    [1, 2, 0]
    """
    sorter = TopologicalSorter(predecessors)
    try:
        sorter.prepare()
    except CycleError:
        return None
    ready: list[int] = []
    ordered: list[int] = []
    while sorter.is_active():
        for node in sorter.get_ready():
            heappush(ready, node)
        ordered.append(heappop(ready))
        sorter.done(ordered[-1])
    return ordered


def reachable_from(start: Iterable[Node], edges: Mapping[Node, Iterable[Node]]) -> set[Node]:
    """Return all nodes that are reachable from the start nodes, including the start nodes.

    >>> sorted(reachable_from([1], {1: [2], 2: [1], 3: [1]}))
    [1, 2]
    """
    seen = set(start)
    work = list(seen)
    while work:
        for node in edges.get(work.pop(), ()):
            if node not in seen:
                seen.add(node)
                work.append(node)
    return seen
