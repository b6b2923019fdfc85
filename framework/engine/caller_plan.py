"""Digests of plans, and checks of plans that a caller sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from capgraph.base.errors import PlanError
from capgraph.base.plan import ExecutionPlan, plan_limits
from capgraph.configs.suggestions import correct_spelling
from capgraph.pipeline.effect_ledger import compute_digest
from capgraph.planning.plan_access import plan_stamp


class AcceptedDigest(str):
    """Digest of an accepted plan that custom nodes cannot forge.

    Custom nodes can write only plain strings to the state, so an update of this type proves
    that the plan passed all checks. In the state, the digest is stored as a plain string.
    """

    __slots__ = ("plan",)
    plan: Any

    @classmethod
    def of(cls, plan: Any) -> AcceptedDigest:
        """Create the digest that marks the given plan as accepted."""
        digest = cls(plan_digest(plan))
        digest.plan = plan
        return digest


def is_accepted(state: Mapping[str, Any]) -> bool:
    """Return True if the plan in the state is the most recently accepted plan."""
    plan, accepted = state["planning_execution_plan"], state.get("planning_accepted")
    if isinstance(accepted, AcceptedDigest) and accepted.plan is plan:
        return True
    return accepted is not None and accepted == plan_digest(plan)


def plan_digest(plan: Any) -> str:
    """Compute a short digest of a plan. Plans with equal steps and limits have equal digests.

    >>> plan_digest({"steps": [{"context_key": "a"}]}) == plan_digest({"steps": []})
    False
    """
    fields = plan if isinstance(plan, Mapping) else {"steps": plan}
    steps, bounds = fields.get("steps"), plan_limits(fields)
    return compute_digest([steps, bounds] if bounds else steps)


def caller_plan_id(plan: Any, last_turn: Mapping[str, Any]) -> str | None:
    """Return the ID of a plan supplied by the caller.

    Return ``None`` if the plan was left in the state by an earlier turn.

    Args:
        plan: Plan in the state.
        last_turn: ``control_turn`` of the last turn.
    """
    stamp = plan_stamp(plan)
    if "brought" not in stamp:
        return None
    name = str(stamp.get("id"))
    return None if name == last_turn.get("plan") else name


def check_plan_form(plan: Any) -> ExecutionPlan:
    """Validate the structure of a plan supplied by the caller, and return the plan.

    Raises:
        PlanError: The plan is not a list of steps, or has unknown fields.
    """
    fields = ExecutionPlan.__annotations__
    if isinstance(plan, Mapping) and "steps" not in plan:
        for name in map(str, plan):
            if name not in fields and (suggestion := correct_spelling(name, fields)) is not None:
                raise PlanError(f"Unknown plan field {name!r}.", fix=f"use {suggestion!r}.")
    steps = plan.get("steps") if isinstance(plan, Mapping) else None
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise PlanError(
            f"Invalid plan: expected a list of steps, not {steps!r:.100}.",
            fix='send {"steps": [{"context_key": "a", "capability": "..."}, ...]}.',
        )
    return cast("ExecutionPlan", plan)
