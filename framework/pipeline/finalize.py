"""Stage ``finalize``: the only maker of a ``StepRecord``, out of whatever came from inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from langgraph.errors import GraphBubbleUp

import capgraph.telemetry as telemetry
from capgraph.approvals import RESULT
from capgraph.base.context import CapabilityContext
from capgraph.base.errors import ErrorSeverity, PersistenceError, ValidationError
from capgraph.base.ports import ApprovalRequest, Attempt, Failure, StepRecord
from capgraph.configs.logger import get_logger
from capgraph.configs.streaming import has_listener
from capgraph.helpers.plain_data import to_plain
from capgraph.pipeline.effect_ledger import compute_digest, serialize_inputs
from capgraph.pipeline.failures import (
    REFUSED_BY_GUARDS,
    classify_failure,
    fatal_error,
    stop_update,
    with_effect_done,
)
from capgraph.pipeline.result_gate import run_gate
from capgraph.pipeline.result_normalization import (
    PLAN_KEY,
    NormalizedResult,
    find_contexts,
    normalize_result,
)
from capgraph.pipeline.run_config import wants_raw_errors
from capgraph.pipeline.step_execution import STOPPED, NextStage, StepExecution, StepResult
from capgraph.state import dump_context
from capgraph.telemetry.audit import record_refusal
from capgraph.telemetry.event_dispatcher import event_context


class SkippedStep(NamedTuple):
    """In place of a result: nobody will run this step.

    Attributes:
        reason: Why.
        is_not_needed: Whether that is as the plan has it.
    """

    reason: str
    is_not_needed: bool = False


async def finalize(
    job: StepExecution, attempt: Attempt, inner: NextStage, *, leaves: bool = True
) -> StepResult:
    """Sort and check what one try gave, and say what a failure means.

    Args:
        job: The run of the stages.
        attempt: The try.
        inner: What it runs.
        leaves: True if the record leaves the stage; False if a middleware or a gate looks at it.

    Raises:
        FatalExecutionError: The failure was classified FATAL; the cause is chained.
    """
    job.begin_attempt(attempt.short_circuit.source if attempt.short_circuit is not None else None)
    found: StepRecord
    with event_context(attempt_id=_attempt_id(job, attempt)):
        try:
            if attempt.short_circuit is not None:
                result = attempt.short_circuit.value
            else:
                result = job.attempt_state.result = await inner(job, attempt)
            if result is STOPPED or isinstance(result, ApprovalRequest):
                return None if result is STOPPED else result
            if isinstance(result, SkippedStep):
                return skipped_record(job, attempt, result)
            found = await _gated_record(job, attempt, _normalize(job, attempt, result))
        except GraphBubbleUp:
            raise
        except Exception as exc:
            found = await failed_record(job, attempt, exc, emits=False)
        if not leaves or (
            found.error is None and not found.approval_reasons and not has_listener()
        ):
            return found
        return await _emit_record(job, attempt, found)


async def _gated_record(
    job: StepExecution, attempt: Attempt, found: NormalizedResult
) -> StepRecord:
    """Return the record of a try that succeeded, as good as the capability's gate wants it."""
    # What a replay hands back was looked at when it was made.
    if job.spec.gate is None or attempt.is_replayed:
        return _succeeded_record(job, attempt, found)
    seen = await run_gate(job, attempt, found)
    record = _succeeded_record(job, attempt, found)
    return replace(
        record,
        quality=seen.level,
        approval_reasons=(seen.approval_reason,) if seen.approval_reason else (),
    )


def _normalize(job: StepExecution, attempt: Attempt, result: Any) -> NormalizedResult:
    if (
        job.context.result_options.keeps_dictionary
        and isinstance(result, Mapping)
        and not job.attempt_state.stored_outputs
    ):
        # No schema could drop a key here: a unit test looks at what was returned.
        return NormalizedResult(dict(result), {}, None)
    types = job.config.registry.context_types
    found = normalize_result(
        result,
        job.attempt_state.stored_outputs,
        job.spec,
        attempt.step,
        attempt.key,
        types,
        job.config.schema.names
        if job.context.result_options.state_keys is None
        else job.context.result_options.state_keys,
    )
    unknown = found.contexts.keys() - types.keys()
    if unknown or job.context.result_options.context_classes is not None:
        for context in find_contexts(result, job.attempt_state.stored_outputs):
            if job.context.result_options.context_classes is not None:
                job.context.result_options.context_classes.setdefault(
                    context.CONTEXT_TYPE, type(context)
                )
            elif context.CONTEXT_TYPE in unknown:
                _warn_unregistered(job, type(context))
    return found


def _warn_unregistered(job: StepExecution, context_class: type[CapabilityContext]) -> None:
    get_logger("capability", job.spec.name).warning(
        "%s gave a %s, a class that the registry does not know: only its fields are kept, and what it"
        " says of itself is not used. Write provides = [%s], or register the class.",
        job.spec.name,
        context_class.__name__,
        context_class.__name__,
    )


