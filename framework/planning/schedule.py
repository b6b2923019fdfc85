"""When the steps of a plan can run. Every function expects a plan that checks clean."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from graphlib import TopologicalSorter
from itertools import pairwise

from framework.base import ExecutionPlan, PlanError
from framework.planning.catalog import CLOSING
from framework.planning.reading import capability_of, links_of, step_key, steps_of

Dependencies = Mapping[str, Collection[str]]


def dependencies(plan: ExecutionPlan) -> dict[str, set[str]]:
    """Tell which steps each step waits for.

    A plan is read in its order: an input means the nearest step before that has the key, else
    a stored context. A step that replaces a stored context waits for the steps before it that
    read the stored one, and the closing step waits for all others.

    Args:
        plan: A plan that checks clean.

    Returns:
        For every step's key, in plan order, the keys it waits for; never a circle.

    Raises:
        PlanError: Two steps have the same context key.

    >>> dependencies({"steps": [
    ...     {"context_key": "a", "capability": "fetch"},
    ...     {"context_key": "b", "capability": "sum", "inputs": [{"DATA": "a"}]},
    ...     {"context_key": "c", "capability": "respond"},
    ... ]}) == {"a": set(), "b": {"a"}, "c": {"a", "b"}}
    True
    """
    found: dict[str, set[str]] = {}
    readers: dict[str, set[str]] = {}
    for index, step in enumerate(steps_of(plan)):
        key = step_key(step, index)
        if key in found:
            raise PlanError(
                f"Two steps of the plan have the context_key {key!r}.",
                fix="Run check_plan before the plan is scheduled.",
            )
        waits: set[str] = set(readers.pop(key, ()))
        for _, named in links_of(step):
            if named in found:
                waits.add(named)
            elif named != key:
                readers.setdefault(named, set()).add(key)
        found[key] = set(found) if capability_of(step) in CLOSING else waits
    return found


def ready_steps(
    plan: ExecutionPlan,
    done: Collection[str],
    started: Collection[str] = (),
    *,
    depends: Dependencies | None = None,
) -> list[str]:
    """Name the steps that can start now, in plan order.

    Args:
        plan: A plan that checks clean.
        done: Keys of the finished steps.
        started: Keys of the steps that are running or have failed.
        depends: What :func:`dependencies` returned for this plan, to save the work.

    >>> ready_steps({"steps": [
    ...     {"context_key": "a", "capability": "fetch"},
    ...     {"context_key": "b", "capability": "fetch"},
    ...     {"context_key": "c", "capability": "sum", "inputs": [{"DATA": "a"}]},
    ... ]}, done=["a"], started=["b"])
    ['c']
    """
    waits = dependencies(plan) if depends is None else depends
    finished = set(done)
    begun = finished.union(started)
    return [
        key for key, needed in waits.items() if key not in begun and finished.issuperset(needed)
    ]


def blocked_steps(
    plan: ExecutionPlan, failed: Collection[str], *, depends: Dependencies | None = None
) -> list[str]:
    """Name the steps that can never start because a step they wait for has failed.

    The closing step is not among them: it tells what was done and what was not.

    Args:
        plan: A plan that checks clean.
        failed: Keys of the steps that will not finish.
        depends: What :func:`dependencies` returned for this plan.
    """
    waits = dependencies(plan) if depends is None else depends
    closing = {
        step_key(step, index)
        for index, step in enumerate(steps_of(plan))
        if capability_of(step) in CLOSING
    }
    lost = set(failed)
    blocked = []
    for key, needed in waits.items():
        if key not in lost and key not in closing and not lost.isdisjoint(needed):
            lost.add(key)
            blocked.append(key)
    return blocked


def is_chain(plan: ExecutionPlan, *, depends: Dependencies | None = None) -> bool:
    """Tell whether each step waits for the one before it, so that nothing can run in parallel.

    >>> is_chain({"steps": [{"context_key": "a"}, {"context_key": "b"}]})
    False
    """
    waits = dependencies(plan) if depends is None else depends
    keys = list(waits)
    return all(before in waits[key] for before, key in pairwise(keys))


def critical_path(
    plan: ExecutionPlan, durations: Mapping[str, float]
) -> tuple[float, tuple[str, ...]]:
    """Find the steps that decide how long the plan takes at best.

    Args:
        plan: A plan that checks clean.
        durations: Seconds for each step's key; a step without one takes no time.

    Returns:
        The length in seconds, and the keys along the path.

    >>> critical_path({"steps": [
    ...     {"context_key": "a"}, {"context_key": "b"},
    ...     {"context_key": "c", "inputs": [{"T": "a"}, {"T": "b"}]},
    ... ]}, {"a": 1.0, "b": 3.0, "c": 0.5})
    (3.5, ('b', 'c'))
    """
    waits = dependencies(plan)
    rank = {key: place for place, key in enumerate(waits)}
    finish: dict[str, float] = {}
    last: dict[str, str | None] = {}
    for key, needed in waits.items():
        # Plan order decides between equals, so that the answer does not depend on set order.
        before = max(needed, key=lambda other: (finish[other], -rank[other]), default=None)
        last[key] = before
        finish[key] = durations.get(key, 0.0) + (finish[before] if before is not None else 0.0)
    if not finish:
        return 0.0, ()
    end: str | None = max(finish, key=lambda key: (finish[key], rank[key]))
    length = finish[end] if end is not None else 0.0
    path = []
    while end is not None:
        path.append(end)
        end = last[end]
    return length, tuple(reversed(path))


def makespan(
    plan: ExecutionPlan, durations: Mapping[str, float], concurrency: int | None = None
) -> float:
    """Simulate the plan with every step started as soon as it can be.

    Args:
        plan: A plan that checks clean.
        durations: Seconds for each step's key; a step without one takes no time.
        concurrency: How many steps may run at once; ``None`` for no limit.

    Returns:
        Seconds until the last step is finished.

    Raises:
        ValueError: The concurrency is not positive.

    >>> plan = {"steps": [{"context_key": "a"}, {"context_key": "b"}]}
    >>> makespan(plan, {"a": 1.0, "b": 2.0}), makespan(plan, {"a": 1.0, "b": 2.0}, 1)
    (2.0, 3.0)
    """
    if concurrency is not None and concurrency < 1:
        raise ValueError(f"concurrency must be positive, not {concurrency!r}")
    waits = dependencies(plan)
    rank = {key: place for place, key in enumerate(waits)}
    sorter = TopologicalSorter(waits)
    sorter.prepare()
    ready: list[tuple[int, str]] = []
    running: list[tuple[float, int, str]] = []
    now = 0.0
    while sorter.is_active():
        for key in sorter.get_ready():
            heapq.heappush(ready, (rank[key], key))
        while ready and (concurrency is None or len(running) < concurrency):
            place, key = heapq.heappop(ready)
            heapq.heappush(running, (now + durations.get(key, 0.0), place, key))
        now, _, key = heapq.heappop(running)
        sorter.done(key)
    return now
