"""A step that runs on another worker than its turn: what is inside the stage ``retry`` goes there.

Here stays what belongs to the turn: ``observe`` to ``retry``, and what the record becomes. There run
``finalize``'s checks and ``acquire`` to ``call``, with the services of that worker. What travels is plain
data: the attempt as ``validate`` left it, who asks, what names its effect, and the state but for
:data:`STAYS`. It is kept by a :class:`~capgraph.base.ports.StepDispatcher`; only names pass its engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from langgraph.config import get_stream_writer
from langgraph.errors import GraphBubbleUp

from capgraph.base.context import CapabilityContext
from capgraph.base.errors import CapabilityError, CapgraphError, ErrorSeverity, FatalExecutionError
from capgraph.base.ports import ApprovalRequest, Attempt, Failure, StepRecord
from capgraph.configs.streaming import emit, has_listener
from capgraph.pipeline.effect_ledger import Claim, compute_digest, serialize_inputs
from capgraph.pipeline.finalize import failed_record, mark_announced, set_failure
from capgraph.pipeline.observe import deadline_error
from capgraph.pipeline.step_execution import NextStage, StepExecution, StepResult, claimed_effects
from capgraph.telemetry.event_dispatcher import current_event_ids
from capgraph.telemetry.usage_callback import add_remote_model_calls, current_turn_budget

NOT_TRANSFERRED = frozenset({"messages", "capability_context_data", "capability_context_labels"})
"""Keys of the state that do not travel: they grow with the thread, and a step has its inputs."""


async def dispatch_remote(
    job: StepExecution, attempt: Attempt, inner: NextStage, queue: str
) -> StepResult:
    """Have a try run on a worker of its queue; here, where this process is one, or there is none.

    Args:
        job: The run of the stages.
        attempt: What is asked for.
        inner: The try.
        queue: The capability's queue.
    """
    if await _runs_locally(job, attempt, queue):
        here: StepResult = await inner(job, attempt)
        return here
    job.begin_attempt()
    try:
        found = await _send(job, attempt, queue)
        return None if found is None else await _apply_reply(job, attempt, found)
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as exc:
        return await failed_record(job, attempt, exc)


async def _runs_locally(job: StepExecution, attempt: Attempt, queue: str) -> bool:
    sender, journal = job.config.dispatcher, job.context.ledger.journal
    if sender is None or attempt.short_circuit is not None:
        return True
    if not sender.serves(queue):
        return False
    # Whoever had the turn before may have sent it: then it runs elsewhere, or has ended.
    is_kept = journal.is_durable and not journal.is_remote
    return not (is_kept and await sender.is_dispatched(_dispatch_name(job, attempt)))


async def _apply_reply(
    job: StepExecution, attempt: Attempt, reply: Mapping[str, Any]
) -> StepResult:
    """Take over what a worker left of a try, as if the try had been made here."""
    if "fatal" in reply:
        raise FatalExecutionError(reply["fatal"])
    if "refused" in reply:
        # Nothing has begun, and the next worker may be another one.
        told = reply["refused"]
        severity = ErrorSeverity.RETRIABLE
        raise CapabilityError(told["message"], fix=told["fix"], severity=severity)
    await _apply_remote_effects(job, reply)
    result = _read_result(reply)
    mark_announced(job, attempt)
    if isinstance(result, StepRecord):
        job.begin_attempt(result.source, result.effect)
        if result.error is not None:
            set_failure(job, _rebuild_error(reply["raised"]), result.error)
    return result


async def _send(job: StepExecution, attempt: Attempt, queue: str) -> Mapping[str, Any] | None:
    door, sender = job.context, job.config.dispatcher
    assert sender is not None
    book, journal = door.ledger, door.ledger.journal
    if not journal.is_durable:
        raise CapabilityError(
            f"{attempt.capability!r} runs on the queue {queue!r}, and nothing keeps this run, so no"
            " other worker could take it.",
            fix="Run it with a thread_id, on a graph with a saver.",
        )
    if journal.is_remote:
        raise CapabilityError(
            f"{attempt.capability!r} runs on the queue {queue!r} and is asked for inside a step that"
            " runs on another worker than its turn itself.",
            fix="Plan it as a step of its own, or let the outer step run where its turn does.",
        )
    door.budget.count_attempt()
    result: Mapping[str, Any] | None = None
    try:
        claim = None
        if job.spec.effect != "none":
            await book.wait_until_saved()
            others = [key for key in door.plan_keys if key != attempt.key]
            taken = claimed_effects(job.view.results, others)
            claim = await book.claim(job.spec, attempt, job.view.plan_id, taken)
        try:
            result = await sender.dispatch(
                _dispatch_name(job, attempt),
                queue,
                _build_request(job, attempt, claim),
                on_event=_event_forwarder(door.notify),
                timeout_seconds=door.control.seconds_left(),
                on_start=job.mark_started,
                should_detach=door.control.is_draining,
                should_cancel=job.should_stop,
            )
        except TimeoutError:
            raise deadline_error(job, attempt) from None
        finally:
            if claim is not None:
                book.evict(claim.name)
    finally:
        if result is None or "record" not in result:
            door.budget.uncount_attempt()
    return result


def _dispatch_name(job: StepExecution, attempt: Attempt) -> str:
    """Name a try: the same in whichever process its turn goes on, another for whatever is changed."""
    book = job.context.ledger
    return compute_digest(
        [
            book.step_key(attempt),
            book.visit_id or job.view.plan_id,
            attempt.key,
            attempt.number,
            attempt.values,
            serialize_inputs(attempt.inputs),
        ]
    )


def _build_request(job: StepExecution, attempt: Attempt, claim: Claim | None) -> dict[str, Any]:
    door, view, book = job.context, job.view, job.context.ledger
    budget, agreement = current_turn_budget(), job.approval
    return {
        "thread": book.journal.thread_id,
        "room": book.journal.namespace,
        "turn": view.turn_id,
        "checkpoints": [list(place) for place in book.journal.checkpoints],
        "visit": book.visit_id,
        "claim": None if claim is None else [claim.name, claim.is_new, claim.is_own],
        "caller": asdict(view.caller),
        "ids": dict(current_event_ids()),
        "heard": has_listener(),
        "attempt": {
            "capability": attempt.capability,
            "step": dict(attempt.step),
            "key": attempt.key,
            "index": attempt.index,
            "total": attempt.total,
            "number": attempt.number,
            "objective": attempt.objective,
        },
        "element": None if attempt.element is None else attempt.element._asdict(),
        "inputs": {label: _pack_input(value) for label, value in attempt.inputs.items()},
        "values": dict(attempt.values),
        "state": {name: value for name, value in view.state.items() if name not in NOT_TRANSFERRED},
        "plan_keys": list(door.plan_keys),
        "state_keys": None
        if door.result_options.state_keys is None
        else sorted(door.result_options.state_keys),
        "labels": dict(job.labels),
        "bounded": job.bounded,
        "agreed": None if agreement is None else agreement.question.to_state(),
        "agreed_until": agreement.expires_at if agreement is not None else None,
        "model_calls": budget.model_calls if budget is not None else 0,
    }


def _event_forwarder(notify: Callable[[str, float | None], None] | None) -> Callable[[Any], None]:
    def tell(event: Any) -> None:
        if not (isinstance(event, Mapping) and "seq" in event):
            with suppress(RuntimeError):  # what the author sent past us goes on as it is
                get_stream_writer()(event)
        elif notify is not None and event.get("event_type") == "step_progress":
            notify(event.get("message", ""), event.get("progress"))
        else:
            emit(dict(event))

    return tell


async def _apply_remote_effects(job: StepExecution, reply: Mapping[str, Any]) -> None:
    add_remote_model_calls(reply["model_calls"])
    job.nested_effect_done = job.nested_effect_done or reply["acted_inside"]
    if reply["effect_done"]:
        await job.record_effect()


# --- plain data -------------------------------------------------------------------------------


def _pack_input(value: Any) -> Any:
    if isinstance(value, CapabilityContext):
        return {"type": value.CONTEXT_TYPE, "data": value.model_dump(mode="json")}
    if isinstance(value, (list, tuple)):
        return {"many": [_pack_input(item) for item in value]}
    return {"plain": value}


def _read_result(reply: Mapping[str, Any]) -> StepRecord | ApprovalRequest:
    if "question" in reply:
        return ApprovalRequest(**reply["question"])
    record = dict(reply["record"])
    if (error := record["error"]) is not None:
        record["error"] = Failure(**{**error, "severity": ErrorSeverity(error["severity"])})
    for name in ("approval_reasons", "missing"):
        record[name] = tuple(record[name])
    return StepRecord(**record)


def _rebuild_error(description: Mapping[str, Any] | None) -> Exception:
    """Return an error of the same kind as the one over there, as far as this process knows it."""
    for module, name in description["types"] if description is not None else ():
        cls = getattr(sys.modules.get(module), name, None) or _error_class(name)
        if isinstance(cls, type) and issubclass(cls, Exception):
            try:
                if issubclass(cls, CapgraphError):
                    return cls(description["message"], fix=description["fix"])  # type: ignore[index]
                return cls(description["message"])  # type: ignore[index]
            except TypeError:
                continue  # it wants other arguments; its base is told of all the same
    return CapabilityError(description["message"] if description is not None else "")


def _error_class(name: str) -> type[CapgraphError] | None:
    """Return the project's error class of that name: its module may have moved since it was sent."""
    classes: list[type[CapgraphError]] = [CapgraphError]
    for cls in classes:
        if cls.__qualname__ == name:
            return cls
        classes.extend(cls.__subclasses__())
    return None
