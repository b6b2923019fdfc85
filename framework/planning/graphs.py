"""The graph algorithms that the standard library does not have."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def strongly_connected(edges: Mapping[Node, Sequence[Node]]) -> list[list[Node]]:
    """Group nodes that reach each other (Tarjan's algorithm, without recursion).

    Args:
        edges: The successors of every node.

    >>> strongly_connected({1: [2], 2: [1], 3: [1]})
    [[2, 1], [3]]
    """
    order: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    waiting: set[Node] = set()
    groups: list[list[Node]] = []
    for root in edges:
        if root in order:
            continue
        order[root] = low[root] = len(order)
        stack.append(root)
        waiting.add(root)
        work = [(root, iter(edges[root]))]
        while work:
            node, successors = work[-1]
            for successor in successors:
                if successor not in order:
                    order[successor] = low[successor] = len(order)
                    stack.append(successor)
                    waiting.add(successor)
                    work.append((successor, iter(edges[successor])))
                    break
                if successor in waiting:
                    low[node] = min(low[node], order[successor])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == order[node]:
                    group = [stack.pop()]
                    while group[-1] != node:
                        group.append(stack.pop())
                    waiting.difference_update(group)
                    groups.append(group)
    return groups


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
    left = {node: len(before) for node, before in predecessors.items()}
    after: dict[int, list[int]] = {node: [] for node in predecessors}
    for node, before in predecessors.items():
        for other in before:
            after[other].append(node)
    ready = [node for node, count in left.items() if count == 0]
    heapify(ready)
    ordered = []
    while ready:
        node = heappop(ready)
        ordered.append(node)
        for other in after[node]:
            left[other] -= 1
            if left[other] == 0:
                heappush(ready, other)
    return ordered if len(ordered) == len(predecessors) else None


def reachable_from(start: Iterable[Node], edges: Mapping[Node, Sequence[Node]]) -> set[Node]:
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
