"""Writes the plan, and lets nothing wrong start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capgraph.base import (
    BaseInfrastructureNode,
    ErrorSeverity,
    ExecutionPlan,
    LimitError,
    PlanError,
    PolicyError,
    infrastructure_node,
)
from capgraph.base.plan import plan_key
from capgraph.configs.streaming import get_streamer
from capgraph.engine import Services
from capgraph.engine.accept_plan import (
    Checked,
    PlanProblemsError,
    accept,
    check,
    labels_of_words,
    respond_step,
)
from capgraph.engine.default_strategies import SummaryAnswerer
from capgraph.engine.model_replies import find_overlooked, is_refusal, read_reply, with_suppliers
from capgraph.engine.recipes import plan_of_recipe
from capgraph.engine.routing import LOOKED, due_looks
from capgraph.infrastructure.respond import list_abilities
from capgraph.pipeline.run_config import current_caller
from capgraph.planning import CLOSING, RESPOND
from capgraph.planning.planner_traits import planner_traits
from capgraph.planning.problems import INACTIVE_CAPABILITY
from capgraph.planning.reach import stand_ins
from capgraph.planning.strategies import AnswerRequest, PlanRequest, last_request
from capgraph.state import AgentState, TurnView
from capgraph.telemetry import CapabilitiesSelected, emit


@infrastructure_node
class OrchestratorNode(BaseInfrastructureNode):
    """Writes a plan that has been checked, or raises with the list of what is wrong."""

    name = "orchestrator"
    description = "Execution planning"

    @staticmethod
    async def execute(
        state: AgentState, services: Services, streamer: Any, **_: Any
    ) -> dict[str, Any]:
        """Plan the task."""
        streamer.status("Planning")
        view = services.view(state)
        looks = () if view.last_failure else due_looks(view.steps, view.results)
        if looks:
            return await _look(view, services, looks)
        selection = view.state.get("planning_selection") or {}
        deferred = bool(selection.get("deferred"))
        chosen = tuple(selection["chosen"]) if deferred else view.active or ()
        # Whoever goes on with a turn may be another one than who began it.
        hidden = services.registry.capabilities.keys() - services.registry_of(view).capabilities
        active = tuple(name for name in chosen if name not in hidden)
        if not active:
            empty = Checked(ExecutionPlan(steps=[respond_step(view.task)]))
            return await accept(empty, view, services)
        found = await _plan(view, services, active, deferred)
        assert found is not None, "only a plan that is there already can be kept"
        checked, made, answer = found
        previous = view.plan if view.has_plan else None
        update = await accept(checked, view, services, previous=previous, plans_made=made)
        # Corrections of a plan are plans too.
        update["control_budget"]["plans"] = view.budget.get("plans", 0) + made
        if answer:
            update["task_custom_message"] = answer
        return {**update, **_chosen(checked.plan, selection, services)} if deferred else update

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Allow for the passing faults of a model service."""
        return {"max_attempts": 4, "delay_seconds": 2.0, "backoff_factor": 2.0}


def _chosen(
    plan: ExecutionPlan, selection: Mapping[str, Any], services: Services
) -> dict[str, Any]:
    """Say which capabilities a plan chose; those it could choose from stay known."""
    steps = (step["capability"] for step in plan["steps"])
    used = [name for name in dict.fromkeys(steps) if name not in CLOSING]
    emit(CapabilitiesSelected(capabilities=used, reason=selection["reason"]))
    return {"planning_active_capabilities": used}


async def _look(view: TurnView, services: Services, looks: tuple[str, ...]) -> dict[str, Any]:
    """Let the planner change what has not begun; without a change the plan in force goes on."""
    used, bound = view.budget.get("looks", 0), services.limits.max_looks
    count = {"looks": used + 1}
    kept: dict[str, Any] = {
        "execution_step_results": {key: {**view.results[key], LOOKED: True} for key in looks},
        "control_budget": count,
    }
    say = get_streamer("framework", "orchestrator").warning
    if used >= bound:
        note = (
            f"The plan was not reconsidered after {', '.join(looks)}: limits.max_looks is {bound}."
        )
        say(note)
        return {**kept, "planning_notes": [note]}
    known = services.registry_of(view).capabilities
    active = tuple(name for name in view.active or known if name in known)
    try:
        found = await _plan(view, services, active, view.active is None, looks)
    except (PlanError, PolicyError, LimitError) as exc:
        note = f"The plan was kept after {', '.join(looks)}: {exc}"
        say(note)
        return {**kept, "planning_notes": [note]}
    if found is None:
        return kept
    update = await accept(found[0], view, services, previous=view.plan, plans_made=0)
    update["control_budget"] |= count
    return update


