"""When the steps of a plan can run. Every function expects a plan that checks clean."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from capgraph.base import ExecutionPlan, PlanError
from capgraph.planning.catalog import TERMINAL_STEPS
from capgraph.planning.plan_access import plan_steps, step_capability, step_key
from capgraph.planning.references import step_reads

Dependencies = Mapping[str, Collection[str]]


def dependencies(plan: ExecutionPlan) -> dict[str, set[str]]:
    """Tell which steps each step waits for.

    A plan is read in its order: an input, or a reference in a parameter, means the nearest step
    before that has the key, else a stored context. A step that replaces a stored context waits for the steps before it that
    read the stored one, and the closing step waits for all others. In a plan that runs one by one every step waits
    for all before it.

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
    stamp = plan.get("stamp") if isinstance(plan, Mapping) else None
    one_by_one = isinstance(stamp, Mapping) and stamp.get("one_by_one") is True
    steps = {step_key(step, index): step for index, step in enumerate(plan_steps(plan))}
    for index, step in enumerate(plan_steps(plan)):
        key = step_key(step, index)
        if key in found:
            raise PlanError(
                f"Two steps of the plan have the context_key {key!r}.",
                fix="Run check_plan before the plan is scheduled.",
            )
        waits: set[str] = set(readers.pop(key, ()))
        for read in step_reads(step, steps):
            if read.key in found:
                waits.add(read.key)
            elif read.key != key:
                readers.setdefault(read.key, set()).add(key)
        found[key] = set(found) if one_by_one or step_capability(step) in TERMINAL_STEPS else waits
    return found


def ready_steps(
    plan: ExecutionPlan,
    done: Collection[str],
    started: Collection[str] = (),
    *,
    known_dependencies: Dependencies | None = None,
) -> list[str]:
    """Name the steps that can start now, in plan order.

    Args:
        plan: A plan that checks clean.
        done: Keys of the finished steps.
        started: Keys of the steps that are running or have failed.
        known_dependencies: What :func:`dependencies` returned for this plan, to save the work.

    >>> ready_steps({"steps": [
    ...     {"context_key": "a", "capability": "fetch"},
    ...     {"context_key": "b", "capability": "fetch"},
    ...     {"context_key": "c", "capability": "sum", "inputs": [{"DATA": "a"}]},
    ... ]}, done=["a"], started=["b"])
    ['c']
    """
    waits = dependencies(plan) if known_dependencies is None else known_dependencies
    finished = set(done)
    begun = finished.union(started)
    return [
        key for key, needed in waits.items() if key not in begun and finished.issuperset(needed)
    ]
