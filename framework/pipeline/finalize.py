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
from capgraph.base.ports import Attempt, Failure, Question, StepRecord
from capgraph.base.values import to_plain
from capgraph.configs.logger import get_logger
from capgraph.configs.streaming import is_heard
from capgraph.pipeline.effect_ledger import digest_of, plain_inputs
from capgraph.pipeline.failures import REFUSED_BY_GUARDS, after_effect, fatal, killed, read_failure
from capgraph.pipeline.gate import examined
from capgraph.pipeline.job import STOPPED, Inner, Job, Result
from capgraph.pipeline.run_config import raw_errors_wanted
from capgraph.pipeline.sort_result import PLAN_KEY, Sorted, contexts_in, sort_result
from capgraph.state import dump_context
from capgraph.telemetry.audit import note_refusal
from capgraph.telemetry.sinks import about


class Skipped(NamedTuple):
    """In place of a result: nobody will run this step.

    Attributes:
        reason: Why.
        not_needed: Whether that is as the plan has it.
    """

    reason: str
    not_needed: bool = False


async def finalize(job: Job, attempt: Attempt, inner: Inner, *, leaves: bool = True) -> Result:
    """Sort and check what one try gave, and say what a failure means.

    Args:
        job: The run of the stages.
        attempt: The try.
        inner: What it runs.
        leaves: True if the record leaves the stage; False if a middleware or a gate looks at it.

    Raises:
        FatalExecutionError: The failure was classified FATAL; the cause is chained.
    """
    job.begin_try(attempt.given.source if attempt.given is not None else None)
    found: StepRecord
    with about(attempt_id=_name_of(job, attempt)):
        try:
            if attempt.given is not None:
                result = attempt.given.value
            else:
                result = job.current.result = await inner(job, attempt)
            if result is STOPPED or isinstance(result, Question):
                return None if result is STOPPED else result
            if isinstance(result, Skipped):
                return passed_over(job, attempt, result)
            found = await _examined(job, attempt, _sorted(job, attempt, result))
        except GraphBubbleUp:
            raise
        except Exception as exc:
            found = await failed_record(job, attempt, exc, tell=False)
        if not leaves or (found.error is None and not found.approval_reasons and not is_heard()):
            return found
        return await _left(job, attempt, found)


async def _examined(job: Job, attempt: Attempt, found: Sorted) -> StepRecord:
    """Return the record of a try that succeeded, as good as the capability's gate wants it."""
    # What a replay hands back was looked at when it was made.
    if job.spec.gate is None or attempt.replayed:
        return _succeeded(job, attempt, found)
    seen = await examined(job, attempt, found)
    record = _succeeded(job, attempt, found)
    return replace(record, quality=seen.level, approval_reasons=(seen.ask,) if seen.ask else ())


def _sorted(job: Job, attempt: Attempt, result: Any) -> Sorted:
    if job.door.reading.unsorted and isinstance(result, Mapping) and not job.current.stored:
        # No schema could drop a key here: a unit test looks at what was returned.
        return Sorted(dict(result), {}, None)
    types = job.equipment.registry.context_types
    found = sort_result(
        result,
        job.current.stored,
        job.spec,
        attempt.step,
        attempt.key,
        types,
        job.equipment.schema.names
        if job.door.reading.state_keys is None
        else job.door.reading.state_keys,
    )
    unknown = found.contexts.keys() - types.keys()
    if unknown or job.door.reading.types is not None:
        for context in contexts_in(result, job.current.stored):
            if job.door.reading.types is not None:
                job.door.reading.types.setdefault(context.CONTEXT_TYPE, type(context))
            elif context.CONTEXT_TYPE in unknown:
                _tell_unknown(job, type(context))
    return found


def _tell_unknown(job: Job, kind: type[CapabilityContext]) -> None:
    get_logger("capability", job.spec.name).warning(
        "%s gave a %s, a class that the registry does not know: only its fields are kept, and what it"
        " says of itself is not used. Write provides = [%s], or register the class.",
        job.spec.name,
        kind.__name__,
        kind.__name__,
    )


