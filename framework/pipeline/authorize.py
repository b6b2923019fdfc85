"""Stage ``authorize``: evaluate policies and request approvals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings
    from capgraph.state import TurnView

_DEFAULT_REASON = "A policy requires approval."


async def authorize(
    execution: StepExecution, attempt: Attempt, policies: Sequence[StepPolicy] = ()
) -> Attempt | StepResult:
    """Allow or deny a step, or request a person's approval, before any inner stage runs.

    Args:
        execution: State of the step execution.
        attempt: Attempt to authorize.
        policies: Step policies to evaluate.

    Returns:
        The attempt if the step is allowed, otherwise a failed record or an approval request.
    """
    ungrounded = _find_ungrounded(execution, attempt)
    try:
        reasons = await _collect_approval_reasons(execution, attempt, policies, ungrounded)
    except PolicyError as exc:
        return await failed_record(execution, attempt, exc)
    if reasons or needs_approval(
        execution.spec, execution.view.caller_switches, execution.config.settings
    ):
        preview = approval_preview(attempt, execution.view.plan)
        preview |= {"ungrounded": ungrounded} if ungrounded else {}
        digest = approval_digest(attempt.capability, preview)
        question = ApprovalRequest(
            STEP, attempt.capability, " ".join(reasons), digest=digest, shown=preview
        )
        return await pending_approval(execution, attempt, question) or attempt
    return attempt


async def authorize_caller(
    execution: StepExecution, attempt: Attempt, policies: Sequence[StepPolicy]
) -> Attempt | StepResult:
    """Evaluate policies that depend only on the caller and the capability, before other code runs.

    Args:
        execution: State of the step execution.
        attempt: Attempt to authorize, whose parameters are not validated yet.
        policies: Policies with ``decides_by_name``.
    """
    try:
        verdict = await check_step_policies(policies, planned_step(attempt), execution.view)
    except PolicyError as exc:
        return await failed_record(execution, attempt, exc)
    if verdict.decision == "allow":
        return attempt
    reasons = verdict.problems or [_DEFAULT_REASON]
    return replace(attempt, approval_reasons=(*attempt.approval_reasons, *reasons))


def may_need_authorization(
    spec: CapabilitySpec, settings: Settings, policies: Sequence[StepPolicy]
) -> bool:
    """Return True if a capability's steps may be denied or may require approval."""
    declared = spec.requires_approval or settings.approvals.steps == "all"
    return bool(policies or declared or spec.effect != "none")


async def authorize_if_flagged(execution: StepExecution, attempt: Attempt) -> Attempt | StepResult:
    """Authorize a step only if middleware or a data label (provenance tag) requires it."""
    if attempt.approval_reasons or (execution.labels and execution.flow is not None):
        return await authorize(execution, attempt)
    return attempt


async def mark_approval_used(execution: StepExecution, record: StepRecord) -> None:
    """Record that a successful step used its approval, so that no other step can use it.

    Steps whose effect is never repeated are exempt.
    """
    if execution.approval is not None and record.success and execution.spec.effect != "once":
        await execution.context.ledger.approvals.mark_used(
            execution.approval.question.digest, record.key
        )


async def _collect_approval_reasons(
    execution: StepExecution,
    attempt: Attempt,
    policies: Sequence[StepPolicy],
    ungrounded: Mapping[str, Any],
) -> list[str]:
    """Collect the reasons why a step requires a person's approval.

    Raises:
        PolicyError: A policy or setting denies the step.
    """
    reasons = list(attempt.approval_reasons)
    if execution.labels and execution.flow is not None:
        reasons += await _check_labels(execution, attempt, execution.flow)
    if policies:
        step: Any = {**planned_step(attempt), "parameters": dict(attempt.values)}
        verdict = await check_step_policies(policies, step, execution.view)
        if verdict.decision == "ask":
            reasons += verdict.problems or [_DEFAULT_REASON]
    return reasons + await _check_ungrounded_parameters(execution, attempt, ungrounded)


def _find_ungrounded(execution: StepExecution, attempt: Attempt) -> dict[str, Any]:
    """Return the parameters that occur in no source, by path.

    A model may have invented the values of such ungrounded parameters.
    """
    if execution.outer is not None:
        return {}  # a capability chose the parameters, not the plan
    if not is_grounding_checked(execution.spec, execution.view):
        return {}  # serializing all inputs would cost more than the rest of the stage
    step, values = planned_step(attempt), dict(attempt.values)
    inputs = serialize_inputs(attempt.inputs)
    return ungrounded_parameters(step, values, execution.view, execution.config.registry, inputs)


