"""Writes the plan, and lets nothing wrong start."""

from __future__ import annotations

from typing import Any

from framework.base import (
    BaseInfrastructureNode,
    ErrorSeverity,
    ExecutionPlan,
    PlanError,
    PolicyError,
    infrastructure_node,
)
from framework.engine import Services
from framework.engine.accept_plan import (
    Checked,
    PlanProblemsError,
    accept,
    check,
    is_accepted,
    respond_step,
)
from framework.pipeline.failures import raise_failure, refusal
from framework.planning.problems import INACTIVE_CAPABILITY
from framework.planning.strategies import PlanRequest
from framework.state import AgentState, TurnView


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
        view = services.view(state)
        if view.has_plan and not is_accepted(view) and not view.budget.get("plans"):
            return await _of_caller(view, services)
        active = view.active or ()
        if not active:
            empty = Checked(ExecutionPlan(steps=[respond_step(view.task)]))
            return await accept(empty, view, services)
        checked, made = await _plan(view, services, active)
        previous = view.plan if view.has_plan else None
        update = await accept(checked, view, services, previous=previous, plans_made=made)
        # Corrections of a plan are plans too.
        update["control_budget"]["plans"] = view.budget.get("plans", 0) + made
        return update

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Allow for the passing faults of a model service."""
        return {"max_attempts": 4, "delay_seconds": 2.0, "backoff_factor": 2.0}


async def _of_caller(view: TurnView, services: Services) -> dict[str, Any]:
    try:
        checked = await check(view.plan, view, services, active=None)
    except (PlanError, PolicyError) as exc:
        # What was refused must not stay where checked plans stand.
        return {
            **raise_failure([refusal("orchestrator", exc)]),
            "planning_execution_plan": None,
        }
    return await accept(checked, view, services, author="caller")


async def _plan(view: TurnView, services: Services, active: tuple[str, ...]) -> tuple[Checked, int]:
    failure = view.last_failure
    request: dict[str, Any] = {
        "task": view.task,
        "active": active,
        "catalog": services.registry,
        "available": view.contexts,
        "guides": services.registry.planning_guides(active),
        "notes": await services.registry.planning_notes(active, view.state, services.settings)
        if services.planner.can_correct
        else {},
        "failure": failure.get("classification"),
        "failed_capability": failure.get("capability_name"),
        "previous": view.plan if view.has_plan else None,
        "finished": {key: r for key, r in view.results.items() if r.get("success")},
        "messages": view.messages,
    }
    made = view.state.get("control_plans_created_count", 0)
    allowed = max(1, services.limits.max_planning_attempts - made)
    problem: PlanError | None = None
    for attempt in range(1, allowed + 1):
        plan = await services.planner.plan(PlanRequest(**request))
        try:
            return await check(plan, view, services, active), attempt
        except PlanProblemsError as exc:
            problem = exc
            request |= {"problems": exc.problems, "refused": plan}
            if not services.planner.can_correct:
                break
            _reclassify(exc, services)
    assert problem is not None
    _reclassify(problem, services)
    raise problem


def _reclassify(problem: PlanError, services: Services) -> None:
    """Have the capabilities chosen again when a plan needs one that is there but was not chosen.

    Raises:
        PlanError: It does.
    """
    if not isinstance(problem, PlanProblemsError):
        return
    unchosen = [p for p in problem.problems if p.code == INACTIVE_CAPABILITY]
    if unchosen and len(unchosen) == len(problem.problems):
        raise PlanError(
            f"The plan needs capabilities that were not chosen: {problem.message}",
            severity=ErrorSeverity.RECLASSIFICATION,
        )
