"""Scheduling: which steps of a valid plan depend on which, and which can start."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from capgraph.base import ExecutionPlan, PlanError
from capgraph.planning.catalog import TERMINAL_STEPS, Catalog
from capgraph.planning.plan_access import plan_stamp, plan_steps, step_capability, step_key
from capgraph.planning.references import step_reads

Dependencies = Mapping[str, Collection[str]]


def dependencies(plan: ExecutionPlan) -> dict[str, set[str]]:
    """Compute the steps that must end before each step of a plan can start.

    An input depends on the nearest earlier step with its context key. If no step has the key, the input
    is a stored context. In addition:

    - A step that replaces a stored context depends on the earlier steps that read the old value.
    - A step that reads state keys depends on the steps that :func:`with_plan_order` recorded.
    - The terminal step depends on all other steps.
    - In a sequential plan, every step depends on all earlier steps.

    Args:
        plan: Valid plan.

    Returns:
        The context keys of the dependencies, by the key of each step in plan order. There are no cycles.

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
    one_by_one, predecessors = plan_stamp(plan).get("one_by_one") is True, recorded_order(plan)
    steps = {step_key(step, index): step for index, step in enumerate(plan_steps(plan))}
    for index, step in enumerate(plan_steps(plan)):
        key = step_key(step, index)
        if key in found:
            raise PlanError(
                f"The context_key {key!r} is not unique: two steps of the plan have it.",
                fix="Validate the plan with check_plan before scheduling it.",
            )
        waits: set[str] = {*readers.pop(key, ()), *predecessors.get(key, ())}
        for read in step_reads(step, steps):
            if read.key in found:
                waits.add(read.key)
            elif read.key != key:
                readers.setdefault(read.key, set()).add(key)
        found[key] = set(found) if one_by_one or step_capability(step) in TERMINAL_STEPS else waits
    return found


def with_plan_order(plan: ExecutionPlan, catalog: Catalog) -> ExecutionPlan:
    """Record the order of steps that exchange data through state keys in the plan's stamp.

    A capability with a static ``execute(state)`` and no inputs may read any state key that an
    earlier step wrote, so its step must run after all earlier steps. The ``after`` field of the
    stamp lists these steps, except those that another such step already depends on.

    Args:
        plan: Valid plan, with its steps in the author's order.
        catalog: Available capabilities.
    """
    after: dict[str, list[str]] = {}
    before: list[str] = []
    for index, step in enumerate(plan_steps(plan)):
        key, spec = step_key(step, index), catalog.capabilities.get(step_capability(step) or "")
        if spec is not None and spec.follows_plan_order:
            if before:
                after[key] = before
            before = [key]
        else:
            before.append(key)
    if not after and not plan.get("stamp"):
        return plan
    return ExecutionPlan(**{**plan, "stamp": {**plan_stamp(plan), "after": after}})


def recorded_order(plan: object) -> dict[str, list[str]]:
    """Return the step dependencies that :func:`with_plan_order` recorded in a plan.

    The mapping is keyed by the dependent step's context key.
    """
    after = plan_stamp(plan).get("after")
    entries = after.items() if isinstance(after, Mapping) else ()
    return {key: keys for key, keys in entries if isinstance(keys, list)}


def ready_steps(
    plan: ExecutionPlan,
    done: Collection[str],
    started: Collection[str] = (),
    *,
    known_dependencies: Dependencies | None = None,
) -> list[str]:
    """Return the context keys of the steps that can start now, in plan order.

    Args:
        plan: Valid plan.
        done: Context keys of the finished steps.
        started: Context keys of the steps that are running or have failed.
        known_dependencies: Result of :func:`dependencies` for this plan. Computed by default.

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


def by_depth(plan: ExecutionPlan) -> ExecutionPlan:
    """Sort the steps of a plan by depth without changing their dependencies.

    A step's depth is the length of the longest dependency chain that leads to it. Steps that
    can start early come first, so that a search in plan order finds them quickly.

    Args:
        plan: Valid plan.

    >>> plan = {"steps": [
    ...     {"context_key": "a", "capability": "x"},
    ...     {"context_key": "b", "capability": "x", "inputs": [{"T": "a"}]},
    ...     {"context_key": "c", "capability": "x"},
    ... ]}
    >>> [step["context_key"] for step in by_depth(plan)["steps"]]
    ['a', 'c', 'b']
    """
    depth: dict[str, int] = {}
    for key, needed in dependencies(plan).items():
        depth[key] = 1 + max((depth[name] for name in needed), default=0)
    steps = list(enumerate(plan_steps(plan)))
    steps.sort(key=lambda item: depth[step_key(item[1], item[0])])
    ordered = [step for _, step in steps]
    return ExecutionPlan(**{**plan, "steps": ordered})