async def _check_ungrounded_parameters(
    execution: StepExecution, attempt: Attempt, ungrounded: Mapping[str, Any]
) -> list[str]:
    """Return the reasons why ungrounded parameters require approval.

    The values of ungrounded parameters occur in no source, so a model may have invented them.

    Raises:
        PolicyError: The settings deny ungrounded parameters, and no person has approved them.
    """
    setting = execution.config.settings.approvals.ungrounded
    if not ungrounded or setting == "allow":
        return []
    agreements, keys = execution.context.ledger.approvals, list(execution.context.plan_keys)
    # An approved plan was shown with its ungrounded values.
    if await agreements.is_approved(compute_digest(execution.view.steps), PLAN, ()):
        return []
    if setting == "refuse":
        digest = approval_digest(attempt.capability, approval_preview(attempt, execution.view.plan))
        if await agreements.is_approved(digest, attempt.key, keys):
            return []
        raise PolicyError(
            f"Step {attempt.key!r} ({attempt.capability}) is not allowed:"
            f" {describe_ungrounded(ungrounded)}",
            fix="state the values in the request, or set approvals.ungrounded to 'ask'.",
            severity=ErrorSeverity.CRITICAL,
        )
    return [describe_ungrounded(ungrounded)]


async def _check_labels(
    execution: StepExecution, attempt: Attempt, flow: FlowPolicy
) -> Sequence[str]:
    """Return the reasons why a step that receives labeled data requires approval.

    Raises:
        PolicyError: The information-flow policy does not allow the step to receive the data.
    """
    step = planned_step(attempt)
    verdict = flow.check(execution.spec, step, execution.labels)
    if verdict.decision == "allow":
        return ()
    outer_labels = execution.outer.labels if execution.outer is not None else {}
    input_labels = flow.labels_for_step(
        execution.spec, step, execution.view, include_plan_text=False
    )
    without_plan_text = flow.check(
        execution.spec, step, {**outer_labels, **input_labels, **execution.file_labels}
    )
    if without_plan_text.decision == "allow" and execution.view.steps:
        # The plan was approved with its literal values.
        agreed = await execution.context.ledger.approvals.is_approved(
            compute_digest(execution.view.steps), PLAN, ()
        )
        verdict = without_plan_text if agreed else verdict
    return combine_verdicts([verdict], f"the step {attempt.key!r} ({attempt.capability})").problems


def planned_step(attempt: Attempt) -> PlannedStep:
    """Return an attempt's planned step, with the attempt's context key and capability."""
    named: Any = {"context_key": attempt.key, "capability": attempt.capability}
    return {**attempt.step, **named}


async def pending_approval(
    execution: StepExecution, attempt: Attempt, question: ApprovalRequest
) -> ApprovalRequest | None:
    """Return the approval request if it is still open, or ``None`` if the step is approved.

    Args:
        execution: State of the step execution, in which a valid approval is stored.
        attempt: Attempt that requires approval.
        question: Approval request.
    """
    approvals = execution.context.ledger.approvals
    policy = approvals.policy_for(ApprovalPolicy.from_declaration(execution.spec.requires_approval))
    plan_keys, now = list(execution.context.plan_keys), execution.config.clock.now()
    # A standalone node checks again after the answer. The router has already processed it.
    renew = execution.context.control.can_wait
    status = await approvals.status(
        question.digest,
        attempt.key,
        plan_keys,
        policy,
        now,
        capability=attempt.capability,
        renew_expired=renew,
    )
    execution.approval = StepApproval(question, status.expires_at) if status.is_approved else None
    if status.is_approved:
        return None
    details: dict[str, Any] = {}
    if policy.restricts_approvers:
        details = {"needed": policy.approvers, "agreed": list(status.approvers)}
        details["not_requester"] = policy.not_requester
        details |= {"needs_overseer": True} if approvals.needs_overseer else {}
    if status.refusal:
        details["refused"] = status.refusal
    if status.asked_at is not None and policy.expires_seconds is not None:
        details["until"] = status.asked_at + policy.expires_seconds
    return replace(question, approvals=details)