def _succeeded(job: Job, attempt: Attempt, found: Sorted) -> StepRecord:
    record = _record(
        job,
        attempt,
        success=True,
        contexts=found.contexts,
        updates=found.updates,
        plan=found.plan,
    )
    announce(job, attempt)
    job.current.contexts = record.contexts
    return record


def _name_of(job: Job, attempt: Attempt) -> str:
    return "/".join(part for part in (job.view.plan_id, attempt.key, str(attempt.number)) if part)


async def finished(job: Job, attempt: Attempt, inner: Inner) -> Result:
    """Let a result out of the stage: valid whatever changed it, and agreed to where that is asked.

    Args:
        job: The run of the stages.
        attempt: The try.
        inner: The stage, with the middlewares around it.
    """
    with about(attempt_id=_name_of(job, attempt)):
        held = await job.door.ledger.held(attempt.key) if attempt.given is None else {}
        if held and held["of"] == work_of(attempt):
            # A person is asked about this very result; another try would give another one.
            job.begin_try(effect=held["effect"])
            kept = {name: held[name] for name in ("contexts", "quality")}
            asks = tuple(held["asks"])
            found: Result = _record(job, attempt, success=True, approval_reasons=asks, **kept)
        else:
            found = await _as_it_leaves(job, attempt, await inner(job, attempt))
        return await _left(job, attempt, found) if isinstance(found, StepRecord) else found


async def _left(job: Job, attempt: Attempt, found: StepRecord) -> Result:
    """Return a record that leaves the stage, or the question about it, and say how the try ended."""
    if job.effect_done:
        await _kept_as_it_leaves(job, found)
    if not found.success:
        if found.error is not None:
            tell_failed(job, attempt, found.error)
        return found
    if found.approval_reasons and (question := await _asked(job, attempt, found)) is not None:
        return question
    if is_heard() and not (attempt.given and attempt.given.told):
        duration = found.execution_time
        telemetry.emit(
            telemetry.StepFinished(duration=duration, outputs=found.outputs, **attempt.event())
        )
    return found


async def _kept_as_it_leaves(job: Job, found: StepRecord) -> None:
    """Have the ledger hold what came out: what a guard took out of a result does not lie there."""
    if found.success and found.contexts is not job.current.contexts:
        gave: list[Any] = [{kind: of[found.key]} for kind, of in found.contexts.items()]
        gave += [found.updates] if found.updates else []
        gave += [] if found.plan is None else [{PLAN_KEY: found.plan}]
        await job.door.ledger.amend(str(job.current.effect), result=gave)
    elif found.error is not None and found.error.metadata.get("code") == REFUSED_BY_GUARDS:
        await job.door.ledger.amend(str(job.current.effect), result=[], withheld=True)


async def _as_it_leaves(job: Job, attempt: Attempt, found: Result) -> Result:
    """Check what stands around the stage made of a record."""
    if (
        isinstance(found, StepRecord)
        and found.success
        and found.contexts is not job.current.contexts
    ):
        try:
            return replace(found, contexts=_valid(job, found.contexts))
        except ValidationError as exc:
            return await failed_record(job, attempt, exc, tell=False)
    return found


