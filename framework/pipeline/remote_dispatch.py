"""Dispatch of an attempt to a worker in another process.

The stages from ``observe`` to ``retry`` run where the turn runs, and so does the conversion of the
record into state. The stages from ``finalize`` to ``call`` run on the worker, with its services.
The request is plain data: the validated attempt, the caller, the effect record, and the state
without :data:`NOT_TRANSFERRED`. A :class:`~capgraph.base.ports.StepDispatcher` stores it; only
names pass through the job queue.
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
from capgraph.pipeline.observe import create_deadline_error
from capgraph.pipeline.step_execution import NextStage, StepExecution, StepResult, claimed_effects
from capgraph.telemetry.event_dispatcher import current_event_ids
from capgraph.telemetry.usage_callback import add_remote_model_calls, current_turn_budget

NOT_TRANSFERRED = frozenset({"messages", "capability_context_data", "capability_context_labels"})
"""State keys that are not transferred, because they grow with the thread and a step receives its
inputs.
"""


async def dispatch_remote(
    execution: StepExecution, attempt: Attempt, call_next: NextStage, queue: str
) -> StepResult:
    """Run an attempt on a remote worker that serves the capability's queue.

    The attempt runs locally if this process serves the queue or has no dispatcher.

    Args:
        execution: State of the step execution.
        attempt: Attempt to run.
        call_next: Function that runs the stages of the attempt.
        queue: Name of the capability's queue.
    """
    if await _can_run_locally(execution, attempt, queue):
        local_result: StepResult = await call_next(execution, attempt)
        return local_result
    execution.begin_attempt()
    try:
        reply = await _dispatch(execution, attempt, queue)
        return None if reply is None else await _apply_reply(execution, attempt, reply)
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as exc:
        return await failed_record(execution, attempt, exc)


async def _can_run_locally(execution: StepExecution, attempt: Attempt, queue: str) -> bool:
    sender, journal = execution.config.dispatcher, execution.context.ledger.journal
    if sender is None or attempt.short_circuit is not None:
        return True
    if not sender.serves(queue):
        return False
    # A process that ran the turn earlier may have dispatched the attempt already.
    is_kept = journal.is_durable and not journal.is_remote
    return not (is_kept and await sender.is_dispatched(_create_dispatch_name(execution, attempt)))


async def _apply_reply(
    execution: StepExecution, attempt: Attempt, reply: Mapping[str, Any]
) -> StepResult:
    """Process a worker's reply as if the attempt had run in this process."""
    if "fatal" in reply:
        raise FatalExecutionError(reply["fatal"])
    if "refused" in reply:
        # The worker did not start the attempt, so another worker may succeed.
        refusal = reply["refused"]
        severity = ErrorSeverity.RETRIABLE
        raise CapabilityError(refusal["message"], fix=refusal["fix"], severity=severity)
    await _apply_remote_effects(execution, reply)
    result = _read_result(reply)
    mark_announced(execution, attempt)
    if isinstance(result, StepRecord):
        execution.begin_attempt(result.source, result.effect)
        if result.error is not None:
            set_failure(execution, _rebuild_error(reply["raised"]), result.error)
    return result


