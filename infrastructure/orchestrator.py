"""Writes the plan, checks it, repairs it, and lets nothing wrong start."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from langgraph.types import Overwrite

from framework.base import (
    BaseInfrastructureNode,
    ErrorSeverity,
    ExecutionPlan,
    PlanError,
    infrastructure_node,
)
from framework.engine import Services
from framework.engine.caller_plan import refusal
from framework.planning import CLOSING, carry_over, fingerprints, next_version, repair_plan
from framework.planning.strategies import PlanRequest
from framework.state import AgentState
from framework.telemetry import PlanMade, emit


@infrastructure_node
class OrchestratorNode(BaseInfrastructureNode):
    """Writes a plan that has been checked, or raises with the list of what is wrong."""

    name = "orchestrator"
    description = "Execution planning"

    @staticmethod
    async def execute(
        state: AgentState, services: Services, streamer: Any, **_: Any
    ) -> dict[str, Any]:
        """Plan the task, or check the plan that the caller brought."""
        streamer.status("Planning")
        brought = state.get("planning_execution_plan")
        if brought is not None and state.get("control_plans_created_count", 0) == 0:
            try:
                plan, repairs = _checked(brought, state, services, active=None)
            except PlanError as exc:
                # What was refused must not stay where checked plans stand.
                return {**refusal("orchestrator", exc), "planning_execution_plan": None}
            return accepted(plan, repairs, None, state, services, author="caller")
        active = tuple(state.get("planning_active_capabilities") or ())
        if not active:
            empty = ExecutionPlan(steps=[_respond(state)])
            return accepted(empty, [], None, state, services)
        plan, repairs, attempts = await _plan(state, services, active)
        update = accepted(plan, repairs, state.get("planning_execution_plan"), state, services)
        update["control_plans_created_count"] += attempts - 1
        return update

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Allow for the passing faults of a model service."""
        return {"max_attempts": 4, "delay_seconds": 2.0, "backoff_factor": 2.0}


async def _plan(
    state: AgentState, services: Services, active: tuple[str, ...]
) -> tuple[ExecutionPlan, list[str], int]:
    failure = state.get("control_error_info") or state.get("control_last_error") or {}
    results = state.get("execution_step_results") or {}
    request: dict[str, Any] = {
        "task": state.get("task_current_task") or "",
        "active": active,
        "catalog": services.registry,
        "available": state.get("capability_context_data") or {},
        "guides": services.registry.planning_guides(active),
        "notes": await services.registry.planning_notes(active, state, services.settings)
        if services.planner.can_correct
        else {},
        "failure": failure.get("classification"),
        "failed_capability": failure.get("capability_name"),
        "previous": state.get("planning_execution_plan"),
        "finished": {key: record for key, record in results.items() if record.get("success")},
        "messages": state.get("messages") or [],
    }
    made = state.get("control_plans_created_count", 0)
    allowed = max(1, services.limits.max_planning_attempts - made)
    problem: PlanError | None = None
    for attempt in range(1, allowed + 1):
        plan = await services.planner.plan(PlanRequest(**request))
        try:
            checked, repairs = _checked(plan, state, services, active)
        except _Problems as exc:
            problem = exc
            request |= {"problems": exc.problems, "refused": plan}
            if not services.planner.can_correct:
                break
            continue
        return checked, repairs, attempt
    assert problem is not None
    raise problem


class _Problems(PlanError):
    """A plan with problems that no repair can settle."""

    problems: tuple[Any, ...] = ()


def _checked(
    plan: Any, state: AgentState, services: Services, active: tuple[str, ...] | None
) -> tuple[ExecutionPlan, list[str]]:
    repaired = repair_plan(
        plan,
        services.registry,
        state.get("capability_context_data") or {},
        active=active,
        max_steps=services.limits.max_steps,
    )
    if repaired.problems:
        listed = "; ".join(str(problem) for problem in repaired.problems)
        error = _Problems(
            f"The plan has {len(repaired.problems)} problem(s): {listed}",
            fix="Correct the plan, or ask in other words.",
            severity=ErrorSeverity.CRITICAL,
        )
        error.problems = tuple(repaired.problems)
        raise error
    _refuse_rejected(repaired.plan, state)
    return repaired.plan, [str(repair) for repair in repaired.repairs]


