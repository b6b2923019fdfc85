"""Application of a person's decisions: approvals go to the ledger, everything else to the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capgraph.approvals.decisions import ApprovalDecision
from capgraph.approvals.requests import (
    ACTED_BEFORE,
    MISSING_CAPABILITY,
    PLAN,
    RESULT,
    STEP,
    UNKNOWN_OUTCOME,
)
from capgraph.base.approval_policy import ApprovalPolicy
from capgraph.base.errors import ErrorSeverity
from capgraph.base.plan import plan_key
from capgraph.base.ports import Caller, Failure, StepRecord
from capgraph.engine.caller_plan import AcceptedDigest
from capgraph.engine.run_scope import may_bring_answer
from capgraph.engine.services import Services
from capgraph.engine.turn_suspension import create_resume_update
from capgraph.pipeline.authorize import approval_digest
from capgraph.pipeline.effect_ledger import EffectLedger, compute_digest
from capgraph.pipeline.failures import failure_update
from capgraph.planning import fingerprints
from capgraph.planning.parameters import validated_parameters
from capgraph.state import TurnView
from capgraph.telemetry import ApprovalDecided, emit
from capgraph.telemetry.audit import record_decision


async def apply_answers(
    answers: Mapping[str, ApprovalDecision],
    view: TurnView,
    services: Services,
    rules: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Record the answers to approval requests, and return the resulting state update.

    Args:
        answers: Decisions by context key.
        view: Current state of the turn.
        services: Services of the graph.
        rules: IDs of the standing rules (automatic approvals) that approved steps, by context
            key.
    """
    pending = dict(view.pending_approvals)
    steps = {step["context_key"]: dict(step) for step in view.steps}
    plan_prints = fingerprints(view.plan)
    decisions: dict[str, dict[str, Any]] = {}
    results: dict[str, Any] = {}
    by = view.sender if may_bring_answer() else Caller()
    ledger = services.ledger(view)
    for key, rule in (rules or {}).items():
        decisions[key] = {"decision": "approve", "rule": rule}
        await record_answer(
            key, pending[key], ApprovalDecision(decision="approve"), ledger, services, Caller()
        )
    for key, answer in answers.items():
        question = pending.get(key) or {}
        step = view.get_step(key)
        # Parameters that were edited for one element are kept.
        earlier = view.decisions.get(key) or {}
        decisions[key] = {part: earlier[part] for part in ("parameters", "plan") if part in earlier}
        decisions[key] |= _create_decision_entry(
            answer, question, step, plan_prints.get(plan_key(key)), view.plan_id
        )
        if by.user_id is not None:
            decisions[key]["by"] = by.user_id
        question = question or {"kind": MISSING_CAPABILITY, "capability": step["capability"]}
        refused = await record_answer(key, question, answer, ledger, services, by)
        if refused:
            decisions[key]["refused"] = refused
        if answer.decision == "edit" and key in steps:
            steps[key]["parameters"] = answer.parameters
        if answer.decision == "skip" and question.get("kind") != UNKNOWN_OUTCOME:
            position = list(steps).index(plan_key(key))
            identity = (key, str(step["capability"]), position, view.step_objective(step))
            results[key] = StepRecord(*identity, skipped="Skipped by a person.").to_state_entry()
    answered = {k for k, one in decisions.items() if one["decision"] not in {"reject", "respond"}}
    update: dict[str, Any] = {
        **create_resume_update(view, answered),
        "approval_decisions": decisions,
        "approved_payload": {
            key: answer.model_dump(mode="json") for key, answer in answers.items()
        },
    }
    if any(answer.decision == "edit" and key in steps for key, answer in answers.items()):
        plan = {**view.plan, "steps": list(steps.values())}
        update |= {"planning_execution_plan": plan, "planning_accepted": AcceptedDigest.of(plan)}
    if results:
        update["execution_step_results"] = results
    rejected = {key: a.reason for key, a in answers.items() if a.decision == "reject"}
    names = {key: str(view.get_step(key)["capability"]) for key in rejected}
    update |= create_answers_update(answers, rejected, names, view, services)
    if any("refused" in entry for entry in decisions.values()):
        update["approval_approved"] = False
    return update


async def record_answer(
    key: str,
    question: Mapping[str, Any],
    answer: ApprovalDecision,
    ledger: EffectLedger,
    services: Services,
    approver: Caller,
) -> str:
    """Record a person's answer to an approval request.

    An answer is rejected if the person may not approve or the request has expired. The
    rejection is recorded with its reason, and the step repeats the request and shows the
    reason.

    Args:
        key: Context key of the step.
        question: State entry of the :class:`~capgraph.base.ports.ApprovalRequest`.
        answer: Decision of the person.
        ledger: Effect records of the turn.
        services: Services of the graph.
        approver: Person who decided.

    Returns:
        The reason why the answer is rejected, or an empty string if it is accepted.
    """
    kind, refusal = question.get("kind", STEP), ""
    spec = services.registry.capabilities.get(question["capability"])
    digest = question.get("digest", "")
    required = spec.requires_approval if spec is not None and kind != RESULT else False
    policy = ledger.approvals.policy_for(ApprovalPolicy.from_declaration(required))
    now = services.clock.now()
    if kind == UNKNOWN_OUTCOME and answer.decision in {"rerun", "skip", "done"}:
        refusal = await _decide_outcome(key, question, answer, ledger, policy, approver, now)
    elif kind == STEP and answer.decision == "edit" and spec is not None:
        _, parameters = validated_parameters(spec, answer.parameters or {})
        preview = {**(question.get("shown") or {}), "parameters": parameters}
        digest = approval_digest(spec.name, preview)
    if kind in {STEP, RESULT, ACTED_BEFORE} and answer.decision in {"approve", "edit"}:
        refusal = await ledger.approvals.record_approval(
            digest,
            key,
            policy,
            approver,
            now,
            capability=question["capability"],
            is_edited=answer.decision == "edit" and digest != question.get("digest"),
        )
    details = {"digest": digest or None, "refused": bool(refusal) or None}
    record_decision(
        key, kind, answer.decision, approver, capability=question["capability"], **details
    )
    emit(
        ApprovalDecided(
            context_key=key,
            capability=question["capability"],
            decision=answer.decision,
            by=approver.user_id,
            authenticated=approver.authenticated,
            digest=digest or None,
            refused=refusal or None,
        )
    )
    return refusal