def _succeeded_record(job: StepExecution, attempt: Attempt, found: NormalizedResult) -> StepRecord:
    record = _record(
        job,
        attempt,
        success=True,
        contexts=found.contexts,
        updates=found.updates,
        plan=found.plan,
    )
    emit_attempt_started(job, attempt)
    job.attempt_state.contexts = record.contexts
    return record


def _attempt_id(job: StepExecution, attempt: Attempt) -> str:
    return "/".join(part for part in (job.view.plan_id, attempt.key, str(attempt.number)) if part)


async def finish_record(job: StepExecution, attempt: Attempt, inner: NextStage) -> StepResult:
    """Let a result out of the stage: valid whatever changed it, and agreed to where that is asked.

    Args:
        job: The run of the stages.
        attempt: The try.
        inner: The stage, with the middlewares around it.
    """
    with event_context(attempt_id=_attempt_id(job, attempt)):
        held = (
            await job.context.ledger.held_result(attempt.key)
            if attempt.short_circuit is None
            else {}
        )
        if held and held["of"] == work_digest(attempt):
            # A person is asked about this very result; another try would give another one.
            job.begin_attempt(effect=held["effect"])
            kept = {name: held[name] for name in ("contexts", "quality")}
            asks = tuple(held["asks"])
            found: StepResult = _record(job, attempt, success=True, approval_reasons=asks, **kept)
        else:
            found = await _revalidated(job, attempt, await inner(job, attempt))
        return await _emit_record(job, attempt, found) if isinstance(found, StepRecord) else found


async def _emit_record(job: StepExecution, attempt: Attempt, found: StepRecord) -> StepResult:
    """Return a record that leaves the stage, or the question about it, and say how the try ended."""
    if job.effect_done:
        await _update_ledger(job, found)
    if not found.success:
        if found.error is not None:
            emit_attempt_failed(job, attempt, found.error)
        return found
    if (
        found.approval_reasons
        and (question := await _result_question(job, attempt, found)) is not None
    ):
        return question
    if has_listener() and not (attempt.short_circuit and attempt.short_circuit.is_emitted):
        duration = found.execution_time
        telemetry.emit(
            telemetry.StepFinished(
                duration=duration, outputs=found.outputs, **attempt.event_fields()
            )
        )
    return found


async def _update_ledger(job: StepExecution, found: StepRecord) -> None:
    """Have the ledger hold what came out: what a guard took out of a result does not lie there."""
    if found.success and found.contexts is not job.attempt_state.contexts:
        gave: list[Any] = [{kind: of[found.key]} for kind, of in found.contexts.items()]
        gave += [found.updates] if found.updates else []
        gave += [] if found.plan is None else [{PLAN_KEY: found.plan}]
        await job.context.ledger.update_effect(str(job.attempt_state.effect), result=gave)
    elif found.error is not None and found.error.metadata.get("code") == REFUSED_BY_GUARDS:
        await job.context.ledger.update_effect(
            str(job.attempt_state.effect), result=[], withheld=True
        )


async def _revalidated(job: StepExecution, attempt: Attempt, found: StepResult) -> StepResult:
    """Check what stands around the stage made of a record."""
    if (
        isinstance(found, StepRecord)
        and found.success
        and found.contexts is not job.attempt_state.contexts
    ):
        try:
            return replace(found, contexts=_validate_contexts(job, found.contexts))
        except ValidationError as exc:
            return await failed_record(job, attempt, exc, emits=False)
    return found


