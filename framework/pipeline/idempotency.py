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

from capgraph.approvals import ACTED, UNKNOWN
from capgraph.base.errors import CapabilityError, CapgraphError, ErrorSeverity
from capgraph.base.plan import plan_key
from capgraph.base.ports import Attempt, Failure, Question
from capgraph.pipeline.authorize import last_look
from capgraph.pipeline.effect_ledger import Claim, UnknownOutcome, digest_of, encode
from capgraph.pipeline.finalize import Skipped, read_job_failure
from capgraph.pipeline.job import Inner, Job, kept_effects
from capgraph.planning import fingerprints
from capgraph.telemetry.audit import may, must

_NO_ANSWER = frozenset({"timeout", "network"})
"""Failures after which nobody knows whether the effect happened."""
_SKIPPED = "Skipped: nobody knows whether its effect happened."


async def without_effect(job: Job, attempt: Attempt, inner: Inner) -> Any:
    """Let a step run that has no effect, as long as the turn goes on and nobody took it over.

    A part of it may be of unknown outcome all the same.

    Raises:
        PersistenceError: Another process has the thread.
        StoppedError: Somebody stopped the run.
    """
    book = job.door.ledger
    await book.go_on(confirm=False)
    if (question := await last_look(job, attempt)) is not None:
        return question
    if not book.journal.is_lent:
        await book.have()  # elsewhere, what comes of it is kept for the next who runs the turn
    try:
        return await inner(job, attempt)
    except UnknownOutcome as signal:
        return signal.question or Skipped(_SKIPPED)


async def idempotency(job: Job, attempt: Attempt, inner: Inner) -> Any:
    """Keep the record of an effect around the call.

    Returns:
        The raw result, an earlier one of the same effect, or a question.

    Raises:
        CapabilityError: The outcome of an earlier run is unknown and ``on_unknown`` is ``fail``.
        PersistenceError: The record cannot be kept, or another process has the thread.
        StoppedError: Somebody stopped the run.
    """
    spec, book = job.spec, job.door.ledger
    await book.go_on(confirm=spec.effect == "idempotent")
    if book.journal.is_lent and job.outer is not None:
        raise CapabilityError(
            f"{spec.name!r} has an effect and is asked for inside {job.outer.spec.name!r}, which runs"
            " on another worker than its turn: a restart could not tell it from another effect.",
            fix="Plan it as a step of its own, or leave out the queue of the outer one.",
        )
    await book.ready()
    taken = kept_effects(job.view.results, [k for k in job.door.plan_keys if k != attempt.key])
    plan = job.view.plan_id
    claim = await book.claim(spec, attempt, plan, taken)
    job.current.effect = claim.name
    keyed = replace(attempt, idempotency_key=book.key(claim.name))
    if spec.effect != "once":
        return await last_look(job, keyed) or await _repeatable(job, keyed, inner)
    status = claim.record.get("status")
    if status == "finished":
        job.current.is_repeated = not claim.mine
        job.happened()
        return book.result(claim.record)
    if status == "begun":
        instead = await _settled(job, keyed, claim)
        if instead is not None:
            return instead
    question = await _acted_before(job, keyed, claim, plan, taken)
    question = question or await last_look(job, keyed)
    if question is not None:
        return question
    return await _act(job, keyed, claim, inner)


async def _act(job: Job, attempt: Attempt, claim: Claim, inner: Inner) -> Any:
    book = job.door.ledger
    run = await book.begin(claim.name)
    try:
        await book.go_on(confirm=True)
    except CapgraphError:
        await book.end(claim.name, "failed")
        raise
    await book.have()
    try:
        result = await inner(job, attempt)
    except UnknownOutcome as signal:
        await book.end(claim.name, "asking" if signal.question else "unknown")
        return signal.question or Skipped(_SKIPPED)
    except GraphBubbleUp:
        # The capability asks somebody: what stands before its question runs again.
        await book.end(claim.name, "asking")
        raise
    except Exception as exc:
        if job.current.returned is not None:  # only what cleans up, or wraps the call, failed
            await _finished(job, claim, job.current.returned.value)
            raise
        failure = read_job_failure(job, attempt, exc)
        if not (job.current.cut_off or _is_unknown(failure)):
            await book.end(claim.name, "failed")
            raise
        if job.spec.on_unknown == "skip":
            await book.end(claim.name, "unknown")
            return Skipped(_SKIPPED)
        if job.spec.on_unknown == "ask":
            return _question(attempt, claim, run, f"Its end is not known ({failure.message})")
        await book.end(claim.name, "failed")
        if job.spec.on_unknown == "fail" and job.current.cut_off:
            raise CapabilityError(
                f"{failure.message} Nobody knows whether its effect happened.",
                fix="Look at the outside system; then run it again, or set on_unknown.",
                severity=ErrorSeverity.CRITICAL,
            ) from exc
        raise
    await _finished(job, claim, result)
    return result


