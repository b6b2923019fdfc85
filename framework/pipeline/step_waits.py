"""Waits of a step for a time or an event; a waiting step holds no resources.

A waiting step leaves an :class:`ApprovalRequest` of kind ``wait`` that no person receives. The
start of the wait is recorded, so that a run that was killed waits until the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import capgraph.telemetry as telemetry
from capgraph.base.errors import CapabilityError, ErrorSeverity, ValidationError
from capgraph.base.plan import PlannedStep
from capgraph.base.ports import ApprovalRequest, Attempt
from capgraph.pipeline.journal import Journal
from capgraph.pipeline.step_execution import StepExecution
from capgraph.planning.references import resolve_references
from capgraph.planning.waits import (
    SIGNAL,
    WAIT_FIELDS,
    WAIT_TYPE,
    awaited_event,
    describe_wait,
    format_moment,
    is_event_key,
    parse_duration,
    parse_moment,
)
from capgraph.stores.waits import find_signal, signal_receipt
from capgraph.telemetry.audit import record_later


async def check_wait(
    execution: StepExecution, attempt: Attempt, step: PlannedStep
) -> ApprovalRequest | dict[str, Any]:
    """Return the payload of the event that a step waited for, or a request to suspend.

    Raises:
        ValidationError: The wait's time or event key is invalid. The severity is REPLANNING.
        CapabilityError: The wait exceeded its time limit, or would exceed it.
    """
    if not any(step.get(name) for name in WAIT_FIELDS):
        return {}
    ledger, now = execution.context.ledger, execution.config.clock.now()
    if not execution.context.control.can_wait:
        raise ValidationError(
            f"Step {attempt.key!r} cannot wait because only a step that the router runs can wait.",
            fix="let the router run the step, without Command(goto=…) or a custom node.",
        )
    record = await ledger.read_wait(attempt.key)
    if not record:
        record = _start_wait(execution, attempt, step, now)
        await ledger.record_wait(attempt.key, record)
    sent = None
    if record["for"]:
        sent = await find_signal(ledger.journal.read, record["for"], execution.view.turn_id)
    if sent is not None:
        name, entry = signal_receipt(record["for"], execution.view.turn_id, sent)
        if await ledger.journal.read(name) != entry:
            await ledger.journal.write(name, entry)
    if now < record["until"] or (record["for"] and sent is None and now < record["latest"]):
        return ApprovalRequest(
            WAIT_TYPE,
            attempt.capability,
            describe_wait(_create_wait_details(record)),
            shown=_create_wait_details(record),
        )
    if record["for"] and sent is None:
        raise CapabilityError(
            f"Event {record['for']!r} did not arrive before {format_moment(record['latest'])}.",
            fix="signal it in time ('capgraph signal'), or increase 'within' and"
            " limits.max_wait_seconds.",
            severity=ErrorSeverity.CRITICAL,
        )
    how = "signal" if sent is not None else "time"
    telemetry.emit(
        telemetry.StepResumed(by=how, key=record["for"] or None, **attempt.event_fields())
    )
    record_later("waited", step=attempt.key, by_what=how, event=record["for"] or None)
    return {SIGNAL: sent["value"]} if sent is not None else {}


async def is_wait_over(details: Mapping[str, Any], journal: Journal, turn: str, now: float) -> bool:
    """Return True if a waiting step can continue or has exceeded its wait limit.

    Args:
        details: Details of the wait, from the step's request to suspend.
        journal: Durable records of the thread.
        turn: ID of the turn.
        now: Current time, in seconds since the epoch.
    """
    if now < parse_moment(details.get("until", 0), 0.0):
        return False
    key = details.get("for")
    return (
        key is None
        or now >= parse_moment(details["latest"], 0.0)
        or await find_signal(journal.read, key, turn) is not None
    )


def next_wake_time(details: Mapping[str, Any], now: float) -> float:
    """Return when to check a waiting step again, in case its event does not arrive."""
    until = parse_moment(details.get("until", 0), 0.0)
    return until if now < until or "latest" not in details else parse_moment(details["latest"], 0.0)


def _start_wait(
    execution: StepExecution, attempt: Attempt, step: PlannedStep, now: float
) -> dict[str, Any]:
    def value(reference: Any) -> Any:
        types = execution.config.registry.context_types
        return resolve_references(reference, execution.view.contexts, types, attempt.element_values)

    try:
        until = parse_moment(value(step.get("wait_until") or 0), now)
        key, within = (value(part) for part in awaited_event(step))
        if key is not None and not is_event_key(key := str(key)):
            raise ValueError(f"{key[:80]!r} is not an event key")
    except ValueError as exc:
        raise ValidationError(
            f"Invalid wait condition in step {attempt.key!r}: {exc}.",
            fix="use a result that contains a timestamp with a UTC offset, or an event key.",
            severity=ErrorSeverity.REPLANNING,
        ) from exc
    max_seconds = execution.config.limits.max_wait_seconds
    latest = max(until, now) + min(parse_duration(within) or max_seconds, max_seconds)
    if until - now > max_seconds:
        raise CapabilityError(
            f"Step {attempt.key!r} cannot wait until {format_moment(until)} because "
            f"limits.max_wait_seconds is {max_seconds:g} s.",
            fix="plan the step later, or raise the limit.",
            severity=ErrorSeverity.CRITICAL,
        )
    # Round to microseconds, the precision of the displayed time, so that the process that wakes the
    # thread and the step agree on the end of the wait.
    moments = {"until": until, "latest": latest, "since": now}
    return {"for": key or "", **{name: round(moment, 6) for name, moment in moments.items()}}


def _create_wait_details(record: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"since": format_moment(record["since"])}
    if record["until"] > record["since"]:
        shown["until"] = format_moment(record["until"])
    if record["for"]:
        shown |= {"for": record["for"], "latest": format_moment(record["latest"])}
    return shown
