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
from capgraph.base.ports import Attempt, Failure, Question, StepRecord
from capgraph.configs.streaming import emit, is_heard
from capgraph.pipeline.effect_ledger import Claim, digest_of, plain_inputs
from capgraph.pipeline.finalize import announced, failed_record, know_failure
from capgraph.pipeline.job import Inner, Job, Result, kept_effects
from capgraph.pipeline.observe import run_limit_reached
from capgraph.telemetry.metered import counted_elsewhere, current_budget
from capgraph.telemetry.sinks import current_ids

STAYS = frozenset({"messages", "capability_context_data", "capability_context_labels"})
"""Keys of the state that do not travel: they grow with the thread, and a step has its inputs."""


async def away(job: Job, attempt: Attempt, inner: Inner, queue: str) -> Result:
    """Have a try run on a worker of its queue; here, where this process is one, or there is none.

    Args:
        job: The run of the stages.
        attempt: What is asked for.
        inner: The try.
        queue: The capability's queue.
    """
    if await _runs_here(job, attempt, queue):
        here: Result = await inner(job, attempt)
        return here
    job.begin_try()
    try:
        found = await _sent(job, attempt, queue)
        return None if found is None else await _taken(job, attempt, found)
    except (GraphBubbleUp, FatalExecutionError):
        raise
    except Exception as exc:
        return await failed_record(job, attempt, exc)


async def _runs_here(job: Job, attempt: Attempt, queue: str) -> bool:
    sender, journal = job.equipment.sender, job.door.ledger.journal
    if sender is None or attempt.given is not None:
        return True
    if not sender.serves(queue):
        return False
    # Whoever had the turn before may have sent it: then it runs elsewhere, or has ended.
    is_kept = journal.durable and not journal.is_lent
    return not (is_kept and await sender.is_sent(_name(job, attempt)))


async def _taken(job: Job, attempt: Attempt, found: Mapping[str, Any]) -> Result:
    """Take over what a worker left of a try, as if the try had been made here."""
    if "fatal" in found:
        raise FatalExecutionError(found["fatal"])
    if "refused" in found:
        # Nothing has begun, and the next worker may be another one.
        told = found["refused"]
        severity = ErrorSeverity.RETRIABLE
        raise CapabilityError(told["message"], fix=told["fix"], severity=severity)
    await _done_there(job, found)
    result = _result(found)
    announced(job, attempt)
    if isinstance(result, StepRecord):
        job.begin_try(result.source, result.effect)
        if result.error is not None:
            know_failure(job, _raised(found["raised"]), result.error)
    return result


async def _sent(job: Job, attempt: Attempt, queue: str) -> Mapping[str, Any] | None:
    door, sender = job.door, job.equipment.sender
    assert sender is not None
    book, journal = door.ledger, door.ledger.journal
    if not journal.durable:
        raise CapabilityError(
            f"{attempt.capability!r} runs on the queue {queue!r}, and nothing keeps this run, so no"
            " other worker could take it.",
            fix="Run it with a thread_id, on a graph with a saver.",
        )
    if journal.is_lent:
        raise CapabilityError(
            f"{attempt.capability!r} runs on the queue {queue!r} and is asked for inside a step that"
            " runs on another worker than its turn itself.",
            fix="Plan it as a step of its own, or let the outer step run where its turn does.",
        )
    door.budget.take_attempt()
    result: Mapping[str, Any] | None = None
    try:
        claim = None
        if job.spec.effect != "none":
            await book.ready()
            others = [key for key in door.plan_keys if key != attempt.key]
            taken = kept_effects(job.view.results, others)
            claim = await book.claim(job.spec, attempt, job.view.plan_id, taken)
        try:
            result = await sender.send(
                _name(job, attempt),
                queue,
                _request(job, attempt, claim),
                tell=_teller(door.notify),
                seconds=door.control.seconds_left(),
                begins=job.begin,
                leave=door.control.draining,
                should_cancel=job.stopping,
            )
        except TimeoutError:
            raise run_limit_reached(job, attempt) from None
        finally:
            if claim is not None:
                book.forget(claim.name)
    finally:
        if result is None or "record" not in result:
            door.budget.give_back_attempt()
    return result


