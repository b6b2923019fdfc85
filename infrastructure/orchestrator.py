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
from framework.execution import Services
from framework.execution.brought import refusal
from framework.execution.strategies import PlanRequest
from framework.planning import CLOSING, carry_over, fingerprints, next_version, repair_plan
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
            return _accepted(plan, repairs, None, state, services, author="caller")
        active = tuple(state.get("planning_active_capabilities") or ())
        if not active:
            empty = ExecutionPlan(steps=[_respond(state)])
            return _accepted(empty, [], None, state, services)
        plan, repairs, attempts = await _plan(state, services, active)
        update = _accepted(plan, repairs, state.get("planning_execution_plan"), state, services)
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
            request["problems"] = exc.problems
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
    return repaired.plan, [str(repair) for repair in repaired.repairs]


def _accepted(
    plan: ExecutionPlan,
    repairs: list[str],
    previous: ExecutionPlan | None,
    state: AgentState,
    services: Services,
    author: str = "orchestrator",
) -> dict[str, Any]:
    """Return the update that puts a checked plan in force."""
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
    return {
        **update,
        "planning_execution_plan": plan,
        "planning_history": [dict(history)],
        "planning_ready_for_execution": True,
        "planning_current_step_index": 0,
        "control_plans_created_count": state.get("control_plans_created_count", 0) + 1,
        "execution_pending_approvals": _approvals(plan, kept, state, services),
        "runtime_info": {**(state.get("runtime_info") or {}), "plan_stamp": stamp["id"]},
        **_error_taken_back(state),
    }


def _lasting_fingerprints(previous: ExecutionPlan, plan: ExecutionPlan) -> dict[str, str]:
    """Return the fingerprints of a plan; a step that stands as before keeps the one it had."""
    known = (previous.get("stamp") or {}).get("fingerprints") or fingerprints(previous)
    before = {step["context_key"]: step for step in previous["steps"]}
    found = fingerprints(plan)
    for step in plan["steps"]:
        key = step["context_key"]
        if key in known and before.get(key) == step:
            found[key] = known[key]
    return found


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
    asked: dict[str, dict[str, Any]] = {}
    for step in plan["steps"]:
        spec = services.registry.capabilities.get(step["capability"])
        if spec is None or step["capability"] in CLOSING:
            continue
        if step["context_key"] in done:
            continue
        if spec.requires_approval or settings.steps == "all":
            asked[step["context_key"]] = {"kind": "step", "capability": spec.name}
    return asked


def _respond(state: AgentState) -> Any:
    task = state.get("task_current_task") or ""
    return {"context_key": "answer", "capability": "respond", "task_objective": task}