async def recheck_approval(execution: StepExecution, attempt: Attempt) -> ApprovalRequest | None:
    """Return the approval request again if the approval expired before the step started.

    The result is ``None`` if the approval is still valid.
    """
    if execution.approval is None or execution.approval.expires_at is None:
        return None
    return await pending_approval(execution, attempt, execution.approval.question)


def upstream_fingerprints(plan: ExecutionPlan, step: PlannedStep) -> list[str]:
    """Return the fingerprints of the steps that supply a step's inputs."""
    keys = {key for entry in step.get("inputs") or [] for key in entry.values()}
    if not keys:
        return []
    try:
        prints = fingerprints(plan)
    except PlanError:  # the plan of a custom graph is not checked
        return []
    return sorted(prints[key] for key in keys & prints.keys())


def approval_preview(attempt: Attempt, plan: ExecutionPlan) -> dict[str, Any]:
    """Build the data that an approval request shows to a person.

    The preview contains the step's parameters and inputs, its upstream steps, and any list
    element.
    """
    return {
        "parameters": dict(attempt.values),
        "input_values": serialize_inputs(attempt.inputs),
        "rests_on": upstream_fingerprints(plan, attempt.step),
        **({} if attempt.element is None else {"element": attempt.element.value}),
    }


def approval_digest(capability: str, preview: Mapping[str, Any]) -> str:
    """Compute the digest that identifies an approval preview.

    The digest covers the capability, the validated parameters, the input values, and the plan's
    upstream steps. The step that runs must have the same digest as the approved preview.
    """
    return compute_digest(
        [capability, *(preview.get(name) for name in ("parameters", "input_values", "rests_on"))]
    )


def needs_approval(spec: CapabilitySpec, switches: Mapping[str, Any], settings: Settings) -> bool:
    """Return True if a person must approve a step of a capability before it runs."""
    approvals = settings.approvals
    if approvals.steps == "none":
        return False
    names_approvers = ApprovalPolicy.from_declaration(spec.requires_approval).restricts_approvers
    if approvals.callers_may_disable and switches.get("approval_disabled") and not names_approvers:
        return False  # the requester cannot disable an approval with named approvers
    return bool(spec.requires_approval or approvals.steps == "all")


async def check_step_policies(
    policies: Sequence[StepPolicy], step: PlannedStep, view: TurnView
) -> Verdict:
    """Evaluate all step policies for a planned step.

    Args:
        policies: Step policies to evaluate.
        step: Planned step.
        view: Current state of the turn.

    Returns:
        A verdict ``allow``, or ``ask`` with the reasons of the policies that require approval.

    Raises:
        PolicyError: A policy denies the step. The message contains all reasons.
    """
    # Each policy receives a copy, so that it cannot change the step.
    verdicts = [await maybe_await(policy.decide(copy_plain(step), view)) for policy in policies]
    return combine_verdicts(
        verdicts, f"the step {step.get('context_key')!r} ({step.get('capability')})"
    )


def combine_verdicts(verdicts: list[Verdict], subject: str) -> Verdict:
    """Combine verdicts: ``deny`` overrides ``ask``, and ``ask`` overrides ``allow``.

    Args:
        verdicts: Verdicts of the policies.
        subject: Description of the plan or step, for error messages.

    Raises:
        PolicyError: A policy denies, or returned something other than a verdict.
    """
    if invalid := [repr(v)[:80] for v in verdicts if not isinstance(v, Verdict)]:
        raise PolicyError(
            f"A policy returned an invalid verdict for {subject}: {', '.join(invalid)}.",
            fix='return Verdict("allow"), Verdict("deny", problems=[…]), or Verdict("ask", …).',
            severity=ErrorSeverity.CRITICAL,
        )
    denied = [text for v in verdicts if v.decision == "deny" for text in v.problems or ("",)]
    if denied:
        record_later("policy", about=subject, decision="deny", reasons=digest(denied))
        message = " ".join(text for text in denied if text) or "No reason was given."
        raise PolicyError(
            f"A policy denies {subject}: {message}",
            fix="change the request, or ask the operator to change the policy.",
            severity=ErrorSeverity.CRITICAL,
        )
    reasons = [text for v in verdicts if v.decision == "ask" for text in v.problems]
    asks = any(v.decision == "ask" for v in verdicts)
    if verdicts:
        record_later("policy", about=subject, decision="ask" if asks else "allow")
    return Verdict("ask" if asks else "allow", reasons)