def _name(job: Job, attempt: Attempt) -> str:
    """Name a try: the same in whichever process its turn goes on, another for whatever is changed."""
    book = job.door.ledger
    return digest_of(
        [
            book.plain_key(attempt),
            book.visit or job.view.plan_id,
            attempt.key,
            attempt.number,
            attempt.values,
            plain_inputs(attempt.inputs),
        ]
    )


def _request(job: Job, attempt: Attempt, claim: Claim | None) -> dict[str, Any]:
    door, view, book = job.door, job.view, job.door.ledger
    budget, agreement = current_budget(), job.agreement
    return {
        "thread": book.journal.thread_id,
        "room": book.journal.room,
        "turn": view.turn_id,
        "checkpoints": [list(place) for place in book.journal.checkpoints],
        "visit": book.visit,
        "claim": None if claim is None else [claim.name, claim.new, claim.mine],
        "caller": asdict(view.caller),
        "ids": dict(current_ids()),
        "heard": is_heard(),
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
        "inputs": {label: _packed(value) for label, value in attempt.inputs.items()},
        "values": dict(attempt.values),
        "state": {name: value for name, value in view.state.items() if name not in STAYS},
        "plan_keys": list(door.plan_keys),
        "state_keys": None if door.reading.state_keys is None else sorted(door.reading.state_keys),
        "labels": dict(job.labels),
        "bounded": job.bounded,
        "agreed": None if agreement is None else agreement.question.to_state(),
        "agreed_until": agreement.until if agreement is not None else None,
        "model_calls": budget.model_calls if budget is not None else 0,
    }


def _teller(notify: Callable[[str, float | None], None] | None) -> Callable[[Any], None]:
    def tell(event: Any) -> None:
        if not (isinstance(event, Mapping) and "seq" in event):
            with suppress(RuntimeError):  # what the author sent past us goes on as it is
                get_stream_writer()(event)
        elif notify is not None and event.get("event_type") == "step_progress":
            notify(event.get("message", ""), event.get("progress"))
        else:
            emit(dict(event))

    return tell


async def _done_there(job: Job, found: Mapping[str, Any]) -> None:
    counted_elsewhere(found["model_calls"])
    job.acted_inside = job.acted_inside or found["acted_inside"]
    if found["effect_done"]:
        await job.act()


# --- plain data -------------------------------------------------------------------------------


def _packed(value: Any) -> Any:
    if isinstance(value, CapabilityContext):
        return {"type": value.CONTEXT_TYPE, "data": value.model_dump(mode="json")}
    if isinstance(value, (list, tuple)):
        return {"many": [_packed(item) for item in value]}
    return {"plain": value}


def _result(found: Mapping[str, Any]) -> StepRecord | Question:
    if "question" in found:
        return Question(**found["question"])
    record = dict(found["record"])
    if (error := record["error"]) is not None:
        record["error"] = Failure(**{**error, "severity": ErrorSeverity(error["severity"])})
    for name in ("approval_reasons", "missing"):
        record[name] = tuple(record[name])
    return StepRecord(**record)


def _raised(told: Mapping[str, Any] | None) -> Exception:
    """Return an error of the same kind as the one over there, as far as this process knows it."""
    for module, name in told["types"] if told is not None else ():
        cls = getattr(sys.modules.get(module), name, None) or _error_class(name)
        if isinstance(cls, type) and issubclass(cls, Exception):
            try:
                if issubclass(cls, CapgraphError):
                    return cls(told["message"], fix=told["fix"])  # type: ignore[index]
                return cls(told["message"])  # type: ignore[index]
            except TypeError:
                continue  # it wants other arguments; its base is told of all the same
    return CapabilityError(told["message"] if told is not None else "")


def _error_class(name: str) -> type[CapgraphError] | None:
    """Return the project's error class of that name: its module may have moved since it was sent."""
    classes: list[type[CapgraphError]] = [CapgraphError]
    for cls in classes:
        if cls.__qualname__ == name:
            return cls
        classes.extend(cls.__subclasses__())
    return None
