"""What plans ask of graphs beyond ``graphlib``."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def circles(edges: Mapping[Node, Collection[Node]]) -> list[set[Node]]:
    """Group the nodes that reach each other, or themselves; other nodes are left out.

    Args:
        edges: The successors of every node.

    >>> circles({1: [2], 2: [1], 3: [1]})
    [{1, 2}]
    """
    groups: list[set[Node]] = []
    left = {node: set(after) for node, after in edges.items()}
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as exc:
            start = [exc.args[1][0]]
        else:
            return groups
        back: dict[Node, set[Node]] = {}
        for one, after in left.items():
            for other in after:
                back.setdefault(other, set()).add(one)
        ahead, behind = reachable_from(start, left), reachable_from(start, back)
        group = ahead & behind
        groups.append(group)
        # What joins groups stays; what joins the members of this one is done with.
        for member in group:
            left[member] -= group


def stable_order(predecessors: Mapping[int, set[int]]) -> list[int] | None:
    """Order positions by their predecessors, otherwise as they are.

    ``graphlib`` gives some order; a plan should keep as much of its own as it can.

    Args:
        predecessors: What must come before each position.

    Returns:
        The order, or ``None`` when there is a cycle.

    >>> stable_order({0: {2}, 1: set(), 2: set()})
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


def reachable_from(start: Iterable[Node], edges: Mapping[Node, Collection[Node]]) -> set[Node]:
    """Return every node that can be reached from some, those included.

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
