"""Writes the plan, and lets nothing wrong start."""

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
from capgraph.engine.accept_plan import (
    Checked,
    PlanProblemsError,
    accept,
    check,
    labels_of_words,
    respond_step,
)
from capgraph.engine.default_strategies import SummaryAnswerer
from capgraph.engine.looking import (
    finished_steps,
    new_steps,
    offline_selector,
    split_reply,
    with_look,
)
from capgraph.engine.model_replies import (
    find_doubt,
    fits_nothing,
    is_refusal,
    read_reply,
    with_suppliers,
    without_unasked_effects,
)
from capgraph.engine.recipes import plan_of_recipe
from capgraph.engine.routing import LOOKED, due_looks, ends_with_look
from capgraph.infrastructure.respond import list_abilities
from capgraph.models.calls import reply_remedy
from capgraph.models.roles import RoleModel
from capgraph.pipeline.run_config import current_caller
from capgraph.planning import CLOSING, RESPOND
from capgraph.planning.person_message import FORM, PLAN, readable
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
        active = _allowed(selection["chosen"] if deferred else view.active or (), view, services)
        if not active:
            empty = Checked(ExecutionPlan(steps=[respond_step(view.task)]))
            return await accept(empty, view, services)
        drafts = _Drafts(view, services, _Reach(active, deferred))
        found = await drafts.checked()
        assert found is not None, "only a plan that exists can be kept"
        assert found.checked is not None, "only the turn of a plan that exists can be ended"
        previous = view.plan if view.has_plan else None
        update = await accept(
            found.checked, view, services, previous=previous, plans_made=drafts.made
        )
        # Corrections of a plan are plans too.
        update["control_budget"]["plans"] = view.budget.get("plans", 0) + drafts.made
        if found.answer:
            update["task_custom_message"] = found.answer
        used = _capabilities(found.checked.plan)
        if not deferred:
            return update
        emit(CapabilitiesSelected(capabilities=used, reason=selection["reason"]))
        return {**update, "planning_active_capabilities": used}

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Allow for the passing faults of a model service."""
        return {"max_attempts": 4, "delay_seconds": 2.0, "backoff_factor": 2.0}


def _allowed(names: Iterable[str], view: TurnView, services: Services) -> tuple[str, ...]:
    """Return the capabilities without those that the caller may not use.

    A turn may be resumed by another caller than the one who began it.
    """
    hidden = services.registry.capabilities.keys() - services.registry_of(view).capabilities
    return tuple(name for name in names if name not in hidden)


def _capabilities(plan: ExecutionPlan) -> list[str]:
    """Return the capabilities that a plan uses, each once."""
    names = dict.fromkeys(step["capability"] for step in plan["steps"])
    return [name for name in names if name not in CLOSING]


async def _look(view: TurnView, services: Services, looks: tuple[str, ...]) -> dict[str, Any]:
    """Show the planner the results, and put in force what it writes next.

    Without a change the plan in force goes on. A change that is refused leaves it in force too, and
    the turn's outcome says what was not done.
    """
    used, limit = view.budget.get("looks", 0), services.limits.max_looks
    seen: dict[str, Any] = {
        "execution_step_results": {key: {**view.results[key], LOOKED: True} for key in looks},
        "control_budget": {"looks": used + 1},
    }
    after = ", ".join(looks)
    if used >= limit:
        note = f"The plan was not reconsidered after {after}: limits.max_looks is {limit}."
        wanted = [f"after {after}"] if ends_with_look(view.steps) else []
        return {**seen, **_unplanned(note, wanted, "the turn reached its limit of looks.")}
    drafts = _Drafts(view, services, await _reach_of_look(view, services), looks)
    try:
        found = await drafts.checked()
    except (PlanError, PolicyError, LimitError) as exc:
        note = f"The plan was kept after {after}: {exc}"
        wanted = drafts.refused_steps() or [f"after {after}"]
        told = "" if isinstance(exc, PlanError) else readable(exc.person_message)
        reason = told or "the plan for it was refused."
        return {**seen, **_unplanned(note, wanted, reason)}
    if found is None:
        return seen
    update = seen
    if found.checked is not None:
        update = await accept(found.checked, view, services, previous=view.plan, plans_made=0)
        update["control_budget"] |= seen["control_budget"]
        if view.active is not None:
            names = (*view.active, *_capabilities(found.checked.plan))
            update["planning_active_capabilities"] = list(dict.fromkeys(names))
    if found.answer:
        update["task_custom_message"] = found.answer
    return {**update, "planning_missing": {}}  # what was refused before is decided anew


def _is_over(view: TurnView) -> bool:
    """Return True if no step of the plan in force is left to run."""
    work = (key for key, step in view.planned.items() if step["capability"] not in CLOSING)
    return all(key in view.done or key in view.skipped for key in work)


def _unplanned(note: str, wanted: Iterable[str], reason: str) -> dict[str, Any]:
    """Return the update that records work that a look wanted and that no plan in force does."""
    get_streamer("framework", "orchestrator").warning(note)
    return {"planning_notes": [note], "planning_missing": dict.fromkeys(wanted, reason)}


class _Reach(NamedTuple):
    """Capabilities of a plan.

    Attributes:
        shown: Those that the planner is shown.
        is_all: True if they are all that may be used, so that the planner chooses among them.
        accepted: Those that the plan may use; ``None`` for the shown ones.
    """

    shown: tuple[str, ...]
    is_all: bool
    accepted: tuple[str, ...] | None = None


async def _reach_of_look(view: TurnView, services: Services) -> _Reach:
    """Return the capabilities of a look: all, or past the budget the chosen and the nearest ones.

    A result may call for any capability, so that the plan may use each that the caller may use.
    """
    registry = services.registry_of(view)
    selection = view.state.get("planning_selection") or {}
    if selection.get("deferred"):
        return _Reach(_allowed(selection["chosen"], view, services), is_all=True)
    fits = getattr(getattr(services.planner, "catalogue", None), "room", 0) >= 0
    if view.active is None and fits:  # the plan is a caller's: nothing was chosen
        return _Reach(tuple(registry.capabilities), is_all=True)
    candidates, excluded = registry.candidates(), dict(view.excluded)
    accepted = tuple(c.name for c in candidates if c.name not in excluded)
    names = list(view.active or ())
    if (offline := offline_selector(services.selector)) is not None:
        limit = services.settings.selection.shortlist
        near = await offline.nearest(view.request, candidates, limit, excluded)
        names += [candidate.name for candidate in near]
    return _Reach(_allowed(dict.fromkeys(names), view, services), False, accepted)


class _Draft(NamedTuple):
    """A reply of the planner that was accepted.

    Attributes:
        checked: The plan; ``None`` where only the answer is new.
        answer: The reply to the person that came with it.
    """

    checked: Checked | None
    answer: str


@dataclass
class _Drafts:
    """Plans that the planner writes on one visit, until one can run.

    Attributes:
        view: The turn.
        services: Shared dependencies.
        reach: Capabilities of the plan.
        looks: Steps whose results the planner looks at.
        made: How many plans were written.
        refused: The last plan that had problems.
    """

    view: TurnView
    services: Services
    reach: _Reach
    looks: tuple[str, ...] = ()
    made: int = 0
    refused: Any = None

    async def checked(self) -> _Draft | None:
        """Return a plan that can run; ``None`` for keeping the plan that is looked at.

        Raises:
            PlanError: No plan without problems was written.
            PolicyError: A policy refuses the plan.
        """
        view, services = self.view, self.services
        request, active = await self._request()
        labels = labels_of_words("orchestrator", view, services)
        if services.flow is not None:
            labels = {**services.flow.notes(request["notes"]), **labels}
        known = await plan_of_recipe(PlanRequest(**request), view, services)
        if known is not None:
            self.made, own_words = 1, view.task == last_request(view.messages)
            return _Draft(
                await check(known, view, services, active, None if own_words else labels), ""
            )
        problem: PlanError | None = None
        written = view.state.get("control_plans_created_count", 0) if not self.looks else 0
        allowed = max(1, services.limits.max_planning_attempts - written)
        for self.made in range(1, allowed + 1):
            asked = PlanRequest(**request)
            reply: Any = read_reply(await services.planner.plan(asked), asked, services)
            if self.made < allowed and not self.looks:
                doubt = await find_doubt(reply, asked, services)
                if doubt is not None:
                    # One step is shown of a doubtful plan: small models copy the plans they see.
                    steps = reply["steps"]
                    shown = steps if doubt.step is None else steps[doubt.step : doubt.step + 1]
                    request |= {"problems": (doubt,), "refused": {"steps": shown}}
                    continue
            reply = await without_unasked_effects(reply, asked, services)
            try:
                return await self._accepted(reply, asked, active, labels)
            except PlanProblemsError as exc:
                _reclassify(exc, self.reach.is_all or bool(self.looks))
                problem, self.refused = exc, reply
                request |= {"problems": exc.problems, "refused": reply}
                if not planner_traits(services.planner).can_correct:
                    break
        assert problem is not None
        if not self.looks and await fits_nothing(request["refused"], asked, services):
            return await self._accepted({"steps": []}, asked, active, labels)
        raise _of_model(problem, request["refused"], services)

    async def _accepted(
        self,
        reply: Any,
        asked: PlanRequest,
        active: tuple[str, ...],
        labels: Mapping[str, str],
    ) -> _Draft | None:
        """Return what a reply says, checked; ``None`` if it keeps the plan in force."""
        plan, answer, wants_look = split_reply(reply, self.services)
        if self.looks and isinstance(plan, dict) and isinstance(plan.get("steps"), list):
            new = new_steps(plan["steps"], self.view, asked.catalog)
            if not new and not answer and (not plan["steps"] or _is_over(self.view)):
                return None
            text = answer if not new and self._may_answer() else ""
            if not new and _is_over(self.view):
                return _Draft(None, text)
            plan = {**plan, "steps": [*finished_steps(self.view), *new]}
            answer = text
        plan = await with_suppliers(plan, asked, self.services)
        checked = await check(plan, self.view, self.services, active, labels)
        if wants_look:
            checked = with_look(checked)
        return _Draft(checked, answer if self.looks else self._first_answer(answer, checked))

    def _may_answer(self) -> bool:
        """Return True if a planner's own words can be the answer: text that nobody has to judge."""
        return self.services.answer_type is None and self.services.answer_gate is None

    def _first_answer(self, answer: str, checked: Checked) -> str:
        """Return the reply that came with a plan without work, where nothing was done before.

        A planner that does not read the conversation cannot reply to a request that refers to it.
        """
        view = self.view
        works = any(step["capability"] != RESPOND for step in checked.plan["steps"])
        if works or view.results or view.last_failure or self.services.answer_type is not None:
            return ""
        if view.state.get("task_depends_on_chat_history"):
            return ""
        if planner_traits(self.services.planner).reads_conversation or not is_refusal(answer):
            return answer
        return _refusal(view, self.services)

    def refused_steps(self) -> list[str]:
        """Return the keys, or else the capabilities, of the steps of the plan that was refused."""
        steps = self.refused.get("steps") if isinstance(self.refused, dict) else None
        named = [step for step in steps or () if isinstance(step, dict)]
        keys = (str(step.get("context_key") or step.get("capability")) for step in named)
        return [key for key in dict.fromkeys(keys) if key not in self.view.done]

    async def _request(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return what the planner is asked, and the capabilities that its plan may use."""
        view, services, (shown, is_all, accepted) = self.view, self.services, self.reach
        failure = view.last_failure
        away = await services.runner.unavailable_capabilities()
        if away:
            instead = stand_ins(shown, away, services.registry.capabilities, view.contexts)
            shown = tuple(dict.fromkeys([*shown, *instead]))
        request: dict[str, Any] = {
            "task": view.task or last_request(view.messages),
            "active": shown,
            "catalog": services.registry_of(view),
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
            "excluded": view.excluded if is_all else {},
            "unavailable_capabilities": away,
            "budget_left": await services.budget_left(),
            "instructions": await services.instructions(view),
            "look_again": self.looks,
            "looks_left": services.limits.max_looks - view.budget.get("looks", 0) - 1,
            "recent": tuple((kind, key) for kind, key in view.turn.get("recent") or ()),
            "refers_back": bool(view.state.get("task_depends_on_chat_history")),
        }
        return request, shown if accepted is None else accepted


def _of_model(problem: PlanError, refused: Any, services: Services) -> PlanError:
    """Return the error of a refused plan; of a model's it names the model and the remedy."""
    role = getattr(services.planner, "role", None)
    if not isinstance(role, RoleModel) or problem.person_message:
        return problem
    is_empty = refused in ("", None, "{}", {})
    if is_empty or isinstance(refused, str):
        read, fix = "cannot be read", reply_remedy("" if is_empty else refused)
    else:
        read, fix = "was refused", "Use a model that plans better, or ask in other words."
    return PlanProblemsError(
        f"The plan of the model {role.name!r} ({role.role}) {read}. {problem.message}",
        fix=fix,
        severity=ErrorSeverity.CRITICAL,
        problems=getattr(problem, "problems", ()),
        person_message=f"{PLAN} {FORM}",
    )


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
