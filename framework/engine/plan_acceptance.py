"""The one gate of a plan: whoever wrote it, it is checked, judged and put in force here."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from langgraph.types import Overwrite

from capgraph.approvals import PLAN
from capgraph.base.errors import ErrorSeverity, PlanError, PolicyError
from capgraph.base.plan import ExecutionPlan, PlannedStep, plan_key, tighten_limits
from capgraph.base.ports import Verdict, utc_now_text
from capgraph.engine.caller_plan import AcceptedDigest, plan_digest
from capgraph.engine.default_strategies import LastMessageExtractor
from capgraph.engine.model_replies import is_model_written, report_repairs
from capgraph.engine.plan_facts import default_parameter_notes, unavailable_steps
from capgraph.engine.routing import REVIEWED_KEY, ends_with_review
from capgraph.engine.services import Services
from capgraph.governance.budget_enforcement import current_spending
from capgraph.governance.information_flow import plan_text_labels
from capgraph.helpers.async_calls import maybe_await
from capgraph.helpers.plain_data import copy_plain
from capgraph.pipeline.authorize import check_step_policies, combine_verdicts
from capgraph.pipeline.effect_ledger import EffectLedger
from capgraph.pipeline.failures import clear_failure_update
from capgraph.pipeline.retry_policy import declared_max_attempts
from capgraph.planning import (
    TERMINAL_STEPS,
    CarryOver,
    PlanVersion,
    Problem,
    RepairedPlan,
    by_depth,
    carry_over,
    expand_recipes,
    fingerprints,
    repair_plan,
)
from capgraph.planning.model_repairs import count_repairs
from capgraph.planning.person_message import describe_plan_problems
from capgraph.planning.planner_traits import planner_traits
from capgraph.planning.problems import SHAPE, make_problem
from capgraph.state import TurnView
from capgraph.telemetry import PlanMade, emit
from capgraph.telemetry.audit import record_later


class PlanProblemsError(PlanError):
    """A plan with problems that no repair can settle.

    Attributes:
        problems: All of them.
    """

    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedPlan:
    """A plan that may run.

    Attributes:
        plan: The plan, mended and in order of depth.
        repairs: What was mended, in words.
        verdict: Whether a person has to look at it first, and why.
        notes: Sentences about the plan for the turn's outcome.
    """

    plan: ExecutionPlan
    repairs: list[str] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    notes: list[str] = field(default_factory=list)


async def prepare_plan(
    plan: Any,
    view: TurnView,
    services: Services,
    active: tuple[str, ...] | None,
    labels: Mapping[str, str] | None = None,
    *,
    author: str = "orchestrator",
) -> CheckedPlan:
    """Check a plan, repair what has one right answer, and apply the operator's policies.

    A plan that a caller or an approver wrote is only completed: nothing in it is replaced.

    Args:
        plan: The plan, of whatever form.
        view: The turn.
        services: Shared dependencies.
        active: The capabilities that it may use; ``None`` for all.
        labels: Labels of what its author had before him, each with its source.
        author: As for :func:`accept`.

    Raises:
        PlanProblemsError: It has problems, brings back what a person rejected, or is a caller's
            and needs a capability that is unavailable.
        PolicyError: A policy refuses it.
        BudgetExceededError: It needs more than is left.
    """
    written_by_person = author in ("caller", "approval")
    repaired = _repair(plan, view, services, active, additions_only=written_by_person)
    if is_model_written(author, services):
        report_repairs(count_repairs(repaired.repairs))
    repairs = [str(repair) for repair in repaired.repairs]
    limit = services.limits.max_steps
    try:
        written_out, recipes = expand_recipes(repaired.plan, services.registry, limit)
    except PlanError as exc:
        problem = make_problem(SHAPE, None, None, None, exc.message, exc.fix or "")
        raise _problems_error(exc.message, problem.remedy, [problem]) from exc
    if recipes:
        # What stands behind a recipe was chosen with it, and is looked at like any other plan.
        used = [step["capability"] for step in written_out["steps"]]
        chosen = None if active is None else (*active, *used)
        repaired = _repair(written_out, view, services, chosen)
        repairs += [*recipes, *map(str, repaired.repairs)]
    mended = by_depth(repaired.plan)
    if labels:
        mended = ExecutionPlan(**{**mended, "stamp": {"labels": dict(labels)}})
    _refuse_rejected(mended, view)
    if author == "caller" and (unavailable := await unavailable_steps(mended, view, services)):
        raise _problems_error(
            f"The plan was not started: {'; '.join(unavailable)}.",
            "Send the plan again then.",
            person_message=f"The plan was not started: {'; '.join(unavailable)}.",
        )
    verdict = await _apply_policies(mended, view, services)
    await _check_budget(mended, view, services)
    notes = [f"The plan was completed: {repair}." for repair in repairs if written_by_person]
    if author == "orchestrator" and not planner_traits(services.planner).chooses_parameters:
        notes += default_parameter_notes(mended, view, services)
    return CheckedPlan(mended, repairs, verdict, notes)


def _repair(
    plan: Any,
    view: TurnView,
    services: Services,
    active: tuple[str, ...] | None,
    *,
    additions_only: bool = False,
) -> RepairedPlan:
    """Return a plan without problems that the turn's caller may run.

    Raises:
        PlanProblemsError: It has problems.
        PolicyError: He may not.
    """
    if services.permissions is not None:
        try:
            services.permissions.check_plan(plan, view)
        except PolicyError:
            record_later("policy", about="the plan", decision="deny", by_rule="permissions")
            raise
    repaired = repair_plan(
        plan,
        services.registry,
        view.contexts,
        active=active,
        max_steps=services.limits.max_steps,
        additions_only=additions_only,
    )
    if repaired.problems:
        listed = "; ".join(str(problem) for problem in repaired.problems)
        raise _problems_error(
            f"The plan has {len(repaired.problems)} problem(s): {listed}",
            "Correct the plan, or ask in other words.",
            repaired.problems,
            # Whoever wrote the plan reads what is wrong with it; who only asked does not.
            person_message=describe_plan_problems(repaired.problems) if additions_only else "",
        )
    return repaired


async def _check_budget(plan: ExecutionPlan, view: TurnView, services: Services) -> None:
    """Make sure that the budget holds all of a plan; once, for what it has used counts by itself.

    Raises:
        BudgetExceededError: It needs more than is left.
    """
    spending = current_spending()
    if spending is None or not spending.has_budgets:
        return
    journal, name = services.journal(), f"priced/{view.turn_id}/{plan_digest(plan)}"
    if await journal.read(name):
        return  # a process that began it may have died before the thread knew
    new = _capabilities_to_run(plan, view)
    await spending.check_plan_fits(new, services.registry.capabilities)
    await journal.write(name, {"steps": len(new)})


def _capabilities_to_run(plan: ExecutionPlan, view: TurnView) -> list[str]:
    works = [step for step in plan["steps"] if step["capability"] not in TERMINAL_STEPS]
    return [step["capability"] for step in works if step["context_key"] not in view.succeeded_keys]


def reserve_plan_budget(view: TurnView, services: Services) -> AbstractAsyncContextManager[None]:
    """Hold what the plan in force will need while its steps run, so that no other turn takes it.

    Raises:
        BudgetExceededError: Others took it since the plan was accepted.
    """
    spending = current_spending()
    if spending is None or not spending.has_budgets:
        return nullcontext()
    sender, queues = services.runner_config.dispatcher, services.runner.queues
    here = [
        # A step on another worker is reserved for there.
        name
        for name in _capabilities_to_run(view.plan, view)
        if sender is None or name not in queues or sender.serves(queues[name])
    ]
    return spending.reserve_plan(here, services.registry.capabilities)


def _problems_error(
    message: str, fix: str, problems: Sequence[Problem] = (), *, person_message: str = ""
) -> PlanProblemsError:
    return PlanProblemsError(
        message,
        fix=fix,
        severity=ErrorSeverity.CRITICAL,
        problems=tuple(problems),
        person_message=person_message,
    )


async def _apply_policies(plan: ExecutionPlan, view: TurnView, services: Services) -> Verdict:
    shown = ((policy, copy_plain(plan)) for policy in services.plan_policies)
    verdicts = [await maybe_await(policy.review(plan, view)) for policy, plan in shown]
    if asks := view.turn.get("asks"):  # of guards, about what opened the turn
        verdicts.append(Verdict("ask", list(asks)))
    verdict = combine_verdicts(verdicts, "the plan")
    if services.runner_config.step_policies:
        for step in plan["steps"]:
            # Asked again at dispatch, which is where a person is asked about the step.
            if (
                step["capability"] not in TERMINAL_STEPS
                and step["context_key"] not in view.succeeded_keys
            ):
                await check_step_policies(services.runner_config.step_policies, step, view)
    return verdict


async def accept_plan(
    checked_plan: CheckedPlan,
    view: TurnView,
    services: Services,
    *,
    author: str = "orchestrator",
    previous: ExecutionPlan | None = None,
    plans_made: int = 1,
    one_by_one: bool = False,
) -> dict[str, Any]:
    """Return the update that puts a checked plan in force.

    Args:
        checked_plan: The plan; it has been checked.
        view: The turn.
        services: Shared dependencies.
        author: ``orchestrator``, ``caller``, a capability's name, or ``approval`` (a person, who
            is not asked again).
        previous: The plan that it replaces.
        plans_made: How many plans this one took.
        one_by_one: Whether its steps run one after the other, in their order.
    """
    results = view.results
    failure = view.failure or view.last_failure
    # Taking effects back is bounded by nothing that the plan said of itself.
    bounds: Any = {} if author == "undo" else tighten_limits(previous or {}, checked_plan.plan)
    own = {k: v for k, v in checked_plan.plan.items() if k in ("steps", "stamp")}
    plan: ExecutionPlan = {**own, **bounds}  # type: ignore[typeddict-item]
    carried = carry_over(previous, plan, results)
    written = view.state.get("planning_history") or []
    version = PlanVersion(
        version=written[-1]["version"] + 1 if written else 1,
        author=author,
        reason=failure.get("user_message") or "the request",
        at=utc_now_text(),
        plan=plan,
        kept=carried.kept,
        outcome={k: "done" if r.get("success") else "failed" for k, r in results.items()},
    )
    if is_model_written(author, services):
        version["model_written"] = True
        if planner_traits(services.planner).reads_conversation:
            version["reads_results"] = True
    if words := plan_text_labels(plan, view):
        version["labels"] = {key: dict(labels) for key, labels in words.items()}
    moved = carried.context_updates(view.labels)
    again = set(carried.rerun)
    stamp: dict[str, Any] = {"id": _plan_id(view, author), "version": version["version"]}
    if one_by_one:
        stamp["one_by_one"] = True
    plan = ExecutionPlan(steps=plan["steps"], **bounds, stamp=stamp)  # type: ignore[typeddict-item]
    accepted = AcceptedDigest.of(plan)
    digest = str(accepted)
    emit(PlanMade(plan=dict(plan), version=version["version"], repairs=checked_plan.repairs))
    record_later(
        "plan",
        plan_id=stamp["id"],
        digest=digest,
        author=author,
        version=version["version"],
        steps=[[step["context_key"], step["capability"]] for step in plan["steps"]],
    )
    made = plans_made if author == "orchestrator" else 0 if author == "approval" else 1
    return {
        # A record under a key that another step now bears would pass for that step's result.
        "execution_step_results": Overwrite(
            {
                **{k: r for k, r in results.items() if plan_key(k) not in again},
                **_carried_results(carried, plan),
            }
        ),
        "capability_context_data": carried.context_updates(view.contexts),
        "control_attempts": {
            k: 0 for k, n in view.failed_attempts.items() if n and plan_key(k) in again
        },
        "control_budget": {"allowed_attempts": _allowed_attempts(plan, again, view, services)},
        "planning_execution_plan": plan,
        "planning_accepted": accepted,
        "planning_history": [dict(version)],
        **({"planning_notes": checked_plan.notes} if checked_plan.notes else {}),
        "planning_ready_for_execution": True,
        "planning_current_step_index": 0,
        "control_plans_created_count": view.state.get("control_plans_created_count", 0) + made,
        "execution_pending_approvals": {},
        **({"capability_context_labels": moved} if moved else {}),
        **await _review_update(checked_plan, plan, digest, author, view, services),
        **(clear_failure_update() if view.failure else {}),
    }


def _plan_id(view: TurnView, author: str) -> str:
    """Name a plan that is put in force.

    What a caller brought is put in force in the pass that runs it, and again when that pass breaks
    off: it has to have the same name then, under which its waits and its tries are kept.
    """
    brought = (view.plan.get("stamp") or {}).get("id") if author == "caller" else None
    return uuid.uuid5(uuid.NAMESPACE_OID, str(brought)).hex if brought else uuid.uuid4().hex


async def _review_update(
    checked_plan: CheckedPlan,
    plan: ExecutionPlan,
    digest: str,
    author: str,
    view: TurnView,
    services: Services,
) -> dict[str, Any]:
    """Have a person look at the plan where somebody wants that."""
    problems = list(checked_plan.verdict.problems)
    wanted = services.settings.approvals.plans or view.caller_switches.get("planning_mode_enabled")
    asked = bool(wanted) or checked_plan.verdict.decision == "ask"
    works = any(step["capability"] not in TERMINAL_STEPS for step in plan["steps"])
    ledger = services.ledger(view)
    if not (asked and works):
        return {}
    if author == "approval":
        await ledger.approvals.approve(digest, PLAN)
        return {}
    return await request_plan_review(plan, digest, problems, ledger)


async def request_plan_review(
    plan: ExecutionPlan, digest: str, problems: list[str], ledger: EffectLedger
) -> dict[str, Any]:
    """Return the update by which a person looks at a plan before it goes on."""
    await ledger.approvals.request_review(digest, problems)
    return {
        "control_is_awaiting_validation": True,
        "control_validation_context": {
            "kind": PLAN,
            "plan": (plan.get("stamp") or {}).get("id"),
            "problems": problems,
        },
        "control_validation_timestamp": utc_now_text(),
    }


def _allowed_attempts(
    plan: ExecutionPlan, rerun_keys: set[str], view: TurnView, services: Services
) -> int:
    """Return how many tries the turn may make: what it may so far, and what this plan can need."""
    limits = services.limits
    if limits.max_turn_attempts is not None:
        return limits.max_turn_attempts
    known = services.registry.capabilities
    needed = Counter(
        step["capability"] for step in plan["steps"] if step["context_key"] in rerun_keys
    )
    return int(view.budget.get("attempts", 0)) + sum(
        count * declared_max_attempts(known[name].cls, limits)
        for name, count in needed.items()
        if name in known
    )


def may_need_review(view: TurnView, services: Services) -> bool:
    """Tell whether plans of this turn may have to be looked at before they run."""
    return bool(
        services.settings.approvals.plans
        or services.plan_policies
        or view.state.get("control_undo")
        or view.turn.get("asks")
        or view.caller_switches.get("planning_mode_enabled")
    )


def _carried_results(carried: CarryOver, plan: ExecutionPlan) -> dict[str, Any]:
    """Return the results that serve the new plan, whose author has seen them.

    An effect under another name was done before.
    """
    all_seen = ends_with_review(plan["steps"])
    seen = {step["context_key"] for step in plan["steps"] if step.get("look_again") or all_seen}
    found = {}
    for key, record in carried.results.items():
        found[key] = {**record, REVIEWED_KEY: True} if key in seen else record
        if record.get("effect") and carried.kept.get(key) != key:
            found[key] = {**found[key], "source": "ledger"}
    return found


def plan_labels(author: str, view: TurnView, services: Services) -> dict[str, str]:
    """Return the labels of all that the author of a plan had before him, each with its source.

    The person's own words carry none, nor what the offline planner makes of them; a model is shown
    stored results, failures and earlier answers. A capability that proposes a plan has what it was given.
    """
    if services.flow is None:
        return {}
    if author in services.registry.capabilities:
        return dict(services.flow.proposer_labels(author, view))
    if author in ("caller", "approval"):
        return {}
    offline = author == "orchestrator" and not planner_traits(services.planner).reads_results
    if offline and (isinstance(services.extractor, LastMessageExtractor) or len(view.messages) < 2):
        return {}
    return dict(services.flow.thread_labels(view))


def respond_step(task: str) -> PlannedStep:
    """Return the step with which a plan answers."""
    return PlannedStep(context_key="answer", capability="respond", task_objective=task)


def _refuse_rejected(plan: ExecutionPlan, view: TurnView) -> None:
    """Make sure that a plan does not bring back what a person rejected in this turn.

    Raises:
        PlanProblemsError: It does.
    """
    rejected = [
        (key, entry) for key, entry in view.decisions.items() if entry.get("decision") == "reject"
    ]
    if not rejected:
        return
    prints = sorted(fingerprints(plan).values())
    for key, entry in rejected:
        given = entry.get("fingerprints") or []
        if prints == given if key == PLAN else set(given) & set(prints):
            what = "the plan" if key == PLAN else f"step {key!r}"
            told = (
                f"A person rejected {what} ({entry.get('reason') or 'no reason was given'}), and"
                " the new plan has it again."
            )
            fix = "Ask in other words, or agree to the step."
            raise _problems_error(told, fix, person_message=f"{told} {fix}")
