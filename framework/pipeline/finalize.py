"""Stage ``finalize``: create the ``StepRecord`` from the result or failure of an attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from langgraph.errors import GraphBubbleUp

import capgraph.telemetry as telemetry
from capgraph.approvals import RESULT
from capgraph.base.context import CapabilityContext
from capgraph.base.errors import (
    CapabilityError,
    ErrorSeverity,
    PersistenceError,
    ValidationError,
)
from capgraph.base.ports import ApprovalRequest, Attempt, Failure, StepRecord
from capgraph.configs.logger import get_logger
from capgraph.configs.streaming import has_listener
from capgraph.helpers.data_size import exceeds_bytes
from capgraph.helpers.plain_data import to_plain
from capgraph.pipeline.effect_ledger import compute_digest, large_result_error, serialize_inputs
from capgraph.pipeline.failures import (
    REFUSED_BY_GUARDS,
    classify_failure,
    create_fatal_error,
    mark_failure_permanent,
    stop_update,
)
from capgraph.pipeline.result_files import store_large_result
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
    """Reason for skipping a step, returned in place of the step's result.

    Attributes:
        reason: Reason for skipping the step.
        is_not_needed: True if the plan does not need the step.
    """

    reason: str
    is_not_needed: bool = False


async def finalize(
    execution: StepExecution, attempt: Attempt, call_next: NextStage, *, is_final: bool = True
) -> StepResult:
    """Normalize and validate an attempt's result, or classify its failure.

    Args:
        execution: State of the step execution.
        attempt: Attempt to run.
        call_next: Function that runs the inner stages.
        is_final: True if the record is final. False if middleware or a quality gate may still
            change it.

    Raises:
        FatalExecutionError: The failure was classified as FATAL. The cause is chained.
    """
    execution.begin_attempt(
        attempt.short_circuit.source if attempt.short_circuit is not None else None
    )
    record: StepRecord
    with event_context(attempt_id=_create_attempt_id(execution, attempt)):
        try:
            if attempt.short_circuit is not None:
                result = attempt.short_circuit.value
            else:
                result = execution.attempt_state.result = await call_next(execution, attempt)
            if result is STOPPED or isinstance(result, ApprovalRequest):
                return None if result is STOPPED else result
            if isinstance(result, SkippedStep):
                return create_skipped_record(execution, attempt, result)
            normalized = _normalize_result(execution, attempt, result)
            _check_size(execution, attempt, normalized)
            record = await _apply_quality_gate(execution, attempt, normalized)
        except GraphBubbleUp:
            raise
        except Exception as exc:
            record = await failed_record(execution, attempt, exc, emits=False)
        if not is_final or (
            record.error is None and not record.approval_reasons and not has_listener()
        ):
            return record
        return await _emit_record(execution, attempt, record)


async def _apply_quality_gate(
    execution: StepExecution, attempt: Attempt, normalized: NormalizedResult
) -> StepRecord:
    """Evaluate an attempt's result with the quality gate, and create the attempt's record."""
    # The gate checked a replayed result when it was created.
    if execution.spec.gate is None or attempt.is_replayed:
        return _create_success_record(execution, attempt, normalized)
    gate_result = await run_gate(execution, attempt, normalized)
    record = _create_success_record(execution, attempt, normalized)
    return replace(
        record,
        quality=gate_result.level,
        approval_reasons=(gate_result.approval_reason,) if gate_result.approval_reason else (),
    )


def _normalize_result(execution: StepExecution, attempt: Attempt, result: Any) -> NormalizedResult:
    if (
        execution.context.result_options.keeps_dictionary
        and isinstance(result, Mapping)
        and not execution.attempt_state.stored_outputs
    ):
        # Without a graph there is no schema to drop keys; the caller sees the returned dictionary.
        return NormalizedResult(dict(result), {}, None)
    types = execution.config.registry.context_types
    normalized = normalize_result(
        result,
        execution.attempt_state.stored_outputs,
        execution.spec,
        attempt.step,
        attempt.key,
        types,
        execution.config.schema.names
        if execution.context.result_options.state_keys is None
        else execution.context.result_options.state_keys,
    )
    unknown = normalized.contexts.keys() - types.keys()
    if unknown or execution.context.result_options.context_classes is not None:
        for context in find_contexts(result, execution.attempt_state.stored_outputs):
            if execution.context.result_options.context_classes is not None:
                execution.context.result_options.context_classes.setdefault(
                    context.CONTEXT_TYPE, type(context)
                )
            elif context.CONTEXT_TYPE in unknown:
                _warn_if_unregistered(execution, type(context))
    return normalized


def _check_size(execution: StepExecution, attempt: Attempt, normalized: NormalizedResult) -> None:
    limit = execution.config.limits.max_result_bytes
    # If outputs are stored in a file, this happens after all checks of their content.
    is_stored = execution.spec.large_result == "file"
    if exceeds_bytes([normalized.updates, normalized.plan] if is_stored else normalized, limit):
        raise large_result_error(f"step {attempt.key!r} ({execution.spec.name})", limit)


def _warn_if_unregistered(execution: StepExecution, context_class: type[CapabilityContext]) -> None:
    get_logger("capability", execution.spec.name).warning(
        "%s returned a %s, which is not registered: only its fields are stored, without the behavior"
        " of the class. Fix: declare provides = [%s], or register the class.",
        execution.spec.name,
        context_class.__name__,
        context_class.__name__,
    )


def _create_success_record(
    execution: StepExecution, attempt: Attempt, normalized: NormalizedResult
) -> StepRecord:
    record = _create_record(
        execution,
        attempt,
        success=True,
        contexts=normalized.contexts,
        updates=normalized.updates,
        plan=normalized.plan,
    )
    emit_attempt_started(execution, attempt)
    execution.attempt_state.contexts = record.contexts
    return record


def _create_attempt_id(execution: StepExecution, attempt: Attempt) -> str:
    return "/".join(
        part for part in (execution.view.plan_id, attempt.key, str(attempt.number)) if part
    )


async def finish_record(
    execution: StepExecution, attempt: Attempt, call_next: NextStage
) -> StepResult:
    """Revalidate a record that middleware may have changed, and request required approvals.

    Args:
        execution: State of the step execution.
        attempt: Attempt to run.
        call_next: Function that runs the stage with its middleware.
    """
    with event_context(attempt_id=_create_attempt_id(execution, attempt)):
        held_result = (
            await execution.context.ledger.held_result(attempt.key)
            if attempt.short_circuit is None
            else {}
        )
        if held_result and held_result["of"] == compute_work_digest(attempt):
            # A person is asked about this result; another attempt could return a different one.
            execution.begin_attempt(effect=held_result["effect"])
            fields = {name: held_result[name] for name in ("contexts", "quality")}
            reasons = tuple(held_result["asks"])
            outcome: StepResult = _create_record(
                execution, attempt, success=True, approval_reasons=reasons, **fields
            )
        else:
            outcome = await _finish_contexts(
                execution, attempt, await call_next(execution, attempt)
            )
        return (
            await _emit_record(execution, attempt, outcome)
            if isinstance(outcome, StepRecord)
            else outcome
        )


async def _emit_record(
    execution: StepExecution, attempt: Attempt, record: StepRecord
) -> StepResult:
    """Emit the end of an attempt and return its record, or the approval request for its result."""
    if execution.effect_done:
        await _update_ledger(execution, record)
    if not record.success:
        if record.error is not None:
            emit_attempt_failed(execution, attempt, record.error)
        return record
    if (
        record.approval_reasons
        and (question := await _request_result_approval(execution, attempt, record)) is not None
    ):
        return question
    if has_listener() and not (attempt.short_circuit and attempt.short_circuit.is_emitted):
        duration = record.execution_time
        telemetry.emit(
            telemetry.StepFinished(
                duration=duration, outputs=record.outputs, **attempt.event_fields()
            )
        )
    return record


async def _update_ledger(execution: StepExecution, record: StepRecord) -> None:
    """Replace an effect's stored result, because a guardrail may have removed data from it."""
    if record.success and record.contexts is not execution.attempt_state.contexts:
        outputs: list[Any] = [{kind: of[record.key]} for kind, of in record.contexts.items()]
        outputs += [record.updates] if record.updates else []
        outputs += [] if record.plan is None else [{PLAN_KEY: record.plan}]
        await execution.context.ledger.update_effect(
            str(execution.attempt_state.effect), result=outputs, lost=False
        )
    elif record.error is not None and record.error.metadata.get("code") == REFUSED_BY_GUARDS:
        await execution.context.ledger.update_effect(
            str(execution.attempt_state.effect), result=[], withheld=True
        )


