"""Node that writes the plan and rejects invalid plans before they run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

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
from capgraph.engine.default_strategies import SummaryAnswerer
from capgraph.engine.model_replies import (
    drop_unrequested_effects,
    find_doubt,
    insert_suppliers,
    is_refusal,
    matches_no_capability,
    offline_selector,
    read_reply,
)
from capgraph.engine.plan_acceptance import (
    CheckedPlan,
    PlanProblemsError,
    accept_plan,
    plan_labels,
    prepare_plan,
    respond_step,
)
from capgraph.engine.plan_reviews import (
    finished_steps,
    new_steps,
    require_final_review,
    split_reply,
)
from capgraph.engine.recipes import plan_from_recipe
from capgraph.engine.routing import REVIEWED_KEY, due_reviews, ends_with_review
from capgraph.infrastructure.respond import list_capabilities
from capgraph.models.calls import malformed_reply_fix
from capgraph.models.roles import RoleModel
from capgraph.pipeline.run_config import current_caller
from capgraph.planning import RESPOND, TERMINAL_STEPS
from capgraph.planning.fallbacks import find_fallbacks
from capgraph.planning.person_message import MALFORMED_REPLY, PLAN_FAILED, readable_text
from capgraph.planning.planner_traits import planner_traits
from capgraph.planning.problems import INACTIVE_CAPABILITY
from capgraph.planning.strategies import AnswerRequest, PlanRequest, last_request
from capgraph.state import AgentState, TurnView
from capgraph.telemetry import CapabilitiesSelected, emit


@infrastructure_node
class OrchestratorNode(BaseInfrastructureNode):
    """Node that uses the planner to create a valid execution plan for the task.

    If no plan is valid, an error lists the problems.
    """

    name = "orchestrator"
    description = "Execution planning"

    @staticmethod
    async def execute(
        state: AgentState, services: Services, streamer: Any, **_: Any
    ) -> dict[str, Any]:
        """Create a plan for the task, or review the plan after a step marked ``look_again``."""
        streamer.status("Planning")
        view = services.view(state)
        looks = () if view.last_failure else due_reviews(view.steps, view.results)
        if looks:
            return await _review_plan(view, services, looks)
        selection = view.state.get("planning_selection") or {}
        deferred = bool(selection.get("deferred"))
        active = _filter_permitted(
            selection["chosen"] if deferred else view.selected_capabilities or (), view, services
        )
        if not active:
            empty = CheckedPlan(ExecutionPlan(steps=[respond_step(view.task)]))
            return await accept_plan(empty, view, services)
        drafts = _PlanDrafter(view, services, _PlanScope(active, deferred))
        draft = await drafts.draft_plan()
        assert draft is not None, "only an existing plan can be left unchanged"
        assert draft.checked is not None, "only a turn with a plan can end with an answer alone"
        previous = view.plan if view.has_plan else None
        update = await accept_plan(
            draft.checked, view, services, previous=previous, plans_made=drafts.plans_made
        )
        # Corrections count as plans.
        update["control_budget"]["plans"] = view.budget.get("plans", 0) + drafts.plans_made
        if draft.gives_up:
            update["planning_missing"] = _list_abandoned_steps(view)
        if draft.answer:
            update["task_custom_message"] = draft.answer
        used_capabilities = _list_plan_capabilities(draft.checked.plan)
        if not deferred:
            return update
        emit(CapabilitiesSelected(capabilities=used_capabilities, reason=selection["reason"]))
        return {**update, "planning_active_capabilities": used_capabilities}

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Return the retry policy for transient model-service errors."""
        return {"max_attempts": 4, "delay_seconds": 2.0, "backoff_factor": 2.0}


def _filter_permitted(names: Iterable[str], view: TurnView, services: Services) -> tuple[str, ...]:
    """Filter capability names to those that the caller may use.

    The filter is needed because a different caller may have selected the capabilities.
    """
    hidden = services.registry.capabilities.keys() - services.registry_for(view).capabilities
    return tuple(name for name in names if name not in hidden)