async def _finished(job: Job, claim: Claim, result: Any) -> None:
    """Write down at once, before anybody looks at the result, that the effect happened."""
    await job.act()
    await job.door.ledger.end(claim.name, "finished", result=encode(result, job.current.stored))


async def _repeatable(job: Job, attempt: Attempt, inner: Inner) -> Any:
    """Run an effect that bears being repeated; the audit knows of it all the same."""
    await must("effect", effect=job.current.effect, status="begun", run=attempt.number)
    await job.door.ledger.have()
    status = "failed"
    try:
        try:
            result = await inner(job, attempt)
        except UnknownOutcome as signal:
            result = signal.question or Skipped(_SKIPPED)
        status = "asking" if isinstance(result, Question) else "finished"
        return result
    finally:
        await may("effect", effect=job.current.effect, status=status)


async def _settled(job: Job, attempt: Attempt, claim: Claim) -> Any:
    """Say what happens with an effect that began and has no end; ``None`` to act again."""
    run = int(claim.record.get("run", 0))
    decision = await job.door.ledger.outcome_of(claim.name, run)
    answer: Any = job.spec.on_unknown
    # A person decided about one run of the step; the next one that breaks off is asked about.
    answer = decision.get("decision") or answer
    if answer == "rerun":
        return None
    if answer == "skip":
        return Skipped(_SKIPPED)
    if answer == "done":
        job.happened()
        outputs = [{kind: data} for kind, data in (decision.get("outputs") or {}).items()]
        await job.door.ledger.end(claim.name, "finished", result=outputs)
        return outputs
    if answer == "fail":
        raise CapabilityError(
            f"The step {attempt.key!r} ({attempt.capability}) began in an earlier process and"
            " nobody knows whether its effect happened.",
            fix="Look at the outside system; then run it again, or set on_unknown.",
        )
    return _question(attempt, claim, run, "It had started when its process ended")


async def _acted_before(
    job: Job, attempt: Attempt, claim: Claim, plan: str, taken: set[str]
) -> Question | None:
    """Ask before a capability acts again in a new plan of the turn, in another way."""
    spec, book = job.spec, job.door.ledger
    if spec.repeatable or not claim.new or job.agreement:
        return None
    if not book.acted_before(spec, plan, claim.name, taken) or _was_planned(job, attempt):
        return None
    digest = digest_of([ACTED, claim.name])
    if await book.agreements.agreed(digest, attempt.key, list(job.door.plan_keys)):
        return None
    return Question(
        ACTED,
        spec.name,
        f"{spec.name!r} acted in an earlier plan of this turn already, and the new plan lets it act"
        " again with other values.",
        digest=digest,
        shown={"parameters": dict(attempt.values)},
        effect=claim.name,
        idempotency_key=attempt.idempotency_key,
    )


def _was_planned(job: Job, attempt: Attempt) -> bool:
    """Tell whether an earlier plan of the turn held this very step, so that it is not new."""
    own = fingerprints(job.view.plan).get(plan_key(attempt.key))
    versions: list[Mapping[str, Any]] = job.view.state.get("planning_history") or []
    return any(own in fingerprints(version["plan"]).values() for version in versions[:-1])


def _question(attempt: Attempt, claim: Claim, run: int, why: str) -> Question:
    return Question(
        UNKNOWN,
        attempt.capability,
        f"{why}; its effect may have happened.",
        shown={"parameters": dict(attempt.values)},
        run=run,
        effect=claim.name,
        idempotency_key=attempt.idempotency_key,
    )


def _is_unknown(failure: Failure) -> bool:
    category = failure.metadata.get("category")
    return failure.severity is ErrorSeverity.CRITICAL and category in _NO_ANSWER