def _validate_contexts(
    job: StepExecution, contexts: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    types = job.config.registry.context_types
    return {
        kind: {key: dump_context(kind, key, value, types) for key, value in entries.items()}
        for kind, entries in contexts.items()
    }


async def _use_approval(job: StepExecution, attempt: Attempt, digest: str) -> bool:
    book = job.context.ledger.approvals
    agreed = await book.is_approved(digest, attempt.key, list(job.context.plan_keys))
    if agreed:
        await book.mark_used(digest, attempt.key)
    return agreed


async def _result_question(
    job: StepExecution, attempt: Attempt, record: StepRecord
) -> ApprovalRequest | None:
    """Return the question about a result; ``None`` when a person agreed to it."""
    gave = {kind: entries[record.key] for kind, entries in record.contexts.items()}
    gave |= {name: to_plain(value, lenient=True) for name, value in record.updates.items()}
    if record.plan is not None:
        gave["plan"] = to_plain(record.plan, lenient=True)
    digest = compute_digest([RESULT, attempt.capability, gave])
    if await _use_approval(job, attempt, digest):
        return None
    if not record.updates and record.plan is None:
        kept: dict[str, Any] = {"contexts": record.contexts, "effect": job.attempt_state.effect}
        kept |= {
            "of": work_digest(attempt),
            "asks": list(record.approval_reasons),
            "quality": record.quality,
        }
        await job.context.ledger.hold_result(attempt.key, kept)
    shown = {"parameters": dict(attempt.values), "result": gave}
    return ApprovalRequest(
        RESULT, attempt.capability, " ".join(record.approval_reasons), digest=digest, shown=shown
    )


def work_digest(attempt: Attempt) -> str:
    """Name what a step does: another plan may have another step under its key."""
    return compute_digest([attempt.capability, attempt.values, serialize_inputs(attempt.inputs)])


def emit_attempt_started(job: StepExecution, attempt: Attempt) -> None:
    """Say once that a try begins."""
    if job.announced_attempt >= attempt.number:
        return
    mark_announced(job, attempt)
    if not has_listener():
        return
    name = attempt.capability
    telemetry.emit(telemetry.Status(message=f"Executing {name}...", component=name, progress=0.1))
    telemetry.emit(
        telemetry.StepStarted(task_objective=attempt.objective, **attempt.event_fields())
    )


def mark_announced(job: StepExecution, attempt: Attempt) -> None:
    """Remember that an event announced a try."""
    job.announced_attempt = attempt.number


def classify_step_failure(job: StepExecution, attempt: Attempt, exc: Exception) -> Failure:
    """Say what an exception of a try means; asked again, it gives the same answer."""
    known = job.attempt_state.failure
    if known is not None and known[0] is exc:
        return known[1]
    context = {
        "capability": job.spec.name,
        "current_step_index": attempt.index,
        "execution_time": job.elapsed_seconds(),
        "current_state": job.view.state,
        "effect": job.spec.effect,
    }
    failure = classify_failure(
        job.spec.cls,
        exc,
        context,
        capability=job.spec.name,
        key=attempt.key,
        attempts=attempt.number,
    )
    set_failure(job, exc, failure)
    return failure


def set_failure(job: StepExecution, exc: BaseException, failure: Failure) -> None:
    """Remember the classification of an exception of the present try."""
    job.attempt_state.failure = (exc, failure)


async def failed_record(
    job: StepExecution, attempt: Attempt, exc: Exception, *, emits: bool = True
) -> StepRecord:
    """Return the record of a try that failed.

    Args:
        job: The run of the stages.
        attempt: The try.
        exc: The exception.
        emits: True if the failure is final for the try; False if a middleware may still change it.

    Raises:
        FatalExecutionError: The failure was classified FATAL; the cause is chained.
        Exception: The original one, where development mode wants it.
    """
    stops_run = isinstance(exc, PersistenceError) and exc.stops_run
    if stops_run or job.context.result_options.raw_errors or wants_raw_errors():
        record_refusal(exc)
        raise exc
    failure = classify_step_failure(job, attempt, exc)
    if failure.severity is ErrorSeverity.FATAL:
        raise fatal_error(job.spec.name, failure) from exc
    # An earlier process, or the run that asked a person, may have come as far as acting inside.
    again = failure.severity is ErrorSeverity.RETRIABLE
    if job.effect_done or (await job.has_nested_effect() and not again):
        failure = with_effect_done(failure)
    emit_attempt_started(job, attempt)
    if emits:
        emit_attempt_failed(job, attempt, failure)
    return _record(job, attempt, error=failure, updates=stop_update(exc))


def skipped_record(job: StepExecution, attempt: Attempt, skipped: SkippedStep) -> StepRecord:
    """Return the record of a step that nobody will run, and say so."""
    more = {"reason": skipped.reason, "not_needed": skipped.is_not_needed}
    telemetry.emit(telemetry.StepSkipped(**more, **attempt.event_fields()))
    return _record(job, attempt, skipped=skipped.reason, not_needed=skipped.is_not_needed)


def emit_attempt_failed(job: StepExecution, attempt: Attempt, failure: Failure) -> None:
    """Say that a try failed, in the stream and in the log."""
    telemetry.emit(
        telemetry.StepFailed(
            duration=job.elapsed_seconds(),
            severity=failure.severity.value,
            message=failure.message,
            category=failure.metadata.get("category"),
            **attempt.event_fields(),
        )
    )
    get_logger("capability", job.spec.name).warning(
        "step %s failed (%s): %s",
        attempt.key,
        failure.severity.value,
        # The start of the default message; a failure that the router handles is no such thing.
        failure.message.removeprefix(f"Unhandled error in {job.spec.name}: "),
    )


def with_attempts(record: StepRecord, failures: int, *, final: bool) -> StepRecord:
    """Return a failed record that says how often the step was tried."""
    assert record.error is not None
    error = replace(record.error, attempts=failures, final=final)
    return replace(record, error=error, attempts=failures)


def _record(job: StepExecution, attempt: Attempt, **found: Any) -> StepRecord:
    return StepRecord.from_attempt(
        attempt,
        attempts=attempt.number,
        execution_time=job.elapsed_seconds(),
        source=job.attempt_state.source,
        effect=job.attempt_state.effect,
        values=attempt.values,
        **found,
    )
