"""What a step waits for before it runs: nothing is held meanwhile.

A step that has to wait leaves a :class:`Question` that nobody is asked. When it began to wait, and so
until when, is a record: a run that was killed goes on waiting for the same moment.
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
    job: StepExecution, attempt: Attempt, step: PlannedStep
) -> ApprovalRequest | dict[str, Any]:
    """Return what a step is given of its event, or the question that it leaves while it waits.

    Raises:
        ValidationError: What it waits for cannot be read; the severity is REPLANNING.
        CapabilityError: It waited for as long as it may, or would have to wait longer.
    """
    if not any(step.get(name) for name in WAIT_FIELDS):
        return {}
    ledger, now = job.context.ledger, job.config.clock.now()
    if not job.context.control.can_wait:
        raise ValidationError(
            f"The step {attempt.key!r} is to wait, and only the router of a plan lets steps wait.",
            fix="Let the plan run by itself, without Command(goto=…) or a node of one's own.",
        )
    record = await ledger.read_wait(attempt.key)
    if not record:
        record = _start_wait(job, attempt, step, now)
        await ledger.record_wait(attempt.key, record)
    sent = None
    if record["for"]:
        sent = await find_signal(ledger.journal.read, record["for"], job.view.turn_id)
    if sent is not None:
        name, entry = signal_receipt(record["for"], job.view.turn_id, sent)
        if await ledger.journal.read(name) != entry:
            await ledger.journal.write(name, entry)
    if now < record["until"] or (record["for"] and sent is None and now < record["latest"]):
        return ApprovalRequest(
            WAIT_TYPE,
            attempt.capability,
            describe_wait(_wait_details(record)),
            shown=_wait_details(record),
        )
    if record["for"] and sent is None:
        raise CapabilityError(
            f"The event {record['for']!r} did not come until {format_moment(record['latest'])}.",
            fix="Signal it in time ('capgraph signal'), or let the step wait longer: 'within', and"
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
    """Tell whether a step that waits may go on, or has waited for too long.

    Args:
        details: What it left, as :class:`Question` shows it.
        journal: Records of the thread.
        turn: The turn.
        now: The present moment.
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
    """Return when a step that waits has to be looked at again, unless its event comes."""
    until = parse_moment(details.get("until", 0), 0.0)
    return until if now < until or "latest" not in details else parse_moment(details["latest"], 0.0)


def _start_wait(
    job: StepExecution, attempt: Attempt, step: PlannedStep, now: float
) -> dict[str, Any]:
    def value(given: Any) -> Any:
        types = job.config.registry.context_types
        return resolve_references(given, job.view.contexts, types, attempt.element_values)

    try:
        until = parse_moment(value(step.get("wait_until") or 0), now)
        key, within = (value(part) for part in awaited_event(step))
        if key is not None and not is_event_key(key := str(key)):
            raise ValueError(f"{key[:80]!r} is no key of an event")
    except ValueError as exc:
        raise ValidationError(
            f"What the step {attempt.key!r} is to wait for {exc}.",
            fix="Refer to a result that holds a moment with its offset, or a key.",
            severity=ErrorSeverity.REPLANNING,
        ) from exc
    most = job.config.limits.max_wait_seconds
    latest = max(until, now) + min(parse_duration(within) or most, most)
    if until - now > most:
        raise CapabilityError(
            f"The step {attempt.key!r} would wait until {format_moment(until)}, and limits.max_wait_seconds"
            f" allows {most:g} s.",
            fix="Plan it later, or raise the limit.",
            severity=ErrorSeverity.CRITICAL,
        )
    # To the microsecond, as it is shown: whoever wakes the thread goes by that, and must not find
    # that the wait is over while the step finds that it is not.
    moments = {"until": until, "latest": latest, "since": now}
    return {"for": key or "", **{name: round(moment, 6) for name, moment in moments.items()}}


def _wait_details(record: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"since": format_moment(record["since"])}
    if record["until"] > record["since"]:
        shown["until"] = format_moment(record["until"])
    if record["for"]:
        shown |= {"for": record["for"], "latest": format_moment(record["latest"])}
    return shown
