"""Stage ``idempotency``: never repeat a completed effect.

A record is stored before a step with ``effect="once"`` starts, and the result is added when the
step ends. If the process dies in between, the record remains ``begun`` and the outcome is unknown.
In that case ``on_unknown`` or a person decides what happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from langgraph.errors import GraphBubbleUp

from capgraph.approvals import ACTED_BEFORE, UNKNOWN_OUTCOME
from capgraph.base.errors import CapabilityError, CapgraphError, ErrorSeverity
from capgraph.base.plan import plan_key
from capgraph.base.ports import ApprovalRequest, Attempt, Failure
from capgraph.base.spec import CapabilitySpec
from capgraph.helpers.data_size import exceeds_bytes
from capgraph.pipeline.authorize import recheck_approval
from capgraph.pipeline.effect_ledger import (
    Claim,
    UnknownOutcome,
    compute_digest,
    encode_result,
    outcome_approvals,
)
from capgraph.pipeline.finalize import SkippedStep, classify_step_failure
from capgraph.pipeline.step_execution import NextStage, StepExecution, claimed_effects
from capgraph.planning import fingerprints
from capgraph.telemetry.audit import record_now, record_soon

_UNKNOWN_CATEGORIES = frozenset({"timeout", "network"})
"""Failure categories after which the outcome of an effect is unknown."""
_SKIP_REASON = "Skipped: it is unknown whether its effect happened."


async def run_without_effect(
    execution: StepExecution, attempt: Attempt, call_next: NextStage
) -> Any:
    """Run a step without an effect, unless the turn was stopped or the lease was lost.

    If the step calls ``self.once``, part of the step may still have an unknown outcome.

    Raises:
        PersistenceError: Another process holds the lease of the thread.
        StoppedError: A user stopped the run.
    """
    ledger = execution.context.ledger
    await ledger.raise_if_stopped(confirm=False)
    if (question := await recheck_approval(execution, attempt)) is not None:
        return question
    if not ledger.journal.is_remote:
        await ledger.assert_lease_held()  # a remote result is stored for the next process
    try:
        return await call_next(execution, attempt)
    except UnknownOutcome as signal:
        return signal.question or SkippedStep(_SKIP_REASON)


async def idempotency(execution: StepExecution, attempt: Attempt, call_next: NextStage) -> Any:
    """Run the inner stages at most once per effect, as tracked by the effect's record.

    Returns:
        The raw result, the stored result of an equal effect, or a request for a person's decision.

    Raises:
        CapabilityError: The outcome of an earlier run is unknown and ``on_unknown`` is
            ``fail``.
        PersistenceError: The record cannot be stored, or another process holds the lease of the
            thread.
        StoppedError: A user stopped the run.
    """
    spec, ledger = execution.spec, execution.context.ledger
    await ledger.raise_if_stopped(confirm=spec.effect == "idempotent")
    if ledger.journal.is_remote and execution.outer is not None:
        raise CapabilityError(
            f"{spec.name!r} cannot run inside {execution.outer.spec.name!r}: it has an effect, and a"
            " restart of the remote worker could repeat it.",
            fix="plan it as a separate step, or remove the queue of the outer capability.",
        )
    await ledger.wait_until_saved()
    claimed = claimed_effects(
        execution.view.results, [k for k in execution.context.plan_keys if k != attempt.key]
    )
    plan = execution.view.plan_id
    claim = await ledger.claim(spec, attempt, plan, claimed)
    execution.attempt_state.effect = claim.name
    keyed = replace(attempt, idempotency_key=ledger.idempotency_key(claim.name))
    if spec.effect != "once":
        return await recheck_approval(execution, keyed) or await _run_idempotent(
            execution, keyed, call_next
        )
    status = claim.record.get("status")
    if status == "finished":
        execution.attempt_state.is_replayed_effect = not claim.is_own
        execution.mark_effect_done()
        return ledger.stored_result(claim.record)
    if status == "begun":
        resolved = await _resolve_unknown_outcome(execution, keyed, claim)
        if resolved is not None:
            return resolved
    question = await _create_repeat_question(execution, keyed, claim, plan, claimed)
    question = question or await recheck_approval(execution, keyed)
    if question is not None:
        return question
    return await _run_effect(execution, keyed, claim, call_next)


async def _run_effect(
    execution: StepExecution, attempt: Attempt, claim: Claim, call_next: NextStage
) -> Any:
    ledger = execution.context.ledger
    run = await ledger.begin_effect(claim.name)
    try:
        await ledger.raise_if_stopped(confirm=True)
    except CapgraphError:
        await ledger.end_effect(claim.name, "failed")
        raise
    await ledger.assert_lease_held()
    try:
        result = await call_next(execution, attempt)
    except UnknownOutcome as signal:
        await ledger.end_effect(claim.name, "asking" if signal.question else "unknown")
        return signal.question or SkippedStep(_SKIP_REASON)
    except GraphBubbleUp:
        # The capability asks a person. The code before its interrupt runs again after the answer.
        await ledger.end_effect(claim.name, "asking")
        raise
    except Exception as exc:
        if (
            execution.attempt_state.body_result is not None
        ):  # only the teardown or a middleware failed
            await _record_effect_finished(
                execution, claim, execution.attempt_state.body_result.value
            )
            raise
        failure = classify_step_failure(execution, attempt, exc)
        if not (execution.attempt_state.timed_out or _has_unknown_outcome(failure)):
            await ledger.end_effect(claim.name, "failed")
            raise
        if execution.spec.on_unknown == "skip":
            await ledger.end_effect(claim.name, "unknown")
            return SkippedStep(_SKIP_REASON)
        if execution.spec.on_unknown == "ask":
            return _create_unknown_outcome_question(
                execution.spec,
                attempt,
                claim,
                run,
                f"The outcome of the step is unknown ({failure.message})",
            )
        await ledger.end_effect(claim.name, "failed")
        if execution.spec.on_unknown == "fail" and execution.attempt_state.timed_out:
            raise CapabilityError(
                f"{failure.message} It is unknown whether its effect happened.",
                fix="check the external system, then run the step again or set on_unknown.",
                severity=ErrorSeverity.CRITICAL,
            ) from exc
        raise
    await _record_effect_finished(execution, claim, result)
    return result


async def _record_effect_finished(execution: StepExecution, claim: Claim, result: Any) -> None:
    """Record that an effect finished, before any other code processes its result."""
    await execution.record_effect()
    stored = encode_result(result, execution.attempt_state.stored_outputs)
    # Stage ``finalize`` refuses a result that is too large. The record of the effect must not contain it.
    is_too_large = exceeds_bytes(stored, execution.config.limits.max_result_bytes)
    fields: dict[str, Any] = {"lost": True} if is_too_large else {"result": stored}
    await execution.context.ledger.end_effect(claim.name, "finished", **fields)


async def _run_idempotent(execution: StepExecution, attempt: Attempt, call_next: NextStage) -> Any:
    """Run an effect that is safe to repeat, and write audit records of its start and end."""
    await record_now(
        "effect", effect=execution.attempt_state.effect, status="begun", run=attempt.number
    )
    await execution.context.ledger.assert_lease_held()
    status = "failed"
    try:
        try:
            result = await call_next(execution, attempt)
        except UnknownOutcome as signal:
            result = signal.question or SkippedStep(_SKIP_REASON)
        status = "asking" if isinstance(result, ApprovalRequest) else "finished"
        return result
    finally:
        await record_soon("effect", effect=execution.attempt_state.effect, status=status)


async def _resolve_unknown_outcome(execution: StepExecution, attempt: Attempt, claim: Claim) -> Any:
    """Return the result of an effect with an unknown outcome, or ``None`` to run it again."""
    run = int(claim.record.get("run", 0))
    decision = await execution.context.ledger.read_outcome(claim.name, run)
    answer: Any = execution.spec.on_unknown
    # A decision applies to one run. If the next run is interrupted, the person is asked again.
    answer = decision.get("decision") or answer
    if answer == "rerun":
        return None
    if answer == "skip":
        return SkippedStep(_SKIP_REASON)
    if answer == "done":
        execution.mark_effect_done()
        outputs = [{kind: data} for kind, data in (decision.get("outputs") or {}).items()]
        await execution.context.ledger.end_effect(claim.name, "finished", result=outputs)
        return outputs
    if answer == "fail":
        raise CapabilityError(
            f"The outcome of step {attempt.key!r} ({attempt.capability}) is unknown because the "
            "step started in an earlier process.",
            fix="check the external system, then run the step again or set on_unknown.",
        )
    return _create_unknown_outcome_question(
        execution.spec,
        attempt,
        claim,
        run,
        "The process ended while the step was running",
        decision,
    )


async def _create_repeat_question(
    execution: StepExecution,
    attempt: Attempt,
    claim: Claim,
    plan_id: str,
    claimed_records: set[str],
) -> ApprovalRequest | None:
    """Request approval if an effect repeats an earlier plan's effect with different values."""
    spec, ledger = execution.spec, execution.context.ledger
    if spec.repeatable or not claim.is_new or execution.approval:
        return None
    if not ledger.has_earlier_effect(
        spec, plan_id, claim.name, claimed_records
    ) or _was_in_earlier_plan(execution, attempt):
        return None
    digest = compute_digest([ACTED_BEFORE, claim.name])
    if await ledger.approvals.is_approved(digest, attempt.key, list(execution.context.plan_keys)):
        return None
    return ApprovalRequest(
        ACTED_BEFORE,
        spec.name,
        f"{spec.name!r} already had an effect in an earlier plan of this turn. The new plan runs it"
        " again with different values.",
        digest=digest,
        shown={"parameters": dict(attempt.values)},
        effect=claim.name,
        idempotency_key=attempt.idempotency_key,
    )


def _was_in_earlier_plan(execution: StepExecution, attempt: Attempt) -> bool:
    """Return True if an earlier plan of the same turn contained this step."""
    fingerprint = fingerprints(execution.view.plan).get(plan_key(attempt.key))
    versions: list[Mapping[str, Any]] = execution.view.state.get("planning_history") or []
    return any(fingerprint in fingerprints(version["plan"]).values() for version in versions[:-1])


def _create_unknown_outcome_question(
    spec: CapabilitySpec,
    attempt: Attempt,
    claim: Claim,
    run: int,
    reason: str,
    decision: Mapping[str, Any] = MappingProxyType({}),
) -> ApprovalRequest:
    return ApprovalRequest(
        UNKNOWN_OUTCOME,
        attempt.capability,
        f"{reason}. Its effect may have happened.",
        shown={"parameters": dict(attempt.values)},
        run=run,
        effect=claim.name,
        idempotency_key=attempt.idempotency_key,
        approvals=outcome_approvals(spec, decision),
    )


def _has_unknown_outcome(failure: Failure) -> bool:
    category = failure.metadata.get("category")
    return failure.severity is ErrorSeverity.CRITICAL and category in _UNKNOWN_CATEGORIES
