"""Stage ``permit``: may this step run? Policies are asked, and a person where one has to agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from framework.approvals import PLAN, STEP
from framework.base.errors import ErrorSeverity, PolicyError
from framework.base.plan import PlannedStep
from framework.base.ports import Attempt, Flow, Question, StepPolicy, Verdict
from framework.base.spec import CapabilitySpec
from framework.pipeline.effect_ledger import digest_of, plain_inputs
from framework.pipeline.job import Inner, Job, Result
from framework.pipeline.settle import failed_record


async def permit(
    job: Job, attempt: Attempt, inner: Inner, policies: Sequence[StepPolicy] = ()
) -> Result:
    """Refuse a step, ask about it, or let it pass; nothing below has begun.

    Args:
        job: The run of the stages.
        attempt: What is asked for.
        inner: What it may go on with.
        policies: What is asked about the step.
    """
    reasons: list[str] = []
    if job.runner.flow is not None:
        try:
            reasons += await _labels_in_the_way(job, attempt, job.runner.flow)
        except PolicyError as exc:
            return failed_record(job, attempt, exc)
    if policies:
        step: Any = {**step_of(attempt), "parameters": dict(attempt.values)}
        try:
            verdict = await judge(policies, step, job.view)
        except PolicyError as exc:
            return failed_record(job, attempt, exc)
        if verdict.decision == "ask":
            reasons += verdict.problems or ["A policy asks for a person's agreement."]
    if reasons or needs_approval(job.spec, job.view.switches, job.runner.settings):
        shown = {"parameters": dict(attempt.values), "input_values": plain_inputs(attempt.inputs)}
        digest = agreement_digest(attempt.capability, shown)
        ledger = job.door.ledger
        job.agreed = await ledger.agreed(digest, attempt.key, list(job.door.plan_keys))
        if not job.agreed:
            why = " ".join(reasons)
            return Question(STEP, attempt.capability, why, digest=digest, shown=shown)
    result: Result = await inner(job, attempt)
    return result


async def _labels_in_the_way(job: Job, attempt: Attempt, flow: Flow) -> Sequence[str]:
    """Say why a person has to agree to data that would reach a step.

    Raises:
        PolicyError: It must not.
    """
    step = step_of(attempt)
    verdict = flow.at_step(step, job.view)
    if verdict.decision == "allow":
        return ()
    said = flow.at_step(step, job.view, words=False)
    if said.decision == "allow" and job.view.steps:
        # What stands in the plan word for word was shown with it.
        agreed = await job.door.ledger.agreed(digest_of(job.view.steps), PLAN, ())
        verdict = said if agreed else verdict
    return weighed([verdict], f"the step {attempt.key!r} ({attempt.capability})").problems


def step_of(attempt: Attempt) -> PlannedStep:
    """Return the step of an attempt, which need not be one of a plan."""
    named: Any = {"context_key": attempt.key, "capability": attempt.capability}
    return {**attempt.step, **named}


def agreement_digest(capability: str, shown: Mapping[str, Any]) -> str:
    """Name what a person is shown of a step: what runs must have the same name."""
    return digest_of([capability, shown.get("parameters"), shown.get("input_values")])


def needs_approval(spec: CapabilitySpec, switches: Mapping[str, Any], settings: Any) -> bool:
    """Tell whether a person has to agree before a capability runs."""
    wanted = settings.approvals
    if wanted.steps == "none":
        return False
    if wanted.may_be_switched_off and switches.get("approval_disabled"):
        return False
    return bool(spec.requires_approval or wanted.steps == "all")


async def judge(policies: Any, step: PlannedStep, view: Any) -> Verdict:
    """Ask every policy about a step.

    Returns:
        ``allow`` or ``ask``, with the reasons of those that ask.

    Raises:
        PolicyError: One of them refuses; the message has all their reasons.
    """
    verdicts = [await policy.decide(step, view) for policy in policies]
    return weighed(verdicts, f"the step {step.get('context_key')!r} ({step.get('capability')})")


def weighed(verdicts: list[Verdict], what: str) -> Verdict:
    """Bring verdicts together: a refusal stands over a question, a question over a yes.

    Raises:
        PolicyError: One of them refuses.
    """
    denied = [text for v in verdicts if v.decision == "deny" for text in v.problems or ("",)]
    if denied:
        told = " ".join(text for text in denied if text) or "No reason was given."
        raise PolicyError(
            f"A policy refuses {what}: {told}",
            fix="Ask for something else, or have the policy changed.",
            severity=ErrorSeverity.CRITICAL,
        )
    asked = [text for v in verdicts if v.decision == "ask" for text in v.problems]
    wants = any(v.decision == "ask" for v in verdicts)
    return Verdict("ask" if wants else "allow", asked)
