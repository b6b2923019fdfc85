"""Stage ``idempotency``: an effect is never repeated by accident.

Before a step with ``effect="once"`` starts, a record says so on disk; as soon as it ended, the
record holds its result. A process that dies in between leaves ``begun`` without an end: the outcome
is unknown, and only ``on_unknown`` or a person may decide what happens then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from langgraph.errors import GraphBubbleUp

from capgraph.approvals import ACTED_BEFORE, UNKNOWN_OUTCOME
from capgraph.base.errors import CapabilityError, CapgraphError, ErrorSeverity
from capgraph.base.plan import plan_key
from capgraph.base.ports import ApprovalRequest, Attempt, Failure
from capgraph.pipeline.authorize import recheck_approval
from capgraph.pipeline.effect_ledger import Claim, UnknownOutcome, compute_digest, encode_result
from capgraph.pipeline.finalize import SkippedStep, classify_step_failure
from capgraph.pipeline.step_execution import NextStage, StepExecution, claimed_effects
from capgraph.planning import fingerprints
from capgraph.telemetry.audit import record_now, record_soon

_UNKNOWN_CATEGORIES = frozenset({"timeout", "network"})
"""Failures after which nobody knows whether the effect happened."""
_SKIP_REASON = "Skipped: nobody knows whether its effect happened."


async def run_without_effect(job: StepExecution, attempt: Attempt, inner: NextStage) -> Any:
    """Let a step run that has no effect, as long as the turn goes on and nobody took it over.

    A part of it may be of unknown outcome all the same.

    Raises:
        PersistenceError: Another process has the thread.
        StoppedError: Somebody stopped the run.
    """
    book = job.context.ledger
    await book.raise_if_stopped(confirm=False)
    if (question := await recheck_approval(job, attempt)) is not None:
        return question
    if not book.journal.is_remote:
        await (
            book.assert_lease_held()
        )  # elsewhere, what comes of it is kept for the next who runs the turn
    try:
        return await inner(job, attempt)
    except UnknownOutcome as signal:
        return signal.question or SkippedStep(_SKIP_REASON)


async def idempotency(job: StepExecution, attempt: Attempt, inner: NextStage) -> Any:
    """Keep the record of an effect around the call.

    Returns:
        The raw result, an earlier one of the same effect, or a question.

    Raises:
        CapabilityError: The outcome of an earlier run is unknown and ``on_unknown`` is ``fail``.
        PersistenceError: The record cannot be kept, or another process has the thread.
        StoppedError: Somebody stopped the run.
    """
    spec, book = job.spec, job.context.ledger
    await book.raise_if_stopped(confirm=spec.effect == "idempotent")
    if book.journal.is_remote and job.outer is not None:
        raise CapabilityError(
            f"{spec.name!r} has an effect and is asked for inside {job.outer.spec.name!r}, which runs"
            " on another worker than its turn: a restart could not tell it from another effect.",
            fix="Plan it as a step of its own, or leave out the queue of the outer one.",
        )
    await book.wait_until_saved()
    taken = claimed_effects(
        job.view.results, [k for k in job.context.plan_keys if k != attempt.key]
    )
    plan = job.view.plan_id
    claim = await book.claim(spec, attempt, plan, taken)
    job.attempt_state.effect = claim.name
    keyed = replace(attempt, idempotency_key=book.idempotency_key(claim.name))
    if spec.effect != "once":
        return await recheck_approval(job, keyed) or await _run_idempotent(job, keyed, inner)
    status = claim.record.get("status")
    if status == "finished":
        job.attempt_state.is_replayed_effect = not claim.is_own
        job.mark_effect_done()
        return book.stored_result(claim.record)
    if status == "begun":
        instead = await _resolve_unknown(job, keyed, claim)
        if instead is not None:
            return instead
    question = await _repeat_question(job, keyed, claim, plan, taken)
    question = question or await recheck_approval(job, keyed)
    if question is not None:
        return question
    return await _run_effect(job, keyed, claim, inner)


async def _run_effect(job: StepExecution, attempt: Attempt, claim: Claim, inner: NextStage) -> Any:
    book = job.context.ledger
    run = await book.begin_effect(claim.name)
    try:
        await book.raise_if_stopped(confirm=True)
    except CapgraphError:
        await book.end_effect(claim.name, "failed")
        raise
    await book.assert_lease_held()
    try:
        result = await inner(job, attempt)
    except UnknownOutcome as signal:
        await book.end_effect(claim.name, "asking" if signal.question else "unknown")
        return signal.question or SkippedStep(_SKIP_REASON)
    except GraphBubbleUp:
        # The capability asks somebody: what stands before its question runs again.
        await book.end_effect(claim.name, "asking")
        raise
    except Exception as exc:
        if (
            job.attempt_state.body_result is not None
        ):  # only what cleans up, or wraps the call, failed
            await _record_finished(job, claim, job.attempt_state.body_result.value)
            raise
        failure = classify_step_failure(job, attempt, exc)
        if not (job.attempt_state.timed_out or _has_unknown_outcome(failure)):
            await book.end_effect(claim.name, "failed")
            raise
        if job.spec.on_unknown == "skip":
            await book.end_effect(claim.name, "unknown")
            return SkippedStep(_SKIP_REASON)
        if job.spec.on_unknown == "ask":
            return _unknown_outcome_question(
                attempt, claim, run, f"Its end is not known ({failure.message})"
            )
        await book.end_effect(claim.name, "failed")
        if job.spec.on_unknown == "fail" and job.attempt_state.timed_out:
            raise CapabilityError(
                f"{failure.message} Nobody knows whether its effect happened.",
                fix="Look at the outside system; then run it again, or set on_unknown.",
                severity=ErrorSeverity.CRITICAL,
            ) from exc
        raise
    await _record_finished(job, claim, result)
    return result


async def _record_finished(job: StepExecution, claim: Claim, result: Any) -> None:
    """Write down at once, before anybody looks at the result, that the effect happened."""
    await job.record_effect()
    await job.context.ledger.end_effect(
        claim.name, "finished", result=encode_result(result, job.attempt_state.stored_outputs)
    )


async def _run_idempotent(job: StepExecution, attempt: Attempt, inner: NextStage) -> Any:
    """Run an effect that bears being repeated; the audit knows of it all the same."""
    await record_now("effect", effect=job.attempt_state.effect, status="begun", run=attempt.number)
    await job.context.ledger.assert_lease_held()
    status = "failed"
    try:
        try:
            result = await inner(job, attempt)
        except UnknownOutcome as signal:
            result = signal.question or SkippedStep(_SKIP_REASON)
        status = "asking" if isinstance(result, ApprovalRequest) else "finished"
        return result
    finally:
        await record_soon("effect", effect=job.attempt_state.effect, status=status)


async def _resolve_unknown(job: StepExecution, attempt: Attempt, claim: Claim) -> Any:
    """Say what happens with an effect that began and has no end; ``None`` to act again."""
    run = int(claim.record.get("run", 0))
    decision = await job.context.ledger.read_outcome(claim.name, run)
    answer: Any = job.spec.on_unknown
    # A person decided about one run of the step; the next one that breaks off is asked about.
    answer = decision.get("decision") or answer
    if answer == "rerun":
        return None
    if answer == "skip":
        return SkippedStep(_SKIP_REASON)
    if answer == "done":
        job.mark_effect_done()
        outputs = [{kind: data} for kind, data in (decision.get("outputs") or {}).items()]
        await job.context.ledger.end_effect(claim.name, "finished", result=outputs)
        return outputs
    if answer == "fail":
        raise CapabilityError(
            f"The step {attempt.key!r} ({attempt.capability}) began in an earlier process and"
            " nobody knows whether its effect happened.",
            fix="Look at the outside system; then run it again, or set on_unknown.",
        )
    return _unknown_outcome_question(attempt, claim, run, "It had started when its process ended")


async def _repeat_question(
    job: StepExecution, attempt: Attempt, claim: Claim, plan_id: str, claimed_records: set[str]
) -> ApprovalRequest | None:
    """Ask before a capability acts again in a new plan of the turn, in another way."""
    spec, book = job.spec, job.context.ledger
    if spec.repeatable or not claim.is_new or job.approval:
        return None
    if not book.has_earlier_effect(
        spec, plan_id, claim.name, claimed_records
    ) or _was_in_earlier_plan(job, attempt):
        return None
    digest = compute_digest([ACTED_BEFORE, claim.name])
    if await book.approvals.is_approved(digest, attempt.key, list(job.context.plan_keys)):
        return None
    return ApprovalRequest(
        ACTED_BEFORE,
        spec.name,
        f"{spec.name!r} acted in an earlier plan of this turn already, and the new plan lets it act"
        " again with other values.",
        digest=digest,
        shown={"parameters": dict(attempt.values)},
        effect=claim.name,
        idempotency_key=attempt.idempotency_key,
    )


def _was_in_earlier_plan(job: StepExecution, attempt: Attempt) -> bool:
    """Tell whether an earlier plan of the turn held this very step, so that it is not new."""
    own = fingerprints(job.view.plan).get(plan_key(attempt.key))
    versions: list[Mapping[str, Any]] = job.view.state.get("planning_history") or []
    return any(own in fingerprints(version["plan"]).values() for version in versions[:-1])


def _unknown_outcome_question(
    attempt: Attempt, claim: Claim, run: int, reason: str
) -> ApprovalRequest:
    return ApprovalRequest(
        UNKNOWN_OUTCOME,
        attempt.capability,
        f"{reason}; its effect may have happened.",
        shown={"parameters": dict(attempt.values)},
        run=run,
        effect=claim.name,
        idempotency_key=attempt.idempotency_key,
    )


def _has_unknown_outcome(failure: Failure) -> bool:
    category = failure.metadata.get("category")
    return failure.severity is ErrorSeverity.CRITICAL and category in _UNKNOWN_CATEGORIES