def _with_finished(plan: Any, view: TurnView) -> Any:
    """Return a plan in which steps that are done stand as they were: they stay done."""
    done = {key: view.planned[key] for key in view.done if key in view.planned}
    steps = []
    for step in plan["steps"]:
        given = step if isinstance(step, dict) else {}
        old = done.get(str(given.get("context_key")))
        same = old is not None and old["capability"] == given.get("capability")
        steps.append(old if same else step)
    return {**plan, "steps": steps}


async def _plan(
    view: TurnView,
    services: Services,
    active: tuple[str, ...],
    deferred: bool,
    looks: tuple[str, ...] = (),
) -> tuple[Checked, int, str] | None:
    """Have a plan made that can run; ``None`` for keeping the one that is looked at again."""
    failure = view.last_failure
    away = await services.runner.unavailable_capabilities()
    if away:
        instead = stand_ins(active, away, services.registry.capabilities, view.contexts)
        active = tuple(dict.fromkeys([*active, *instead]))
    request: dict[str, Any] = {
        "task": view.task or last_request(view.messages),
        "active": active,
        "catalog": services.registry_of(view),
        "available": view.contexts,
        "guides": services.registry.planning_guides(active),
        "notes": await services.registry.planning_notes(
            active, view.state, services.settings, current_caller().storage_key
        )
        if planner_traits(services.planner).can_correct
        else {},
        "failure": failure.get("classification"),
        "failed_capability": failure.get("capability_name"),
        "previous": view.plan if view.has_plan else None,
        "finished": {
            k: r for k, r in view.results.items() if r.get("success") and k == plan_key(k)
        },
        "messages": view.messages,
        "chosen": not deferred,
        "excluded": view.excluded if deferred else {},
        "unavailable_capabilities": away,
        "budget_left": await services.budget_left(),
        "instructions": await services.instructions(view),
        "look_again": looks,
        "refers_back": bool(view.state.get("task_depends_on_chat_history")),
    }
    labels = labels_of_words("orchestrator", view, services)
    if services.flow is not None:
        labels = {**services.flow.notes(request["notes"]), **labels}
    made = view.state.get("control_plans_created_count", 0)
    allowed = max(1, services.limits.max_planning_attempts - made)
    problem: PlanError | None = None
    known = await plan_of_recipe(PlanRequest(**request), view, services)
    if known is not None:
        own_words = view.task == last_request(view.messages)
        return await check(known, view, services, active, None if own_words else labels), 1, ""
    for attempt in range(1, allowed + 1):
        asked = PlanRequest(**request)
        plan: Any = read_reply(await services.planner.plan(asked), asked, services)
        if attempt < allowed and not looks:
            overlooked = await find_overlooked(plan, asked, services)
            if overlooked is not None:
                request |= {"problems": (overlooked,), "refused": plan}
                continue
        if looks and isinstance(plan, dict) and isinstance(plan.get("steps"), list):
            if not plan["steps"]:
                return None
            plan = _with_finished(plan, view)
        answer = None
        if isinstance(plan, dict) and "answer" in plan:  # the planner's reply, no part of the plan
            answer, plan = plan["answer"], {k: v for k, v in plan.items() if k != "answer"}
        plan = await with_suppliers(plan, asked, services)
        try:
            checked = await check(plan, view, services, active, labels)
            typed = services.answer_type is not None
            text = "" if typed else _answer(answer, checked, view)
            return checked, attempt, _refusal(view, services) if is_refusal(text) else text
        except PlanProblemsError as exc:
            _reclassify(exc, deferred)
            problem = exc
            request |= {"problems": exc.problems, "refused": plan}
            if not planner_traits(services.planner).can_correct:
                break
    assert problem is not None
    raise problem


def _answer(answer: Any, checked: Checked, view: TurnView) -> str:
    """Return the reply that came with a plan without work, where nothing was done before."""
    works = any(step["capability"] != RESPOND for step in checked.plan["steps"])
    if works or view.results or view.last_failure:
        return ""
    return answer.strip() if isinstance(answer, str) else ""


def _refusal(view: TurnView, services: Services) -> str:
    """Return the answer to what no capability does, in the agent's words in place of the model's."""
    abilities = list_abilities(services, view)
    task = view.task or last_request(view.messages)
    return SummaryAnswerer().compose(AnswerRequest(task, "conversation", abilities=abilities))


def _reclassify(problem: PlanProblemsError, deferred: bool) -> None:
    """Have the capabilities chosen again when a plan needs one that is there but was not chosen.

    Raises:
        PlanError: It does.
    """
    if deferred:
        return  # whoever could choose among all was told; choosing again changes nothing
    unchosen = [p for p in problem.problems if p.code == INACTIVE_CAPABILITY]
    if unchosen and len(unchosen) == len(problem.problems):
        raise PlanError(
            f"The plan needs capabilities that were not chosen: {problem.message}",
            severity=ErrorSeverity.RECLASSIFICATION,
        )
