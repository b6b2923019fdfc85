"""The order of steps in a stored plan."""

from __future__ import annotations

from capgraph.base import ExecutionPlan
from capgraph.planning.plan_access import plan_steps, step_key
from capgraph.planning.schedule import dependencies


def by_depth(plan: ExecutionPlan) -> ExecutionPlan:
    """Return the plan with its steps sorted by depth. The meaning of the plan does not change.

    A step's depth is the length of the longest dependency chain that leads to it. Steps that can run
    early come first, so that a scan of the plan in order finds them soon.

    Args:
        plan: A valid plan.

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
