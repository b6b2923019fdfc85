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
from capgraph.base.ports import Attempt, Question
from capgraph.pipeline.job import Job
from capgraph.pipeline.journal import Journal
from capgraph.planning.references import resolve_references
from capgraph.planning.waits import (
    SIGNAL,
    WAIT,
    WAITS,
    event_of,
    is_event,
    iso,
    moment_of,
    seconds_of,
    told_wait,
)
from capgraph.stores.waits import signal_for, taken
from capgraph.telemetry.audit import note


async def waited(job: Job, attempt: Attempt, step: PlannedStep) -> Question | dict[str, Any]:
    """Return what a step is given of its event, or the question that it leaves while it waits.

    Raises:
        ValidationError: What it waits for cannot be read; the severity is REPLANNING.
        CapabilityError: It waited for as long as it may, or would have to wait longer.
    """
    if not any(step.get(name) for name in WAITS):
        return {}
    ledger, now = job.door.ledger, job.equipment.clock.now()
    if not job.door.control.may_wait:
        raise ValidationError(
            f"The step {attempt.key!r} is to wait, and only the router of a plan lets steps wait.",
            fix="Let the plan run by itself, without Command(goto=…) or a node of one's own.",
        )
    record = await ledger.wait_begun(attempt.key)
    if not record:
        record = _begun(job, attempt, step, now)
        await ledger.begin_wait(attempt.key, record)
    sent = None
    if record["for"]:
        sent = await signal_for(ledger.journal.read, record["for"], job.view.turn_id)
    if sent is not None:
        name, entry = taken(record["for"], job.view.turn_id, sent)
        if await ledger.journal.read(name) != entry:
            await ledger.journal.write(name, entry)
    if now < record["until"] or (record["for"] and sent is None and now < record["latest"]):
        return Question(WAIT, attempt.capability, told_wait(_shown(record)), shown=_shown(record))
    if record["for"] and sent is None:
        raise CapabilityError(
            f"The event {record['for']!r} did not come until {iso(record['latest'])}.",
            fix="Signal it in time ('capgraph signal'), or let the step wait longer: 'within', and"
            " limits.max_wait_seconds.",
            severity=ErrorSeverity.CRITICAL,
        )
    how = "signal" if sent is not None else "time"
    telemetry.emit(telemetry.StepResumed(by=how, key=record["for"] or None, **attempt.event()))
    note("waited", step=attempt.key, by_what=how, event=record["for"] or None)
    return {SIGNAL: sent["value"]} if sent is not None else {}


async def over(shown: Mapping[str, Any], journal: Journal, turn: str, now: float) -> bool:
    """Tell whether a step that waits may go on, or has waited for too long.

    Args:
        shown: What it left, as :class:`Question` shows it.
        journal: Records of the thread.
        turn: The turn.
        now: The present moment.
    """
    if now < moment_of(shown.get("until", 0), 0.0):
        return False
    key = shown.get("for")
    return (
        key is None
        or now >= moment_of(shown["latest"], 0.0)
        or await signal_for(journal.read, key, turn) is not None
    )


def wake_at(shown: Mapping[str, Any], now: float) -> float:
    """Return when a step that waits has to be looked at again, unless its event comes."""
    until = moment_of(shown.get("until", 0), 0.0)
    return until if now < until or "latest" not in shown else moment_of(shown["latest"], 0.0)


def _begun(job: Job, attempt: Attempt, step: PlannedStep, now: float) -> dict[str, Any]:
    def value(given: Any) -> Any:
        types = job.equipment.registry.context_types
        return resolve_references(given, job.view.contexts, types, attempt.own)

    try:
        until = moment_of(value(step.get("wait_until") or 0), now)
        key, within = (value(part) for part in event_of(step))
        if key is not None and not is_event(key := str(key)):
            raise ValueError(f"{key[:80]!r} is no key of an event")
    except ValueError as exc:
        raise ValidationError(
            f"What the step {attempt.key!r} is to wait for {exc}.",
            fix="Refer to a result that holds a moment with its offset, or a key.",
            severity=ErrorSeverity.REPLANNING,
        ) from exc
    most = job.equipment.limits.max_wait_seconds
    latest = max(until, now) + min(seconds_of(within) or most, most)
    if until - now > most:
        raise CapabilityError(
            f"The step {attempt.key!r} would wait until {iso(until)}, and limits.max_wait_seconds"
            f" allows {most:g} s.",
            fix="Plan it later, or raise the limit.",
            severity=ErrorSeverity.CRITICAL,
        )
    # To the microsecond, as it is shown: whoever wakes the thread goes by that, and must not find
    # that the wait is over while the step finds that it is not.
    moments = {"until": until, "latest": latest, "since": now}
    return {"for": key or "", **{name: round(moment, 6) for name, moment in moments.items()}}


def _shown(record: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"since": iso(record["since"])}
    if record["until"] > record["since"]:
        shown["until"] = iso(record["until"])
    if record["for"]:
        shown |= {"for": record["for"], "latest": iso(record["latest"])}
    return shown