async def _decide_outcome(
    key: str,
    question: Mapping[str, Any],
    answer: ApprovalDecision,
    ledger: EffectLedger,
    policy: ApprovalPolicy,
    approver: Caller,
    now: float,
) -> str:
    """Record a person's decision on a side effect with an unknown outcome.

    If the approval policy restricts approvers, the decision takes effect only after enough
    people have made the same decision. Until then, return the reason why it is not accepted.
    """
    effect, run = question["effect"], int(question["run"])
    decision = {"decision": answer.decision, "outputs": answer.outputs}
    if policy.restricts_approvers:
        digest = compute_digest([UNKNOWN_OUTCOME, effect, run, decision])
        capability = question["capability"]
        refusal = await ledger.approvals.record_approval(
            digest, key, policy, approver, now, capability=capability
        )
        status = await ledger.approvals.status(digest, key, (), policy, now, capability=capability)
        if not status.is_approved:
            agreed = ", ".join(map(str, status.approvers))
            refusal = refusal or f"{agreed} decided {answer.decision!r}; another user must agree."
            await ledger.record_outcome(
                effect, run, {"refused": refusal, "agreed": list(status.approvers)}
            )
            return refusal
    await ledger.record_outcome(effect, run, decision)
    return ""


def create_answers_update(
    answers: Mapping[str, ApprovalDecision],
    rejected: Mapping[str, str],
    capabilities: Mapping[str, str],
    view: TurnView,
    services: Services,
) -> dict[str, Any]:
    """Create the state update for rejected steps and free-text answers to approval requests.

    Args:
        answers: Decisions by context key.
        rejected: Reasons for rejections, by context key.
        capabilities: Names of the rejected steps' capabilities, by context key.
        view: Current state of the turn.
        services: Services of the graph.
    """
    update: dict[str, Any] = {}
    if rejected:
        update |= _create_rejection_update(rejected, capabilities, view, services)
    responses = [a.message for a in answers.values() if a.decision == "respond"]
    if responses:
        update["task_custom_message"] = "\n\n".join(responses)
    update["approval_approved"] = not rejected and not responses
    return update


def create_plan_rejection(answer: ApprovalDecision, view: TurnView) -> dict[str, dict[str, Any]]:
    """Create the decision entry for a rejected plan, so that it is not proposed again."""
    entry = {
        "decision": "reject",
        "reason": answer.reason,
        "fingerprints": sorted(fingerprints(view.plan).values()),
    }
    return {PLAN: entry}


def _create_decision_entry(
    answer: ApprovalDecision,
    question: Mapping[str, Any],
    step: Mapping[str, Any],
    fingerprint: str | None,
    plan_id: str,
) -> dict[str, Any]:
    entry: dict[str, Any] = {"decision": answer.decision}
    if answer.decision == "edit":
        entry["before"] = step.get("parameters") or {}
        if step["context_key"] != plan_key(step["context_key"]):
            # An edit of one element does not change the step itself.
            entry |= {"parameters": answer.parameters, "plan": plan_id}
    if question.get("kind") == UNKNOWN_OUTCOME:
        entry |= {UNKNOWN_OUTCOME: answer.decision, "run": question.get("run")}
    if answer.decision in {"approve", "reject"}:
        # Later plans of this turn are compared with rejected steps.
        entry["fingerprints"] = [fingerprint]
    if answer.decision == "reject":
        entry["reason"] = answer.reason
    return entry


def _create_rejection_update(
    rejected: Mapping[str, str], capabilities: Mapping[str, str], view: TurnView, services: Services
) -> dict[str, Any]:
    key, reason = next(iter(rejected.items()))
    # A request counts as one rejection, regardless of its number of steps.
    count = view.failed_attempts.get("approval", 0) + 1
    bound = services.settings.approvals.max_rejections
    message = (
        f"A person rejected step {key!r} ({capabilities[key]}): {reason or 'no reason was given'}."
    )
    if key == PLAN:
        message = f"A person rejected the plan: {reason or 'no reason was given'}."
    failure = Failure(
        severity=ErrorSeverity.REPLANNING if count < bound else ErrorSeverity.CRITICAL,
        message=message,
        metadata={"rejected_by_person": dict(rejected), "category": "rejected"},
        capability=capabilities[key],
        key=key,
        attempts=0,
    )
    return {**failure_update([failure]), "control_attempts": {"approval": count}}
