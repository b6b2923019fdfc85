"""Stage ``authorize``: may this step run? Policies are asked, and a person where one has to agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from capgraph.approvals import PLAN, STEP
from capgraph.approvals.grounding import (
    describe_ungrounded,
    is_grounding_checked,
    ungrounded_parameters,
)
from capgraph.base.approval_policy import ApprovalPolicy
from capgraph.base.errors import ErrorSeverity, PlanError, PolicyError
from capgraph.base.plan import ExecutionPlan, PlannedStep
from capgraph.base.ports import (
    ApprovalRequest,
    Attempt,
    FlowPolicy,
    StepPolicy,
    StepRecord,
    Verdict,
)
from capgraph.base.spec import CapabilitySpec
from capgraph.helpers.async_calls import maybe_await
from capgraph.helpers.plain_data import copy_plain
from capgraph.pipeline.effect_ledger import compute_digest, serialize_inputs
from capgraph.pipeline.finalize import failed_record
from capgraph.pipeline.step_execution import StepApproval, StepExecution, StepResult
from capgraph.planning import fingerprints
from capgraph.telemetry.audit import digest, record_later


async def authorize(
    job: StepExecution, attempt: Attempt, policies: Sequence[StepPolicy] = ()
) -> Attempt | StepResult:
    """Refuse a step, ask about it, or let it pass; nothing below has begun.

    Args:
        job: The run of the stages.
        attempt: What is asked for.
        policies: What is asked about the step.
    """
    ungrounded = _ungrounded(job, attempt)
    try:
        reasons = await _reasons(job, attempt, policies, ungrounded)
    except PolicyError as exc:
        return await failed_record(job, attempt, exc)
    if reasons or needs_approval(job.spec, job.view.caller_switches, job.config.settings):
        shown = approval_preview(attempt, job.view.plan)
        shown |= {"ungrounded": ungrounded} if ungrounded else {}
        digest = approval_digest(attempt.capability, shown)
        ask = ApprovalRequest(
            STEP, attempt.capability, " ".join(reasons), digest=digest, shown=shown
        )
        return await pending_approval(job, attempt, ask) or attempt
    return attempt


def may_need_authorization(
    spec: CapabilitySpec, settings: Any, policies: Sequence[StepPolicy]
) -> bool:
    """Return whether something about a capability itself may have a person asked, or refuse it."""
    declared = spec.requires_approval or settings.approvals.steps == "all"
    return bool(policies or declared or spec.effect != "none")


async def authorize_if_flagged(job: StepExecution, attempt: Attempt) -> Attempt | StepResult:
    """Authorize a step about which only a middleware or a label of its data asks."""
    if attempt.approval_reasons or (job.labels and job.flow is not None):
        return await authorize(job, attempt)
    return attempt


async def mark_approval_used(job: StepExecution, record: StepRecord) -> None:
    """Record that a step used the agreement to it; what acts once is never repeated on one."""
    if job.approval is not None and record.success and job.spec.effect != "once":
        await job.context.ledger.approvals.mark_used(job.approval.question.digest, record.key)


async def _reasons(
    job: StepExecution,
    attempt: Attempt,
    policies: Sequence[StepPolicy],
    ungrounded: Mapping[str, Any],
) -> list[str]:
    """Return why a person has to agree to a step.

    Raises:
        PolicyError: The step is refused.
    """
    reasons = list(attempt.approval_reasons)
    if job.labels and job.flow is not None:
        reasons += await _label_reasons(job, attempt, job.flow)
    if policies:
        step: Any = {**planned_step(attempt), "parameters": dict(attempt.values)}
        verdict = await check_step_policies(policies, step, job.view)
        if verdict.decision == "ask":
            reasons += verdict.problems or ["A policy asks for a person's agreement."]
    return reasons + await _ungrounded_reasons(job, attempt, ungrounded)


def _ungrounded(job: StepExecution, attempt: Attempt) -> dict[str, Any]:
    """Return the parameters of a planned step that a model invented, by their paths."""
    if job.outer is not None:
        return {}  # a capability chose them, not the plan
    if not is_grounding_checked(job.spec, job.view):
        return {}  # serializing the inputs of every step would cost more than the rest of the stage
    step, values = planned_step(attempt), dict(attempt.values)
    inputs = serialize_inputs(attempt.inputs)
    return ungrounded_parameters(step, values, job.view, job.config.registry, inputs)


async def _ungrounded_reasons(
    job: StepExecution, attempt: Attempt, found: Mapping[str, Any]
) -> list[str]:
    """Say why a person has to agree to ungrounded parameters.

    Raises:
        PolicyError: The settings refuse them, and nobody agreed to them.
    """
    setting = job.config.settings.approvals.ungrounded
    if not found or setting == "allow":
        return []
    agreements, keys = job.context.ledger.approvals, list(job.context.plan_keys)
    # Whoever agreed to the plan has seen which of its values are ungrounded.
    if await agreements.is_approved(compute_digest(job.view.steps), PLAN, ()):
        return []
    if setting == "refuse":
        digest = approval_digest(attempt.capability, approval_preview(attempt, job.view.plan))
        if await agreements.is_approved(digest, attempt.key, keys):
            return []
        raise PolicyError(
            f"The step {attempt.key!r} ({attempt.capability}) is refused. {describe_ungrounded(found)}",
            fix="State the values in the request, or set approvals.ungrounded to 'ask'.",
            severity=ErrorSeverity.CRITICAL,
        )
    return [describe_ungrounded(found)]


async def _label_reasons(job: StepExecution, attempt: Attempt, flow: FlowPolicy) -> Sequence[str]:
    """Say why a person has to agree to data that would reach a step.

    Raises:
        PolicyError: It must not.
    """
    step = planned_step(attempt)
    verdict = flow.check(job.spec, step, job.labels)
    if verdict.decision == "allow":
        return ()
    around = job.outer.labels if job.outer is not None else {}
    given = flow.labels_for_step(job.spec, step, job.view, include_plan_text=False)
    said = flow.check(job.spec, step, {**around, **given})
    if said.decision == "allow" and job.view.steps:
        # What stands in the plan word for word was shown with it.
        agreed = await job.context.ledger.approvals.is_approved(
            compute_digest(job.view.steps), PLAN, ()
        )
        verdict = said if agreed else verdict
    return combine_verdicts([verdict], f"the step {attempt.key!r} ({attempt.capability})").problems


def planned_step(attempt: Attempt) -> PlannedStep:
    """Return the step of an attempt, which need not be one of a plan."""
    named: Any = {"context_key": attempt.key, "capability": attempt.capability}
    return {**attempt.step, **named}


async def pending_approval(
    job: StepExecution, attempt: Attempt, question: ApprovalRequest
) -> ApprovalRequest | None:
    """Return the question that people still have to agree to; ``None`` when they have.

    Args:
        job: The run of the stages; it is told of the agreement.
        attempt: The step.
        question: What is asked.
    """
    policy = ApprovalPolicy.of(job.spec.requires_approval)
    others, now = list(job.context.plan_keys), job.config.clock.now()
    book = job.context.ledger.approvals
    # A node that asks by itself looks again when it is answered; a router has been told the answer.
    anew = job.context.control.can_wait
    found = await book.status(question.digest, attempt.key, others, policy, now, renew_expired=anew)
    job.approval = StepApproval(question, found.expires_at) if found.is_approved else None
    if found.is_approved:
        return None
    told: dict[str, Any] = {}
    if policy.restricts_approvers:
        told = {"needed": policy.approvers, "agreed": list(found.approvers)}
        told["not_requester"] = policy.not_requester
    if found.refusal:
        told["refused"] = found.refusal
    if found.asked_at is not None and policy.expires_seconds is not None:
        told["until"] = found.asked_at + policy.expires_seconds
    return replace(question, approvals=told)


async def recheck_approval(job: StepExecution, attempt: Attempt) -> ApprovalRequest | None:
    """Look again, just before a step begins, whether the agreement to it still holds."""
    if job.approval is None or job.approval.expires_at is None:
        return None
    return await pending_approval(job, attempt, job.approval.question)


def upstream_fingerprints(plan: ExecutionPlan, step: PlannedStep) -> list[str]:
    """Name the work of the plan that gives a step its inputs, whatever the steps are called."""
    keys = {key for entry in step.get("inputs") or [] for key in entry.values()}
    if not keys:
        return []
    try:
        prints = fingerprints(plan)
    except PlanError:  # nobody checks the plan of a graph of one's own
        return []
    return sorted(prints[key] for key in keys & prints.keys())


def approval_preview(attempt: Attempt, plan: ExecutionPlan) -> dict[str, Any]:
    """Return what a person is shown of a step and agrees to; of a copy also its element."""
    return {
        "parameters": dict(attempt.values),
        "input_values": serialize_inputs(attempt.inputs),
        "rests_on": upstream_fingerprints(plan, attempt.step),
        **({} if attempt.element is None else {"element": attempt.element.value}),
    }


def approval_digest(capability: str, preview: Mapping[str, Any]) -> str:
    """Name what a person is shown of a step: what runs must have the same name.

    These are the capability, the validated parameters, the values of the inputs, and the part of
    the plan on which it rests.
    """
    return compute_digest(
        [capability, *(preview.get(name) for name in ("parameters", "input_values", "rests_on"))]
    )


def needs_approval(spec: CapabilitySpec, switches: Mapping[str, Any], settings: Any) -> bool:
    """Tell whether a person has to agree before a capability runs."""
    wanted = settings.approvals
    if wanted.steps == "none":
        return False
    personal = ApprovalPolicy.of(spec.requires_approval).restricts_approvers
    if wanted.callers_may_disable and switches.get("approval_disabled") and not personal:
        return False  # where it matters who agrees, it is not the requester's to leave out
    return bool(spec.requires_approval or wanted.steps == "all")


async def check_step_policies(policies: Any, step: PlannedStep, view: Any) -> Verdict:
    """Ask every policy about a step.

    Returns:
        ``allow`` or ``ask``, with the reasons of those that ask.

    Raises:
        PolicyError: One of them refuses; the message has all their reasons.
    """
    # A copy each: whoever judges changes nothing.
    verdicts = [await maybe_await(policy.decide(copy_plain(step), view)) for policy in policies]
    return combine_verdicts(
        verdicts, f"the step {step.get('context_key')!r} ({step.get('capability')})"
    )


def combine_verdicts(verdicts: list[Verdict], subject: str) -> Verdict:
    """Bring verdicts together: a refusal stands over a question, a question over a yes.

    Raises:
        PolicyError: One of them refuses, or is no verdict.
    """
    if odd := [repr(v)[:80] for v in verdicts if not isinstance(v, Verdict)]:
        raise PolicyError(
            f"A policy said {', '.join(odd)} about {subject}, which is no verdict.",
            fix='Return Verdict("allow"), Verdict("deny", problems=[…]) or Verdict("ask", …).',
            severity=ErrorSeverity.CRITICAL,
        )
    denied = [text for v in verdicts if v.decision == "deny" for text in v.problems or ("",)]
    if denied:
        record_later("policy", about=subject, decision="deny", reasons=digest(denied))
        told = " ".join(text for text in denied if text) or "No reason was given."
        raise PolicyError(
            f"A policy refuses {subject}: {told}",
            fix="Ask for something else, or have the policy changed.",
            severity=ErrorSeverity.CRITICAL,
        )
    asked = [text for v in verdicts if v.decision == "ask" for text in v.problems]
    wants = any(v.decision == "ask" for v in verdicts)
    if verdicts:
        record_later("policy", about=subject, decision="ask" if wants else "allow")
    return Verdict("ask" if wants else "allow", asked)
