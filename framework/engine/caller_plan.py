"""Plans that a caller brings: told from last turn's, and refused when they are none."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import Any

from framework.base.errors import CapgraphError, PlanError
from framework.base.plan import ExecutionPlan


def plan_digest(plan: Mapping[str, Any] | None) -> str:
    """Return a short name for what a plan says; equal plans have the same.

    >>> plan_digest({"steps": [{"context_key": "a"}]}) == plan_digest({"steps": []})
    False
    """
    text = json.dumps((plan or {}).get("steps"), sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_left_over(plan: Any, info: Mapping[str, Any]) -> bool:
    """Tell the plan that the last turn left in the state from one that the caller brought.

    The last turn's plan bears the stamp that the thread remembers, and says what it said when
    that turn ended; a caller who changed it means the changed one.

    Args:
        plan: What the state holds.
        info: ``runtime_info`` of the state.
    """
    stamp = plan.get("stamp") if isinstance(plan, Mapping) else None
    if not isinstance(stamp, Mapping) or stamp.get("id") is None:
        return False
    digest = info.get("plan_digest")
    return stamp["id"] == info.get("plan_stamp") and digest in (None, plan_digest(plan))


def taken_over(plan: Any) -> ExecutionPlan:
    """Return a brought plan with a stamp of its own, so that the next turn knows it as old.

    Raises:
        PlanError: It is not even a list of steps.
    """
    steps = plan.get("steps") if isinstance(plan, Mapping) else plan
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise PlanError(
            f"The plan that was brought is not a list of steps: {plan!r:.100}.",
            fix='Bring {"steps": [{"context_key": "a", "capability": "..."}, ...]}.',
        )
    return ExecutionPlan(steps=steps, stamp={"id": uuid.uuid4().hex, "version": 0})


def refusal(node: str, problem: CapgraphError) -> dict[str, Any]:
    """Return the state update with which a node ends a turn for a reason of the caller's.

    Args:
        node: Name of the node.
        problem: What is wrong.
    """
    return {
        "control_has_error": True,
        "control_error_info": {
            "node_name": node,
            "classification": {
                "severity": "critical",
                "user_message": str(problem),
                "metadata": {"code": problem.code},
            },
            "user_message": str(problem),
            "original_error": problem.message,
        },
    }