def _list_plan_capabilities(plan: ExecutionPlan) -> list[str]:
    """Return the names of the capabilities that a plan uses, without duplicates."""
    names = dict.fromkeys(step["capability"] for step in plan["steps"])
    return [name for name in names if name not in TERMINAL_STEPS]


async def _review_plan(
    view: TurnView, services: Services, reviewed_steps: tuple[str, ...]
) -> dict[str, Any]:
    """Ask the planner to review the plan in view of the results so far.

    If the planner changes nothing or proposes an invalid change, the current plan remains in
    effect. Invalid changes are recorded in the outcome of the turn.
    """
    used, limit = view.budget.get("looks", 0), services.limits.max_looks
    review_update: dict[str, Any] = {
        "execution_step_results": {
            key: {**view.results[key], REVIEWED_KEY: True} for key in reviewed_steps
        },
        "control_budget": {"looks": used + 1},
    }
    after = ", ".join(reviewed_steps)
    if used >= limit:
        note = f"The plan was not reviewed after {after}: limits.max_looks is {limit}."
        missing_work = [f"after {after}"] if ends_with_review(view.steps) else []
        return {
            **review_update,
            **_create_unplanned_work_update(
                note, missing_work, "the turn reached its limit of plan reviews."
            ),
        }
    drafts = _PlanDrafter(
        view, services, await _create_review_scope(view, services), reviewed_steps
    )
    try:
        draft = await drafts.draft_plan()
    except (PlanError, PolicyError, LimitError) as exc:
        note = f"The plan stays unchanged after {after}: {exc}"
        missing_work = drafts.rejected_steps() or [f"after {after}"]
        person_message = "" if isinstance(exc, PlanError) else readable_text(exc.person_message)
        reason = person_message or "the plan for it was refused."
        return {**review_update, **_create_unplanned_work_update(note, missing_work, reason)}
    if draft is None:
        return review_update
    update = review_update
    if draft.checked is not None:
        update = await accept_plan(draft.checked, view, services, previous=view.plan, plans_made=0)
        update["control_budget"] |= review_update["control_budget"]
        if view.selected_capabilities is not None:
            names = (*view.selected_capabilities, *_list_plan_capabilities(draft.checked.plan))
            update["planning_active_capabilities"] = list(dict.fromkeys(names))
    if draft.answer:
        update["task_custom_message"] = draft.answer
    return {**update, "planning_missing": {}}  # an earlier rejection no longer applies


def _list_abandoned_steps(view: TurnView) -> dict[str, str]:
    """Map each unfinished step of a failed plan to the reason why it did not run."""
    details = (view.last_failure.get("classification") or {}).get("metadata") or {}
    rejected = details.get("rejected_by_person") or {}
    reason = readable_text(str(view.last_failure.get("user_message") or ""))
    done = view.succeeded_keys | view.skipped_keys
    return {
        key: f"a person rejected it. {rejected[key]}".strip() if key in rejected else reason
        for key, step in view.steps_by_key.items()
        if key not in done and step["capability"] not in TERMINAL_STEPS
    }


def _is_plan_finished(view: TurnView) -> bool:
    """Return True if all steps of the current plan have succeeded or were skipped."""
    work = (
        key for key, step in view.steps_by_key.items() if step["capability"] not in TERMINAL_STEPS
    )
    return all(key in view.succeeded_keys or key in view.skipped_keys for key in work)


def _create_unplanned_work_update(note: str, steps: Iterable[str], reason: str) -> dict[str, Any]:
    """Create the state update for work that a plan review requested but no plan contains."""
    get_streamer("framework", "orchestrator").warning(note)
    return {"planning_notes": [note], "planning_missing": dict.fromkeys(steps, reason)}