async def _finish_contexts(
    execution: StepExecution, attempt: Attempt, record: StepResult
) -> StepResult:
    """Revalidate context data that middleware changed, and store large context data in a file."""
    if not isinstance(record, StepRecord) or not record.success:
        return record
    try:
        if record.contexts is not execution.attempt_state.contexts:
            record = replace(record, contexts=_validate_contexts(execution, record.contexts))
        return await store_large_result(execution, record)
    except (CapabilityError, ValidationError) as exc:
        return await failed_record(execution, attempt, exc, emits=False)


def _validate_contexts(
    execution: StepExecution, contexts: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    types = execution.config.registry.context_types
    return {
        kind: {key: dump_context(kind, key, value, types) for key, value in entries.items()}
        for kind, entries in contexts.items()
    }


async def _consume_approval(execution: StepExecution, attempt: Attempt, digest: str) -> bool:
    book = execution.context.ledger.approvals
    agreed = await book.is_approved(digest, attempt.key, list(execution.context.plan_keys))
    if agreed:
        await book.mark_used(digest, attempt.key)
    return agreed


async def _request_result_approval(
    execution: StepExecution, attempt: Attempt, record: StepRecord
) -> ApprovalRequest | None:
    """Create an approval request for a result, or return ``None`` if it is already approved."""
    result = {kind: entries[record.key] for kind, entries in record.contexts.items()}
    result |= {name: to_plain(value, lenient=True) for name, value in record.updates.items()}
    if record.plan is not None:
        result["plan"] = to_plain(record.plan, lenient=True)
    digest = compute_digest([RESULT, attempt.capability, result])
    if await _consume_approval(execution, attempt, digest):
        return None
    if not record.updates and record.plan is None:
        held: dict[str, Any] = {
            "contexts": record.contexts,
            "effect": execution.attempt_state.effect,
        }
        held |= {
            "of": compute_work_digest(attempt),
            "asks": list(record.approval_reasons),
            "quality": record.quality,
        }
        await execution.context.ledger.hold_result(attempt.key, held)
    shown = {"parameters": dict(attempt.values), "result": result}
    return ApprovalRequest(
        RESULT, attempt.capability, " ".join(record.approval_reasons), digest=digest, shown=shown
    )


def compute_work_digest(attempt: Attempt) -> str:
    """Compute a digest that identifies a step's work.

    The step's context key is not sufficient, because a different plan may reuse the key.
    """
    return compute_digest([attempt.capability, attempt.values, serialize_inputs(attempt.inputs)])


def emit_attempt_started(execution: StepExecution, attempt: Attempt) -> None:
    """Emit the start event of an attempt, unless it was already emitted."""
    if execution.announced_attempt >= attempt.number:
        return
    mark_announced(execution, attempt)
    if not has_listener():
        return
    name = attempt.capability
    telemetry.emit(telemetry.Status(message=f"Executing {name}...", component=name, progress=0.1))
    telemetry.emit(
        telemetry.StepStarted(task_objective=attempt.objective, **attempt.event_fields())
    )


def mark_announced(execution: StepExecution, attempt: Attempt) -> None:
    """Record that the start event of an attempt has been emitted."""
    execution.announced_attempt = attempt.number


def classify_step_failure(execution: StepExecution, attempt: Attempt, exc: Exception) -> Failure:
    """Classify an exception of the current attempt, and cache the classification."""
    cached = execution.attempt_state.failure
    if cached is not None and cached[0] is exc:
        return cached[1]
    context = {
        "capability": execution.spec.name,
        "current_step_index": attempt.index,
        "execution_time": execution.elapsed_seconds(),
        "current_state": execution.view.state,
        "effect": execution.spec.effect,
    }
    failure = classify_failure(
        execution.spec.cls,
        exc,
        context,
        capability=execution.spec.name,
        key=attempt.key,
        attempts=attempt.number,
    )
    set_failure(execution, exc, failure)
    return failure


def set_failure(execution: StepExecution, exc: BaseException, failure: Failure) -> None:
    """Store how an exception of the current attempt was classified."""
    execution.attempt_state.failure = (exc, failure)


async def failed_record(
    execution: StepExecution, attempt: Attempt, exc: Exception, *, emits: bool = True
) -> StepRecord:
    """Create the record of a failed attempt.

    Args:
        execution: State of the step execution.
        attempt: Failed attempt.
        exc: Exception of the attempt.
        emits: True to emit a failure event. False if middleware may still change the record.

    Raises:
        FatalExecutionError: The failure was classified as FATAL. The cause is chained.
        Exception: The original exception, in development mode.
    """
    stops_run = isinstance(exc, PersistenceError) and exc.stops_run
    if stops_run or execution.context.result_options.raw_errors or wants_raw_errors():
        record_refusal(exc)
        raise exc
    failure = classify_step_failure(execution, attempt, exc)
    if failure.severity is ErrorSeverity.FATAL:
        raise create_fatal_error(execution.spec.name, failure) from exc
    # An earlier process, or the run before an approval, may have reached a nested effect.
    is_retriable = failure.severity is ErrorSeverity.RETRIABLE
    if execution.effect_done or (await execution.has_nested_effect() and not is_retriable):
        failure = mark_failure_permanent(failure)
    emit_attempt_started(execution, attempt)
    if emits:
        emit_attempt_failed(execution, attempt, failure)
    return _create_record(execution, attempt, error=failure, updates=stop_update(exc))


def create_skipped_record(
    execution: StepExecution, attempt: Attempt, skipped: SkippedStep
) -> StepRecord:
    """Emit an event for a skipped step, and create the step's record."""
    fields = {"reason": skipped.reason, "not_needed": skipped.is_not_needed}
    telemetry.emit(telemetry.StepSkipped(**fields, **attempt.event_fields()))
    return _create_record(
        execution, attempt, skipped=skipped.reason, not_needed=skipped.is_not_needed
    )


def emit_attempt_failed(execution: StepExecution, attempt: Attempt, failure: Failure) -> None:
    """Emit a failure event for an attempt, and log the failure."""
    telemetry.emit(
        telemetry.StepFailed(
            duration=execution.elapsed_seconds(),
            severity=failure.severity.value,
            message=failure.message,
            category=failure.metadata.get("category"),
            **attempt.event_fields(),
        )
    )
    get_logger("capability", execution.spec.name).warning(
        "step %s failed (%s): %s",
        attempt.key,
        failure.severity.value,
        # The default message calls every error unhandled, but the router handles this one.
        failure.message.removeprefix(f"Unhandled error in {execution.spec.name}: "),
    )


def set_attempts(record: StepRecord, failures: int, *, final: bool) -> StepRecord:
    """Set the number of failed attempts in a failed record.

    Args:
        record: Record of the failed step.
        failures: Number of failed attempts.
        final: True if no attempt is left.
    """
    assert record.error is not None
    error = replace(record.error, attempts=failures, final=final)
    return replace(record, error=error, attempts=failures)


def _create_record(execution: StepExecution, attempt: Attempt, **found: Any) -> StepRecord:
    return StepRecord.from_attempt(
        attempt,
        attempts=attempt.number,
        execution_time=execution.elapsed_seconds(),
        source=execution.attempt_state.source,
        effect=execution.attempt_state.effect,
        values=attempt.values,
        **found,
    )