def accepted(
    plan: ExecutionPlan,
    repairs: list[str],
    previous: ExecutionPlan | None,
    state: AgentState,
    services: Services,
    author: str = "orchestrator",
) -> dict[str, Any]:
    """Return the update that puts a checked plan in force.

    Args:
        plan: The plan; it has been checked.
        repairs: What was repaired, in words.
        previous: The plan that it replaces.
        state: The graph's state.
        services: Shared dependencies.
        author: ``orchestrator``, ``caller`` or ``approval`` (a person, who is not asked again).
    """
    results = state.get("execution_step_results") or {}
    failure = state.get("control_error_info") or state.get("control_last_error") or {}
    carried = carry_over(previous, plan, results)
    history = next_version(
        state.get("planning_history") or [],  # type: ignore[arg-type]
        plan,
        previous=previous,
        author=author,
        failed=failure.get("context_key"),
        reason=failure.get("user_message") or "the request",
        carried=carried,
        outcome={k: "done" if r.get("success") else "failed" for k, r in results.items()},
        at=datetime.now(UTC).isoformat(),
    )
    stamp: dict[str, Any] = {"id": uuid.uuid4().hex, "version": history["version"]}
    if previous is not None:
        # Keys of effects must not change because a finished step left the plan.
        stamp["fingerprints"] = _lasting_fingerprints(previous, plan)
    plan = ExecutionPlan(steps=plan["steps"], stamp=stamp)
    kept = carried.results
    again = set(carried.rerun)
    update: dict[str, Any] = {
        # A record under a key that another step now bears would pass for that step's result.
        "execution_step_results": Overwrite(
            {**{k: r for k, r in results.items() if k not in again}, **kept}
        ),
        "capability_context_data": carried.context_updates(
            state.get("capability_context_data") or {}
        ),
        "control_attempts": {
            key: 0 for key in again if (state.get("control_attempts") or {}).get(key)
        },
    }
    emit(PlanMade(plan=dict(plan), version=history["version"], repairs=repairs))
    if author != "approval" and _needs_review(plan, state, services):
        update["control_is_awaiting_validation"] = True
        update["control_validation_context"] = {"kind": "plan", "plan": stamp["id"]}
        update["control_validation_timestamp"] = datetime.now(UTC).isoformat()
    made = 0 if author == "approval" else 1
    return {
        **update,
        "planning_execution_plan": plan,
        "planning_history": [dict(history)],
        "planning_ready_for_execution": True,
        "planning_current_step_index": 0,
        "control_plans_created_count": state.get("control_plans_created_count", 0) + made,
        "execution_pending_approvals": _approvals(plan, kept, state, services),
        "runtime_info": {**(state.get("runtime_info") or {}), "plan_stamp": stamp["id"]},
        **_error_taken_back(state),
    }


def _needs_review(plan: ExecutionPlan, state: AgentState, services: Services) -> bool:
    control = state.get("agent_control") or {}
    wanted = control.get("planning_mode_enabled", services.settings.approvals.plans)
    return bool(wanted) and any(step["capability"] not in CLOSING for step in plan["steps"])


def _lasting_fingerprints(previous: ExecutionPlan, plan: ExecutionPlan) -> dict[str, str]:
    """Return the fingerprints of a plan; a step that stands as before keeps the one it had."""
    known = (previous.get("stamp") or {}).get("fingerprints") or fingerprints(previous)
    before = {step["context_key"]: step for step in previous["steps"]}
    found = fingerprints(plan)
    for step in plan["steps"]:
        key = step["context_key"]
        links = {name for entry in step.get("inputs") or [] for name in entry.values()}
        # A step whose input is made in another way now does something else, too.
        same = all(found[name] == known.get(name) for name in links if name in found)
        if key in known and same and before.get(key) == step:
            found[key] = known[key]
    return found


def _refuse_rejected(plan: ExecutionPlan, state: AgentState) -> None:
    """Make sure that a plan does not bring back what a person rejected in this turn.

    Raises:
        _Problems: It does.
    """
    rejected = [
        (key, entry)
        for key, entry in (state.get("approval_decisions") or {}).items()
        if entry.get("decision") == "reject"
    ]
    if not rejected:
        return
    prints = sorted(fingerprints(plan).values())
    for key, entry in rejected:
        given = entry.get("fingerprints") or []
        if prints == given if key == "plan" else set(given) & set(prints):
            what = "the plan" if key == "plan" else f"step {key!r}"
            raise _Problems(
                f"A person rejected {what} ({entry.get('reason') or 'no reason was given'}), and"
                " the new plan has it again.",
                fix="Ask in other words, or agree to the step.",
                severity=ErrorSeverity.CRITICAL,
            )


def _error_taken_back(state: AgentState) -> dict[str, Any]:
    if not state.get("control_has_error"):
        return {}
    return {
        "control_has_error": False,
        "control_error_info": None,
        "control_last_error": state.get("control_error_info"),
        "control_retry_count": 0,
        "control_current_step_retry_count": 0,
    }


def _approvals(
    plan: ExecutionPlan, done: dict[str, Any], state: AgentState, services: Services
) -> dict[str, dict[str, Any]]:
    """Return the steps that need a person's agreement before they run."""
    settings = services.settings.approvals
    control = state.get("agent_control") or {}
    if settings.steps == "none" or control.get("approval_disabled"):
        return {}
    prints = fingerprints(plan)
    agreed = {
        value
        for entry in (state.get("approval_decisions") or {}).values()
        if entry.get("decision") == "approve"
        for value in entry.get("fingerprints") or []
    }
    asked: dict[str, dict[str, Any]] = {}
    for step in plan["steps"]:
        spec = services.registry.capabilities.get(step["capability"])
        if spec is None or step["capability"] in CLOSING:
            continue
        if step["context_key"] in done or prints[step["context_key"]] in agreed:
            continue
        if spec.requires_approval or settings.steps == "all":
            asked[step["context_key"]] = {"kind": "step", "capability": spec.name}
    return asked


def _respond(state: AgentState) -> Any:
    task = state.get("task_current_task") or ""
    return {"context_key": "answer", "capability": "respond", "task_objective": task}