class _PlanScope(NamedTuple):
    """Set of capabilities that the planner sees and that its plan may use.

    Attributes:
        shown: Capabilities listed in the planner's prompt.
        is_unrestricted: True if the prompt lists all permitted capabilities.
        allowed: Capabilities that the plan may use. ``None`` allows only the shown
            capabilities.
    """

    shown: tuple[str, ...]
    is_unrestricted: bool
    allowed: tuple[str, ...] | None = None


async def _create_review_scope(view: TurnView, services: Services) -> _PlanScope:
    """Choose the capabilities that the planner sees and may use in a plan review.

    The prompt lists all permitted capabilities if they fit the token budget. Otherwise, it
    lists the selected capabilities and the most similar ones. The plan may use any permitted
    capability.
    """
    registry = services.registry_for(view)
    selection = view.state.get("planning_selection") or {}
    if selection.get("deferred"):
        return _PlanScope(
            _filter_permitted(selection["chosen"], view, services), is_unrestricted=True
        )
    catalog_fits = getattr(getattr(services.planner, "catalog", None), "remaining_tokens", 0) >= 0
    if (
        view.selected_capabilities is None and catalog_fits
    ):  # a plan of the caller: no capability was selected
        return _PlanScope(tuple(registry.capabilities), is_unrestricted=True)
    candidates, excluded = registry.candidates(), dict(view.excluded_capabilities)
    accepted = tuple(c.name for c in candidates if c.name not in excluded)
    names = list(view.selected_capabilities or ())
    if (offline := offline_selector(services.selector)) is not None:
        limit = services.settings.selection.shortlist
        similar = await offline.nearest_candidates(view.request_text, candidates, limit, excluded)
        names += [candidate.name for candidate in similar]
    return _PlanScope(_filter_permitted(dict.fromkeys(names), view, services), False, accepted)


class _PlanDraft(NamedTuple):
    """Planner reply that was accepted as a plan, an answer, or both.

    Attributes:
        checked: Validated plan, or ``None`` if the reply contains only an answer.
        answer: Answer to the user included in the reply, or an empty string.
        gives_up: True if the reply to a failure has no steps.
    """

    checked: CheckedPlan | None
    answer: str
    gives_up: bool = False


