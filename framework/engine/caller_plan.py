"""Names of plans; and plans that a caller brings: told from last turn's, refused when they are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from capgraph.base.errors import PlanError
from capgraph.base.plan import ExecutionPlan, plan_limits
from capgraph.configs.suggestions import correct_spelling
from capgraph.pipeline.effect_ledger import compute_digest


class AcceptedDigest(str):
    """The digest of a plan that went through the gate; a node of one's own cannot make one by name.

    It says for the length of one update who wrote it, and of which plan it is; the state holds
    plain text.
    """

    __slots__ = ("plan",)
    plan: Any

    @classmethod
    def of(cls, plan: Any) -> AcceptedDigest:
        """Return the digest of a plan."""
        made = cls(plan_digest(plan))
        made.plan = plan
        return made


def is_accepted(state: Mapping[str, Any]) -> bool:
    """Tell whether the plan of a state is the one that went through the gate last."""
    plan, accepted = state["planning_execution_plan"], state.get("planning_accepted")
    if isinstance(accepted, AcceptedDigest) and accepted.plan is plan:
        return True
    return accepted is not None and accepted == plan_digest(plan)


def plan_digest(plan: Any) -> str:
    """Return a short name for what a plan says, of whatever form; equal plans have the same.

    >>> plan_digest({"steps": [{"context_key": "a"}]}) == plan_digest({"steps": []})
    False
    """
    known = plan if isinstance(plan, Mapping) else {"steps": plan}
    steps, bounds = known.get("steps"), plan_limits(known)
    return compute_digest([steps, bounds] if bounds else steps)


def caller_plan_id(plan: Any, last_turn: Mapping[str, Any]) -> str | None:
    """Return what names a plan that the caller brought; ``None`` for one that was left over.

    Args:
        plan: What the state holds.
        last_turn: ``control_turn`` of the last turn.
    """
    stamp = plan.get("stamp") if isinstance(plan, Mapping) else None
    if not isinstance(stamp, Mapping) or "brought" not in stamp:
        return None
    name = str(stamp.get("id"))
    return None if name == last_turn.get("plan") else name


def check_plan_form(plan: Any) -> ExecutionPlan:
    """Return a brought plan that has at least the form of one.

    Raises:
        PlanError: It is not even a list of steps.
    """
    fields = ExecutionPlan.__annotations__
    if isinstance(plan, Mapping) and "steps" not in plan:
        for name in map(str, plan):
            if name not in fields and (near := correct_spelling(name, fields)) is not None:
                raise PlanError(f"{name!r} is not a field of a plan.", fix=f"Write {near!r}.")
    steps = plan.get("steps") if isinstance(plan, Mapping) else None
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise PlanError(
            f"The plan that was brought is not a list of steps: {steps!r:.100}.",
            fix='Bring {"steps": [{"context_key": "a", "capability": "..."}, ...]}.',
        )
    return cast("ExecutionPlan", plan)