async def _dispatch(
    execution: StepExecution, attempt: Attempt, queue: str
) -> Mapping[str, Any] | None:
    context, sender = execution.context, execution.config.dispatcher
    assert sender is not None
    ledger, journal = context.ledger, context.ledger.journal
    if not journal.is_durable:
        raise CapabilityError(
            f"Cannot dispatch {attempt.capability!r} to the queue {queue!r} because the run is "
            "not saved.",
            fix="use a graph with a saver, and pass a thread_id.",
        )
    if journal.is_remote:
        raise CapabilityError(
            f"Cannot dispatch {attempt.capability!r} to the queue {queue!r} because its outer "
            "step already runs on a remote worker.",
            fix="plan it as a separate step, or remove the queue of the outer capability.",
        )
    context.budget.count_attempt()
    result: Mapping[str, Any] | None = None
    try:
        claim = None
        if execution.spec.effect != "none":
            await ledger.wait_until_saved()
            other_keys = [key for key in context.plan_keys if key != attempt.key]
            claimed = claimed_effects(execution.view.results, other_keys)
            claim = await ledger.claim(execution.spec, attempt, execution.view.plan_id, claimed)
        try:
            result = await sender.dispatch(
                _create_dispatch_name(execution, attempt),
                queue,
                _build_request(execution, attempt, claim),
                on_event=_create_event_forwarder(context.notify),
                timeout_seconds=context.control.seconds_left(),
                on_start=execution.mark_started,
                should_detach=context.control.is_draining,
                should_cancel=execution.should_stop,
            )
        except TimeoutError:
            raise create_deadline_error(execution, attempt) from None
        finally:
            if claim is not None:
                ledger.evict(claim.name)
    finally:
        if result is None or "record" not in result:
            context.budget.uncount_attempt()
    return result


def _create_dispatch_name(execution: StepExecution, attempt: Attempt) -> str:
    """Create a name for a dispatched attempt that is identical in every process."""
    ledger = execution.context.ledger
    return compute_digest(
        [
            ledger.step_key(attempt),
            ledger.visit_id or execution.view.plan_id,
            attempt.key,
            attempt.number,
            attempt.values,
            serialize_inputs(attempt.inputs),
        ]
    )


def _build_request(
    execution: StepExecution, attempt: Attempt, claim: Claim | None
) -> dict[str, Any]:
    context, view, ledger = execution.context, execution.view, execution.context.ledger
    budget, agreement = current_turn_budget(), execution.approval
    return {
        "thread": ledger.journal.thread_id,
        "room": ledger.journal.namespace,
        "turn": view.turn_id,
        "checkpoints": [list(checkpoint) for checkpoint in ledger.journal.checkpoints],
        "visit": ledger.visit_id,
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
        "plan_keys": list(context.plan_keys),
        "state_keys": None
        if context.result_options.state_keys is None
        else sorted(context.result_options.state_keys),
        "labels": dict(execution.labels),
        "bounded": execution.has_budget,
        "agreed": None if agreement is None else agreement.question.to_state(),
        "agreed_until": agreement.expires_at if agreement is not None else None,
        "model_calls": budget.model_calls if budget is not None else 0,
    }


def _create_event_forwarder(
    notify: Callable[[str, float | None], None] | None,
) -> Callable[[Any], None]:
    def forward(event: Any) -> None:
        if not (isinstance(event, Mapping) and "seq" in event):
            with suppress(RuntimeError):  # custom stream data is forwarded unchanged
                get_stream_writer()(event)
        elif notify is not None and event.get("event_type") == "step_progress":
            notify(event.get("message", ""), event.get("progress"))
        else:
            emit(dict(event))

    return forward


async def _apply_remote_effects(execution: StepExecution, reply: Mapping[str, Any]) -> None:
    add_remote_model_calls(reply["model_calls"])
    execution.nested_effect_done = execution.nested_effect_done or reply["acted_inside"]
    if reply["effect_done"]:
        await execution.record_effect()


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
    """Recreate a worker's error with the closest error class available in this process."""
    for module, name in description["types"] if description is not None else ():
        cls = getattr(sys.modules.get(module), name, None) or _find_error_class(name)
        if isinstance(cls, type) and issubclass(cls, Exception):
            try:
                if issubclass(cls, CapgraphError):
                    return cls(description["message"], fix=description["fix"])  # type: ignore[index]
                return cls(description["message"])  # type: ignore[index]
            except TypeError:
                continue  # the constructor needs other arguments; try the base class
    return CapabilityError(description["message"] if description is not None else "")


def _find_error_class(name: str) -> type[CapgraphError] | None:
    """Find a subclass of ``CapgraphError`` by its qualified name."""
    classes: list[type[CapgraphError]] = [CapgraphError]
    for cls in classes:
        if cls.__qualname__ == name:
            return cls
        classes.extend(cls.__subclasses__())
    return None
