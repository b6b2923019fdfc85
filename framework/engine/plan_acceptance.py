"""Acceptance of plans: every plan is checked, reviewed by policies, and put in force here."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from langgraph.types import Overwrite

from capgraph.approvals import PLAN
from capgraph.base.errors import ErrorSeverity, PlanError, PolicyError
from capgraph.base.plan import ExecutionPlan, PlannedStep, plan_key, tighten_limits
from capgraph.base.ports import Verdict
from capgraph.engine.caller_plan import AcceptedDigest, plan_digest
from capgraph.engine.default_strategies import LastMessageExtractor
from capgraph.engine.model_replies import is_model_written, report_repairs
from capgraph.engine.plan_facts import describe_default_parameters, describe_unavailable_steps
from capgraph.engine.routing import REVIEWED_KEY, ends_with_review
from capgraph.engine.services import Services
from capgraph.governance.budget_enforcement import current_spending
from capgraph.governance.information_flow import plan_text_labels
from capgraph.helpers.async_calls import maybe_await
from capgraph.helpers.clock import utc_now_text
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
    recorded_order,
    repair_plan,
    with_plan_order,
)
from capgraph.planning.model_repairs import count_repairs
from capgraph.planning.person_message import describe_plan_problems
from capgraph.planning.plan_access import plan_stamp
from capgraph.planning.planner_traits import planner_traits
from capgraph.planning.problems import SHAPE, make_problem
from capgraph.state import TurnView
from capgraph.telemetry import PlanMade, emit
from capgraph.telemetry.audit import record_later


class PlanProblemsError(PlanError):
    """Raised if a plan has problems that cannot be repaired automatically.

    Attributes:
        problems: All problems of the plan.
    """

    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedPlan:
    """Plan that passed all checks, with its repairs and the policy verdict.

    Attributes:
        plan: Repaired plan in topological order.
        repairs: Descriptions of the repairs. Parts that a model's plan left out and that have one
            right value are not listed.
        verdict: Verdict of the policies: ``allow``, or ``ask`` with the reasons for a review.
        notes: Sentences about the plan that are included in the outcome of the turn.
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
    """Validate and repair a plan, and evaluate the plan policies.

    A plan from a caller or an approver is repaired only by adding missing parts; nothing is
    replaced.

    Args:
        plan: Plan to validate, in any form.
        view: Current state of the turn.
        services: Services of the graph.
        active: Capabilities that the plan may use, or ``None`` for all.
        labels: Labels (provenance tags) of the data that the author has read, with their
            sources.
        author: See :func:`accept_plan`.

    Raises:
        PlanProblemsError: The plan has problems, repeats rejected work, or comes from a caller
            and uses an unavailable capability.
        PolicyError: A policy denies the plan.
        BudgetExceededError: The plan exceeds the remaining budget.
    """
    written_by_person = author in ("caller", "approval")
    repaired = _repair_plan(plan, view, services, active, additions_only=written_by_person)
    model_written = is_model_written(author, services)
    if model_written:
        report_repairs(count_repairs(repaired.repairs))
    # The schema of a model may leave out what has one right value: this is not worth a message.
    repairs = [
        str(repair) for repair in repaired.repairs if not (model_written and repair.fills_omission)
    ]
    limit = services.limits.max_steps
    try:
        expanded, recipes = expand_recipes(repaired.plan, services.registry, limit)
    except PlanError as exc:
        problem = make_problem(SHAPE, None, None, None, exc.message, exc.fix or "")
        raise _create_problems_error(exc.message, problem.remedy, [problem]) from exc
    if recipes:
        # The steps of a recipe were selected with it and are checked like any other plan.
        recipe_capabilities = [step["capability"] for step in expanded["steps"]]
        chosen = None if active is None else (*active, *recipe_capabilities)
        repaired = _repair_plan(expanded, view, services, chosen)
        repairs += [*recipes, *map(str, repaired.repairs)]
    ordered = by_depth(with_plan_order(repaired.plan, services.registry))
    if labels:
        stamp = {"after": recorded_order(ordered), "labels": dict(labels)}
        ordered = ExecutionPlan(**{**ordered, "stamp": stamp})
    _refuse_rejected(ordered, view)
    if author == "caller" and (
        unavailable := await describe_unavailable_steps(ordered, view, services)
    ):
        raise _create_problems_error(
            f"The plan was not started, because {'; '.join(unavailable)}.",
            "send the plan again later.",
            person_message=f"The plan was not started: {'; '.join(unavailable)}.",
        )
    verdict = await _apply_policies(ordered, view, services)
    await _check_budget(ordered, view, services)
    notes = [f"The plan was completed: {repair}." for repair in repairs if written_by_person]
    if author == "orchestrator" and not planner_traits(services.planner).chooses_parameters:
        notes += describe_default_parameters(ordered, view, services)
    return CheckedPlan(ordered, repairs, verdict, notes)


