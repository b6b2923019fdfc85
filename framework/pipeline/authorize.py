"""Stage ``authorize``: may this step run? Policies are asked, and a person where one has to agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from capgraph.approvals import PLAN, STEP
from capgraph.approvals.grounding import (
    may_be_ungrounded,
    ungrounded_parameters,
    ungrounded_text,
)
from capgraph.base.approval_policy import ApprovalPolicy
from capgraph.base.awaiting import awaited
from capgraph.base.errors import ErrorSeverity, PlanError, PolicyError
from capgraph.base.plan import ExecutionPlan, PlannedStep
from capgraph.base.ports import Attempt, FlowPolicy, Question, StepPolicy, StepRecord, Verdict
from capgraph.base.spec import CapabilitySpec
from capgraph.base.values import copied
from capgraph.pipeline.effect_ledger import digest_of, plain_inputs
from capgraph.pipeline.finalize import failed_record
from capgraph.pipeline.job import Agreement, Job, Result
from capgraph.planning import fingerprints
from capgraph.telemetry.audit import digest, note


async def authorize(
    job: Job, attempt: Attempt, policies: Sequence[StepPolicy] = ()
) -> Attempt | Result:
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
    if reasons or needs_approval(job.spec, job.view.switches, job.equipment.settings):
        shown = shown_of(attempt, job.view.plan)
        shown |= {"ungrounded": ungrounded} if ungrounded else {}
        digest = agreement_digest(attempt.capability, shown)
        ask = Question(STEP, attempt.capability, " ".join(reasons), digest=digest, shown=shown)
        return await agreement(job, attempt, ask) or attempt
    return attempt


def can_ask(spec: CapabilitySpec, settings: Any, policies: Sequence[StepPolicy]) -> bool:
    """Return whether something about a capability itself may have a person asked, or refuse it."""
    declared = spec.requires_approval or settings.approvals.steps == "all"
    return bool(policies or declared or spec.effect != "none")


async def authorize_marked(job: Job, attempt: Attempt) -> Attempt | Result:
    """Authorize a step about which only a middleware or a label of its data asks."""
    if attempt.approval_reasons or (job.labels and job.flow is not None):
        return await authorize(job, attempt)
    return attempt


async def use_agreement(job: Job, record: StepRecord) -> None:
    """Record that a step used the agreement to it; what acts once is never repeated on one."""
    if job.agreement is not None and record.success and job.spec.effect != "once":
        await job.door.ledger.agreements.use(job.agreement.question.digest, record.key)


async def _reasons(
    job: Job, attempt: Attempt, policies: Sequence[StepPolicy], ungrounded: Mapping[str, Any]
) -> list[str]:
    """Return why a person has to agree to a step.

    Raises:
        PolicyError: The step is refused.
    """
    reasons = list(attempt.approval_reasons)
    if job.labels and job.flow is not None:
        reasons += await _labels_in_the_way(job, attempt, job.flow)
    if policies:
        step: Any = {**step_of(attempt), "parameters": dict(attempt.values)}
        verdict = await judge(policies, step, job.view)
        if verdict.decision == "ask":
            reasons += verdict.problems or ["A policy asks for a person's agreement."]
    return reasons + await _ungrounded_reasons(job, attempt, ungrounded)


def _ungrounded(job: Job, attempt: Attempt) -> dict[str, Any]:
    """Return the parameters of a planned step that a model invented, by their paths."""
    if job.outer is not None:
        return {}  # a capability chose them, not the plan
    if not may_be_ungrounded(job.spec, job.view):
        return {}  # serializing the inputs of every step would cost more than the rest of the stage
    step, values = step_of(attempt), dict(attempt.values)
    inputs = plain_inputs(attempt.inputs)
    return ungrounded_parameters(step, values, job.view, job.equipment.registry, inputs)


async def _ungrounded_reasons(job: Job, attempt: Attempt, found: Mapping[str, Any]) -> list[str]:
    """Say why a person has to agree to ungrounded parameters.

    Raises:
        PolicyError: The settings refuse them, and nobody agreed to them.
    """
    setting = job.equipment.settings.approvals.ungrounded
    if not found or setting == "allow":
        return []
    agreements, keys = job.door.ledger.agreements, list(job.door.plan_keys)
    # Whoever agreed to the plan has seen which of its values are ungrounded.
    if await agreements.agreed(digest_of(job.view.steps), PLAN, ()):
        return []
    if setting == "refuse":
        digest = agreement_digest(attempt.capability, shown_of(attempt, job.view.plan))
        if await agreements.agreed(digest, attempt.key, keys):
            return []
        raise PolicyError(
            f"The step {attempt.key!r} ({attempt.capability}) is refused. {ungrounded_text(found)}",
            fix="State the values in the request, or set approvals.ungrounded to 'ask'.",
            severity=ErrorSeverity.CRITICAL,
        )
    return [ungrounded_text(found)]


async def _labels_in_the_way(job: Job, attempt: Attempt, flow: FlowPolicy) -> Sequence[str]:
    """Say why a person has to agree to data that would reach a step.

    Raises:
        PolicyError: It must not.
    """
    step = step_of(attempt)
    verdict = flow.check(job.spec, step, job.labels)
    if verdict.decision == "allow":
        return ()
    around = job.outer.labels if job.outer is not None else {}
    given = flow.labels_for_step(job.spec, step, job.view, words=False)
    said = flow.check(job.spec, step, {**around, **given})
    if said.decision == "allow" and job.view.steps:
        # What stands in the plan word for word was shown with it.
        agreed = await job.door.ledger.agreements.agreed(digest_of(job.view.steps), PLAN, ())
        verdict = said if agreed else verdict
    return weighed([verdict], f"the step {attempt.key!r} ({attempt.capability})").problems


def step_of(attempt: Attempt) -> PlannedStep:
    """Return the step of an attempt, which need not be one of a plan."""
    named: Any = {"context_key": attempt.key, "capability": attempt.capability}
    return {**attempt.step, **named}


async def agreement(job: Job, attempt: Attempt, ask: Question) -> Question | None:
    """Return the question that people still have to agree to; ``None`` when they have.

    Args:
        job: The run of the stages; it is told of the agreement.
        attempt: The step.
        ask: What is asked.
    """
    policy = ApprovalPolicy.of(job.spec.requires_approval)
    others, now = list(job.door.plan_keys), job.equipment.clock.now()
    book = job.door.ledger.agreements
    # A node that asks by itself looks again when it is answered; a router has been told the answer.
    anew = job.door.control.may_wait
    found = await book.consent(ask.digest, attempt.key, others, policy, now, anew=anew)
    job.agreement = Agreement(ask, found.until) if found.enough else None
    if found.enough:
        return None
    told: dict[str, Any] = {}
    if policy.personal:
        told = {"needed": policy.approvers, "agreed": list(found.agreed)}
        told["not_requester"] = policy.not_requester
    if found.refused:
        told["refused"] = found.refused
    if found.asked is not None and policy.expires_seconds is not None:
        told["until"] = found.asked + policy.expires_seconds
    return replace(ask, approvals=told)


async def last_look(job: Job, attempt: Attempt) -> Question | None:
    """Look again, just before a step begins, whether the agreement to it still holds."""
    if job.agreement is None or job.agreement.until is None:
        return None
    return await agreement(job, attempt, job.agreement.question)


def rests_on(plan: ExecutionPlan, step: PlannedStep) -> list[str]:
    """Name the work of the plan that gives a step its inputs, whatever the steps are called."""
    keys = {key for entry in step.get("inputs") or [] for key in entry.values()}
    if not keys:
        return []
    try:
        prints = fingerprints(plan)
    except PlanError:  # nobody checks the plan of a graph of one's own
        return []
    return sorted(prints[key] for key in keys & prints.keys())


def shown_of(attempt: Attempt, plan: ExecutionPlan) -> dict[str, Any]:
    """Return what a person is shown of a step and agrees to; of a copy also its element."""
    return {
        "parameters": dict(attempt.values),
        "input_values": plain_inputs(attempt.inputs),
        "rests_on": rests_on(plan, attempt.step),
        **({} if attempt.element is None else {"element": attempt.element.value}),
    }


def agreement_digest(capability: str, shown: Mapping[str, Any]) -> str:
    """Name what a person is shown of a step: what runs must have the same name.

    These are the capability, the validated parameters, the values of the inputs, and the part of
    the plan on which it rests.
    """
    return digest_of(
        [capability, *(shown.get(name) for name in ("parameters", "input_values", "rests_on"))]
    )


def needs_approval(spec: CapabilitySpec, switches: Mapping[str, Any], settings: Any) -> bool:
    """Tell whether a person has to agree before a capability runs."""
    wanted = settings.approvals
    if wanted.steps == "none":
        return False
    personal = ApprovalPolicy.of(spec.requires_approval).personal
    if wanted.callers_may_disable and switches.get("approval_disabled") and not personal:
        return False  # where it matters who agrees, it is not the requester's to leave out
    return bool(spec.requires_approval or wanted.steps == "all")


async def judge(policies: Any, step: PlannedStep, view: Any) -> Verdict:
    """Ask every policy about a step.

    Returns:
        ``allow`` or ``ask``, with the reasons of those that ask.

    Raises:
        PolicyError: One of them refuses; the message has all their reasons.
    """
    # A copy each: whoever judges changes nothing.
    verdicts = [await awaited(policy.decide(copied(step), view)) for policy in policies]
    return weighed(verdicts, f"the step {step.get('context_key')!r} ({step.get('capability')})")


def weighed(verdicts: list[Verdict], what: str) -> Verdict:
    """Bring verdicts together: a refusal stands over a question, a question over a yes.

    Raises:
        PolicyError: One of them refuses, or is no verdict.
    """
    if odd := [repr(v)[:80] for v in verdicts if not isinstance(v, Verdict)]:
        raise PolicyError(
            f"A policy said {', '.join(odd)} about {what}, which is no verdict.",
            fix='Return Verdict("allow"), Verdict("deny", problems=[…]) or Verdict("ask", …).',
            severity=ErrorSeverity.CRITICAL,
        )
    denied = [text for v in verdicts if v.decision == "deny" for text in v.problems or ("",)]
    if denied:
        note("policy", about=what, decision="deny", reasons=digest(denied))
        told = " ".join(text for text in denied if text) or "No reason was given."
        raise PolicyError(
            f"A policy refuses {what}: {told}",
            fix="Ask for something else, or have the policy changed.",
            severity=ErrorSeverity.CRITICAL,
        )
    asked = [text for v in verdicts if v.decision == "ask" for text in v.problems]
    wants = any(v.decision == "ask" for v in verdicts)
    if verdicts:
        note("policy", about=what, decision="ask" if wants else "allow")
    return Verdict("ask" if wants else "allow", asked)