@dataclass
class _PlanDrafter:
    """Loop that requests plans from the planner until one is valid.

    Attributes:
        view: Current state of the turn.
        services: Services of the graph.
        scope: Capabilities that the planner sees and may use.
        reviewed_steps: Steps whose results the planner reviews.
        plans_made: Number of plans that the planner has written.
        rejected_plan: Last plan that was rejected because of problems.
    """

    view: TurnView
    services: Services
    scope: _PlanScope
    reviewed_steps: tuple[str, ...] = ()
    plans_made: int = 0
    rejected_plan: Any = None

    async def draft_plan(self) -> _PlanDraft | None:
        """Request plans until one is valid.

        Returns ``None`` if a review keeps the current plan.

        Raises:
            PlanError: The planner did not write a valid plan within the maximum number of attempts.
            PolicyError: A policy denies the plan.
        """
        view, services = self.view, self.services
        request, active = await self._build_request()
        labels = plan_labels("orchestrator", view, services)
        if services.flow is not None:
            labels = {**services.flow.note_labels(request["notes"]), **labels}
        recipe_plan = await plan_from_recipe(PlanRequest(**request), view, services)
        if recipe_plan is not None:
            self.plans_made, own_words = 1, view.task == last_request(view.messages)
            return _PlanDraft(
                await prepare_plan(
                    recipe_plan, view, services, active, None if own_words else labels
                ),
                "",
            )
        problem: PlanError | None = None
        written = view.state.get("control_plans_created_count", 0) if not self.reviewed_steps else 0
        allowed = max(1, services.limits.max_planning_attempts - written)
        for self.plans_made in range(1, allowed + 1):
            plan_request = PlanRequest(**request)
            reply: Any = read_reply(
                await services.planner.plan(plan_request), plan_request, services
            )
            if self.plans_made < allowed and not self.reviewed_steps:
                doubt = await find_doubt(reply, plan_request, services)
                if doubt is not None:
                    # Show only the doubtful step: small models copy the plans they see.
                    steps = reply["steps"]
                    shown = steps if doubt.step is None else steps[doubt.step : doubt.step + 1]
                    request |= {"problems": (doubt,), "refused": {"steps": shown}}
                    continue
            reply = await drop_unrequested_effects(reply, plan_request, services)
            try:
                return await self._accept_reply(reply, plan_request, active, labels)
            except PlanProblemsError as exc:
                _raise_if_only_unselected(
                    exc, self.scope.is_unrestricted or bool(self.reviewed_steps)
                )
                problem, self.rejected_plan = exc, reply
                request |= {"problems": exc.problems, "refused": reply}
                if not planner_traits(services.planner).can_correct:
                    break
        assert problem is not None
        if not self.reviewed_steps and await matches_no_capability(
            request["refused"], plan_request, services
        ):
            return await self._accept_reply({"steps": []}, plan_request, active, labels)
        raise _add_model_remedy(problem, request["refused"], services)

    async def _accept_reply(
        self,
        reply: Any,
        request: PlanRequest,
        capabilities: tuple[str, ...],
        labels: Mapping[str, str],
    ) -> _PlanDraft | None:
        """Validate the planner's reply and return its plan.

        Returns ``None`` to keep the current plan.
        """
        plan, answer, wants_look = split_reply(reply, self.services)
        gives_up = (
            bool(self.view.last_failure) and isinstance(plan, dict) and plan.get("steps") == []
        )
        if self.reviewed_steps and isinstance(plan, dict) and isinstance(plan.get("steps"), list):
            new = new_steps(plan["steps"], self.view, request.catalog)
            if not new and not answer and (not plan["steps"] or _is_plan_finished(self.view)):
                return None
            can_answer = self.services.can_answer_directly(self.view)
            text = answer if not new and can_answer else ""
            if not new and _is_plan_finished(self.view):
                return _PlanDraft(None, text)
            plan = {**plan, "steps": [*finished_steps(self.view), *new]}
            answer = text
        elif gives_up:
            plan = {**plan, "steps": finished_steps(self.view)}  # the answer reports their results
        plan = await insert_suppliers(plan, request, self.services)
        checked = await prepare_plan(plan, self.view, self.services, capabilities, labels)
        if wants_look:
            checked = require_final_review(checked)
        if not (
            self.reviewed_steps or answer or request.instructions or _has_work(checked)
        ) and await matches_no_capability(
            plan, request, self.services
        ):  # the answer of a small model would not list the abilities
            answer = _write_refusal(self.view, self.services)
        return _PlanDraft(
            checked,
            answer if self.reviewed_steps else self._find_direct_answer(answer, checked),
            gives_up and not self.reviewed_steps,
        )

    def _find_direct_answer(self, answer: str, plan: CheckedPlan) -> str:
        """Return the answer that the planner gave directly, without running any steps.

        The answer is not used if any step did work, or if the request refers to earlier messages
        that the planner does not read.
        """
        view = self.view
        has_type = self.services.answer_type_of(view.state) is not None
        if _has_work(plan) or view.results or view.last_failure or has_type:
            return ""
        if view.state.get("task_depends_on_chat_history"):
            return ""
        if planner_traits(self.services.planner).reads_conversation or not is_refusal(answer):
            return answer
        return _write_refusal(view, self.services)

    def rejected_steps(self) -> list[str]:
        """Return the context keys of the rejected plan's unfinished steps.

        A step without a key is identified by its capability.
        """
        steps = self.rejected_plan.get("steps") if isinstance(self.rejected_plan, dict) else None
        named = [step for step in steps or () if isinstance(step, dict)]
        keys = (str(step.get("context_key") or step.get("capability")) for step in named)
        return [key for key in dict.fromkeys(keys) if key not in self.view.succeeded_keys]

    async def _build_request(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Build the input for the planner.

        Returns the input and the names of the capabilities that the plan may use.
        """
        view, services, (shown, is_all, accepted) = self.view, self.services, self.scope
        failure = view.last_failure
        unavailable = await services.runner.unavailable_capabilities()
        if unavailable:
            fallbacks = find_fallbacks(
                shown, unavailable, services.registry.capabilities, view.contexts
            )
            shown = tuple(dict.fromkeys([*shown, *fallbacks]))
        request: dict[str, Any] = {
            "task": view.task or last_request(view.messages),
            "active": shown,
            "catalog": services.registry_for(view),
            "available": view.contexts,
            "guides": services.registry.planning_guides(shown),
            "notes": await services.registry.planning_notes(
                shown, view.state, services.settings, current_caller().storage_key
            )
            if planner_traits(services.planner).can_correct
            else {},
            "failure": failure.get("classification"),
            "failed_capability": failure.get("capability_name"),
            "previous": view.plan if view.has_plan else None,
            "finished": {
                key: record
                for key, record in view.results.items()
                if (record.get("success") or record.get("observed")) and key == plan_key(key)
            },
            "messages": view.messages,
            "chosen": not is_all,
            "excluded": view.excluded_capabilities if is_all else {},
            "unavailable_capabilities": unavailable,
            "budget_left": await services.budget_left(),
            "instructions": await services.instructions(view),
            "look_again": self.reviewed_steps,
            "looks_left": services.limits.max_looks - view.budget.get("looks", 0) - 1,
            "recent": tuple((kind, key) for kind, key in view.turn.get("recent") or ()),
            "refers_back": bool(view.state.get("task_depends_on_chat_history")),
        }
        return request, shown if accepted is None else accepted


def _has_work(plan: CheckedPlan) -> bool:
    """Return True if a plan has a step other than the final answer."""
    return any(step["capability"] != RESPOND for step in plan.plan["steps"])


def _add_model_remedy(error: PlanError, reply: Any, services: Services) -> PlanError:
    """Add the model name and a suggested fix to the error for a rejected plan.

    The error is unchanged if no model wrote the plan.
    """
    role = getattr(services.planner, "role", None)
    if not isinstance(role, RoleModel) or error.person_message:
        return error
    is_empty = reply in ("", None, "{}", {})
    if is_empty or isinstance(reply, str):
        problem_text, fix = "cannot be read", malformed_reply_fix("" if is_empty else reply)
    else:
        problem_text, fix = (
            "was rejected",
            "Use a model that plans better, or rephrase the request.",
        )
    return PlanProblemsError(
        f"The plan of the model {role.name!r} ({role.role}) {problem_text}. {error.message}",
        fix=fix,
        severity=ErrorSeverity.CRITICAL,
        problems=getattr(error, "problems", ()),
        person_message=f"{PLAN_FAILED} {MALFORMED_REPLY}",
    )


def _write_refusal(view: TurnView, services: Services) -> str:
    """Write a reply that declines a request because no capability can fulfill it."""
    abilities = list_capabilities(services, view)
    task = view.task or last_request(view.messages)
    return SummaryAnswerer().compose(AnswerRequest(task, "conversation", abilities=abilities))


def _raise_if_only_unselected(error: PlanProblemsError, could_choose_all: bool) -> None:
    """Raise a RECLASSIFICATION error if unselected capabilities are the only plan problem.

    The error triggers a new selection of capabilities.

    Raises:
        PlanError: All problems of the plan are capabilities that were not selected.
    """
    if could_choose_all:
        return  # the planner saw all capabilities; selecting again changes nothing
    unchosen = [p for p in error.problems if p.code == INACTIVE_CAPABILITY]
    if unchosen and len(unchosen) == len(error.problems):
        raise PlanError(
            f"The plan needs capabilities that were not selected: {error.message}",
            severity=ErrorSeverity.RECLASSIFICATION,
        )