def _valid(job: Job, contexts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    types = job.equipment.registry.context_types
    return {
        kind: {key: dump_context(kind, key, value, types) for key, value in entries.items()}
        for kind, entries in contexts.items()
    }


async def _agreed(job: Job, attempt: Attempt, digest: str) -> bool:
    book = job.door.ledger.agreements
    agreed = await book.agreed(digest, attempt.key, list(job.door.plan_keys))
    if agreed:
        await book.use(digest, attempt.key)
    return agreed


async def _asked(job: Job, attempt: Attempt, record: StepRecord) -> Question | None:
    """Return the question about a result; ``None`` when a person agreed to it."""
    gave = {kind: entries[record.key] for kind, entries in record.contexts.items()}
    gave |= {name: to_plain(value, lenient=True) for name, value in record.updates.items()}
    if record.plan is not None:
        gave["plan"] = to_plain(record.plan, lenient=True)
    digest = digest_of([RESULT, attempt.capability, gave])
    if await _agreed(job, attempt, digest):
        return None
    if not record.updates and record.plan is None:
        kept: dict[str, Any] = {"contexts": record.contexts, "effect": job.current.effect}
        kept |= {
            "of": work_of(attempt),
            "asks": list(record.approval_reasons),
            "quality": record.quality,
        }
        await job.door.ledger.hold(attempt.key, kept)
    shown = {"parameters": dict(attempt.values), "result": gave}
    return Question(
        RESULT, attempt.capability, " ".join(record.approval_reasons), digest=digest, shown=shown
    )


def work_of(attempt: Attempt) -> str:
    """Name what a step does: another plan may have another step under its key."""
    return digest_of([attempt.capability, attempt.values, plain_inputs(attempt.inputs)])


def announce(job: Job, attempt: Attempt) -> None:
    """Say once that a try begins."""
    if job.announced >= attempt.number:
        return
    announced(job, attempt)
    if not is_heard():
        return
    name = attempt.capability
    telemetry.emit(telemetry.Status(message=f"Executing {name}...", component=name, progress=0.1))
    telemetry.emit(telemetry.StepStarted(task_objective=attempt.objective, **attempt.event()))


def announced(job: Job, attempt: Attempt) -> None:
    """Remember that an event announced a try."""
    job.announced = attempt.number


def read_job_failure(job: Job, attempt: Attempt, exc: Exception) -> Failure:
    """Say what an exception of a try means; asked again, it gives the same answer."""
    known = job.current.failure
    if known is not None and known[0] is exc:
        return known[1]
    context = {
        "capability": job.spec.name,
        "current_step_index": attempt.index,
        "execution_time": job.seconds(),
        "current_state": job.view.state,
        "effect": job.spec.effect,
    }
    failure = read_failure(
        job.spec.cls,
        exc,
        context,
        capability=job.spec.name,
        key=attempt.key,
        attempts=attempt.number,
    )
    know_failure(job, exc, failure)
    return failure


def know_failure(job: Job, exc: BaseException, failure: Failure) -> None:
    """Remember the classification of an exception of the present try."""
    job.current.failure = (exc, failure)


async def failed_record(
    job: Job, attempt: Attempt, exc: Exception, *, tell: bool = True
) -> StepRecord:
    """Return the record of a try that failed.

    Args:
        job: The run of the stages.
        attempt: The try.
        exc: The exception.
        tell: True if the failure is final for the try; False if a middleware may still change it.

    Raises:
        FatalExecutionError: The failure was classified FATAL; the cause is chained.
        Exception: The original one, where development mode wants it.
    """
    ends_the_run = isinstance(exc, PersistenceError) and exc.ends_the_run
    if ends_the_run or job.door.reading.raw_errors or raw_errors_wanted():
        note_refusal(exc)
        raise exc
    failure = read_job_failure(job, attempt, exc)
    if failure.severity is ErrorSeverity.FATAL:
        raise fatal(job.spec.name, failure) from exc
    # An earlier process, or the run that asked a person, may have come as far as acting inside.
    again = failure.severity is ErrorSeverity.RETRIABLE
    if job.effect_done or (await job.has_acted_inside() and not again):
        failure = after_effect(failure)
    announce(job, attempt)
    if tell:
        tell_failed(job, attempt, failure)
    return _record(job, attempt, error=failure, updates=killed(exc))


def passed_over(job: Job, attempt: Attempt, found: Skipped) -> StepRecord:
    """Return the record of a step that nobody will run, and say so."""
    more = {"reason": found.reason, "not_needed": found.not_needed}
    telemetry.emit(telemetry.StepSkipped(**more, **attempt.event()))
    return _record(job, attempt, skipped=found.reason, not_needed=found.not_needed)


def tell_failed(job: Job, attempt: Attempt, failure: Failure) -> None:
    """Say that a try failed, in the stream and in the log."""
    telemetry.emit(
        telemetry.StepFailed(
            duration=job.seconds(),
            severity=failure.severity.value,
            message=failure.message,
            category=failure.metadata.get("category"),
            **attempt.event(),
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


def _record(job: Job, attempt: Attempt, **found: Any) -> StepRecord:
    return StepRecord.of(
        attempt,
        attempts=attempt.number,
        execution_time=job.seconds(),
        source=job.current.source,
        effect=job.current.effect,
        values=attempt.values,
        **found,
    )