def _repair_plan(
    plan: Any,
    view: TurnView,
    services: Services,
    active: tuple[str, ...] | None,
    *,
    additions_only: bool = False,
) -> RepairedPlan:
    """Repair a plan, after checking that the caller of the turn may run the plan.

    Raises:
        PlanProblemsError: The plan has problems.
        PolicyError: The caller may not run the plan.
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
        raise _create_problems_error(
            f"The plan is invalid and has {len(repaired.problems)} problem(s): {listed}",
            "correct the plan, or rephrase the request.",
            repaired.problems,
            # Only the author of a plan is shown its problems.
            person_message=describe_plan_problems(repaired.problems) if additions_only else "",
        )
    return repaired


async def _check_budget(plan: ExecutionPlan, view: TurnView, services: Services) -> None:
    """Raise an error if a plan may cost more than the remaining budget.

    Raises:
        BudgetExceededError: The plan requires more than the remaining budget.
    """
    spending = current_spending()
    if spending is None or not spending.has_budgets:
        return
    journal, name = services.journal(), f"priced/{view.turn_id}/{plan_digest(plan)}"
    if await journal.read(name):
        return  # an earlier process checked it and died before the checkpoint was saved
    new = _list_capabilities_to_run(plan, view)
    await spending.check_plan_fits(new, services.registry.capabilities)
    await journal.write(name, {"steps": len(new)})


def _list_capabilities_to_run(plan: ExecutionPlan, view: TurnView) -> list[str]:
    work_steps = [step for step in plan["steps"] if step["capability"] not in TERMINAL_STEPS]
    return [
        step["capability"] for step in work_steps if step["context_key"] not in view.succeeded_keys
    ]


def reserve_plan_budget(view: TurnView, services: Services) -> AbstractAsyncContextManager[None]:
    """Reserve budget for the current plan while its steps run, as an async context manager.

    Raises:
        BudgetExceededError: Other turns have used the budget since the plan was accepted.
    """
    spending = current_spending()
    if spending is None or not spending.has_budgets:
        return nullcontext()
    sender, queues = services.runner_config.dispatcher, services.runner.queues
    local_capabilities = [
        # The worker of a remote step makes its own reservation.
        name
        for name in _list_capabilities_to_run(view.plan, view)
        if sender is None or name not in queues or sender.serves(queues[name])
    ]
    return spending.reserve_plan(local_capabilities, services.registry.capabilities)


def _create_problems_error(
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
    reviews = ((policy, copy_plain(plan)) for policy in services.plan_policies)
    verdicts = [await maybe_await(policy.review(plan, view)) for policy, plan in reviews]
    if reasons := view.turn.get("asks"):  # requested by guardrails for the input of the turn
        verdicts.append(Verdict("ask", list(reasons)))
    verdict = combine_verdicts(verdicts, "the plan")
    if services.runner_config.step_policies:
        for step in plan["steps"]:
            # The policies are evaluated again at dispatch, which is where a person is asked.
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
    """Create the state update that makes a checked plan the current plan of the turn.

    Args:
        checked_plan: Plan that passed all checks.
        view: Current state of the turn.
        services: Services of the graph.
        author: ``orchestrator``, ``caller``, a capability's name, or ``approval`` (a person,
            who is not asked again).
        previous: Plan that the new plan replaces.
        plans_made: Number of planning attempts, including this plan.
        one_by_one: True to run the steps one at a time in plan order.
    """
    results = view.results
    failure = view.failure or view.last_failure
    # The limits of the failed plan do not apply to undo steps.
    bounds: Any = {} if author == "undo" else tighten_limits(previous or {}, checked_plan.plan)
    plan_fields = {k: v for k, v in checked_plan.plan.items() if k in ("steps", "stamp")}
    plan: ExecutionPlan = {**plan_fields, **bounds}  # type: ignore[typeddict-item]
    carried = carry_over(previous, plan, results)
    history = view.state.get("planning_history") or []
    version = PlanVersion(
        version=history[-1]["version"] + 1 if history else 1,
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
    if text_labels := plan_text_labels(plan, view):
        version["labels"] = {key: dict(labels) for key, labels in text_labels.items()}
    moved_labels = carried.context_updates(view.labels)
    rerun_keys = set(carried.rerun)
    stamp: dict[str, Any] = {"id": _choose_plan_id(view, author), "version": version["version"]}
    if one_by_one:
        stamp["one_by_one"] = True
    if after := recorded_order(plan):
        stamp["after"] = after
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
    plan_count = plans_made if author == "orchestrator" else 0 if author == "approval" else 1
    return {
        # Drop records whose key belongs to a different step in the new plan.
        "execution_step_results": Overwrite(
            {
                **_select_past_results(results, rerun_keys),
                **_create_carried_results(
                    carried, plan, is_author_planner=author not in services.registry.capabilities
                ),
            }
        ),
        "capability_context_data": carried.context_updates(view.contexts),
        "control_attempts": {
            k: 0 for k, n in view.failed_attempts.items() if n and plan_key(k) in rerun_keys
        },
        "control_budget": {
            "allowed_attempts": _compute_allowed_attempts(plan, rerun_keys, view, services)
        },
        "planning_execution_plan": plan,
        "planning_accepted": accepted,
        "planning_history": [dict(version)],
        **({"planning_notes": checked_plan.notes} if checked_plan.notes else {}),
        "planning_ready_for_execution": True,
        "planning_current_step_index": 0,
        "control_plans_created_count": view.state.get("control_plans_created_count", 0)
        + plan_count,
        "execution_pending_approvals": {},
        **({"capability_context_labels": moved_labels} if moved_labels else {}),
        **await _create_review_update(checked_plan, plan, digest, author, view, services),
        **(clear_failure_update() if view.failure else {}),
    }


def _choose_plan_id(view: TurnView, author: str) -> str:
    """Choose the ID of an accepted plan.

    A plan from a caller may be accepted again if its superstep is interrupted. Its ID is
    therefore derived from the caller's ID and does not change, because waits and attempts are
    stored under it.
    """
    caller_id = plan_stamp(view.plan).get("id") if author == "caller" else None
    return uuid.uuid5(uuid.NAMESPACE_OID, str(caller_id)).hex if caller_id else uuid.uuid4().hex


async def _create_review_update(
    checked_plan: CheckedPlan,
    plan: ExecutionPlan,
    digest: str,
    author: str,
    view: TurnView,
    services: Services,
) -> dict[str, Any]:
    """Create the state update that requests a plan review, or ``{}`` if none is required."""
    problems = list(checked_plan.verdict.problems)
    requires_review = services.settings.approvals.plans or view.caller_switches.get(
        "planning_mode_enabled"
    )
    needs_review = bool(requires_review) or checked_plan.verdict.decision == "ask"
    has_work = any(step["capability"] not in TERMINAL_STEPS for step in plan["steps"])
    ledger = services.ledger(view)
    if not (needs_review and has_work):
        return {}
    if author == "approval":
        await ledger.approvals.approve(digest, PLAN)
        return {}
    return await request_plan_review(plan, digest, problems, ledger)


async def request_plan_review(
    plan: ExecutionPlan, digest: str, problems: list[str], ledger: EffectLedger
) -> dict[str, Any]:
    """Store a request for a person to review the plan, and create the matching state update.

    Args:
        plan: Plan to review.
        digest: Digest of the plan.
        problems: Reasons for the review.
        ledger: Ledger of the turn's effects and approvals.
    """
    await ledger.approvals.request_review(digest, problems)
    return {
        "control_is_awaiting_validation": True,
        "control_validation_context": {
            "kind": PLAN,
            "plan": plan_stamp(plan).get("id"),
            "problems": problems,
        },
        "control_validation_timestamp": utc_now_text(),
    }


def _compute_allowed_attempts(
    plan: ExecutionPlan, rerun_keys: set[str], view: TurnView, services: Services
) -> int:
    """Compute the maximum number of step attempts in a turn after accepting a new plan."""
    limits = services.limits
    if limits.max_turn_attempts is not None:
        return limits.max_turn_attempts
    capabilities = services.registry.capabilities
    needed = Counter(
        step["capability"] for step in plan["steps"] if step["context_key"] in rerun_keys
    )
    return int(view.budget.get("attempts", 0)) + sum(
        count * declared_max_attempts(capabilities[name].cls, limits)
        for name, count in needed.items()
        if name in capabilities
    )


def may_need_review(view: TurnView, services: Services) -> bool:
    """Return True if a person may have to review a plan of this turn before it runs."""
    return bool(
        services.settings.approvals.plans
        or services.plan_policies
        or view.state.get("control_undo")
        or view.turn.get("asks")
        or view.caller_switches.get("planning_mode_enabled")
    )


def _select_past_results(results: Mapping[str, Any], rerun_keys: Collection[str]) -> dict[str, Any]:
    """Select the results of earlier steps that are kept in the state with a new plan.

    If the new plan reuses the key of a failed step that the planner has seen, the failure is
    stored under a different key, so that later planner calls still receive it.
    """
    past = {k: r for k, r in results.items() if plan_key(k) not in rerun_keys}
    for key, record in results.items():
        if record.get("observed") and plan_key(key) in rerun_keys:
            numbered = (f"{key}_failed_{number}" for number in count(1))
            past[next(name for name in numbered if name not in past)] = record
    return past


def _create_carried_results(
    carried: CarryOver, plan: ExecutionPlan, *, is_author_planner: bool
) -> dict[str, Any]:
    """Create the state entries for step results that the new plan reuses.

    Results that the planner has already reviewed are marked. An effect whose step has a
    different key in the new plan is marked as completed earlier.
    """
    all_seen = ends_with_review(plan["steps"])
    seen_keys = {
        step["context_key"]
        for step in plan["steps"]
        if is_author_planner and (step.get("look_again") or all_seen)
    }
    results = {}
    for key, record in carried.results.items():
        results[key] = {**record, REVIEWED_KEY: True} if key in seen_keys else record
        if record.get("effect") and carried.kept.get(key) != key:
            results[key] = {**results[key], "source": "ledger"}
    return results


def plan_labels(author: str, view: TurnView, services: Services) -> dict[str, str]:
    """Return the labels (provenance tags) of all data that the author of a plan has read.

    The user's text and plans that were made without a model have no labels. A model has read
    stored results, failures, and earlier answers. A capability that proposes a plan has read
    its inputs.
    """
    if services.flow is None:
        return {}
    if author in services.registry.capabilities:
        return dict(services.flow.proposer_labels(author, view))
    if author in ("caller", "approval", "dialogue"):
        return {}
    offline = author == "orchestrator" and not planner_traits(services.planner).reads_results
    if offline and (isinstance(services.extractor, LastMessageExtractor) or len(view.messages) < 2):
        return {}
    return dict(services.flow.thread_labels(view))


def respond_step(task: str) -> PlannedStep:
    """Create the final plan step, which answers the user's request."""
    return PlannedStep(context_key="answer", capability="respond", task_objective=task)


def _refuse_rejected(plan: ExecutionPlan, view: TurnView) -> None:
    """Raise an error if a plan repeats work that a person has rejected in this turn.

    Raises:
        PlanProblemsError: The plan contains rejected work.
    """
    rejected = [
        (key, entry) for key, entry in view.decisions.items() if entry.get("decision") == "reject"
    ]
    if not rejected:
        return
    prints = sorted(fingerprints(plan).values())
    for key, entry in rejected:
        rejected_prints = entry.get("fingerprints") or []
        if prints == rejected_prints if key == PLAN else set(rejected_prints) & set(prints):
            subject = "the plan" if key == PLAN else f"step {key!r}"
            message = (
                f"A person rejected {subject} ({entry.get('reason') or 'no reason was given'}), and"
                " the new plan contains it again."
            )
            fix = "Rephrase the request, or approve the step."
            raise _create_problems_error(message, fix, person_message=f"{message} {fix}")
