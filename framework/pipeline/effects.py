"""Effects that are never repeated by accident.

Before a step with ``effect="once"`` starts, a record says so on disk; after it ended, the record
holds its result. A process that dies in between leaves ``started`` without an end: the outcome is
unknown, and only ``on_unknown`` or a person may decide what happens then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from framework.base.errors import CapabilityError
from framework.base.plan import ExecutionPlan, PlannedStep
from framework.pipeline.journal import Journal
from framework.planning import fingerprints

if TYPE_CHECKING:
    from framework.pipeline.step import Attempt, StepOutcome

UNKNOWN = "unknown_outcome"
_NO_ANSWER = frozenset({"timeout", "network"})
"""Failures after which nobody knows whether the effect happened."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A step began and nobody knows how it ended."""

    question: dict[str, Any]


class EffectGuard:
    """Keeps the journal of one turn's attempts and effects.

    Args:
        journal: Durable records of the thread.
        turn: Number of the turn within its thread.
    """

    def __init__(self, journal: Journal, turn: int) -> None:
        self._journal = journal
        self._turn = "/".join(part for part in (journal.room, str(turn)) if part)
        self._waits: dict[str, Any] | None = None
        self._prints: dict[str, str] | None = None
        self._lock = asyncio.Lock()

    def key(self, step: PlannedStep, plan: ExecutionPlan) -> str:
        """Return the step's idempotency key.

        It stays over retries, restarts and replays, and changes when the step's capability,
        parameters or inputs change.
        """
        return f"{self._journal.thread_id or 'thread'}/{self._record(step, plan)}"

    def _record(self, step: PlannedStep, plan: ExecutionPlan) -> str:
        if self._prints is None:
            stamp = plan.get("stamp") or {}
            self._prints = {**fingerprints(plan), **(stamp.get("fingerprints") or {})}
        return f"{self._turn}/{step['context_key']}/{self._prints[step['context_key']]}"

    async def before(
        self, attempt: Attempt, plan: ExecutionPlan, decision: Mapping[str, Any] | None
    ) -> dict[str, Any] | Unknown | None:
        """Make sure that an attempt may start, and leave word that it does.

        Returns:
            The state update of an earlier run that finished, an unknown outcome for a person to
            decide, or ``None`` to go on.

        Raises:
            CapabilityError: The outcome of an earlier run is unknown and ``on_unknown`` is ``fail``.
            PersistenceError: The record cannot be kept, or another process has the thread.
        """
        if attempt.spec.effect == "none" or not self._journal.durable:
            return None
        # What knows its keys bears being called by two; what acts once does not.
        await self._journal.ready_for_effects(confirm=attempt.spec.effect == "once")
        if attempt.spec.effect != "once":
            return None
        name = self._record(attempt.step, plan)
        record = await self._journal.read(name)
        status, run = record.get("status"), int(record.get("run", 0))
        if status == "finished":
            update: dict[str, Any] = record["update"]
            return update
        if status == "started":
            settled = _settle(attempt, decision, run, "It had started when its process ended")
            if settled is not None:
                return settled
        await self._journal.write(
            name, {"status": "started", "run": run + 1, "attempt": attempt.number}
        )
        return None

    async def after(
        self,
        attempt: Attempt,
        plan: ExecutionPlan,
        outcome: StepOutcome,
    ) -> dict[str, Any] | Unknown | None:
        """Leave word how an attempt ended.

        Returns:
            ``None``; or what takes the place of a failure after which nobody knows whether the
            effect happened.
        """
        if attempt.spec.effect != "once" or not self._journal.durable:
            return None
        name = self._record(attempt.step, plan)
        if outcome.error is None:
            await self._journal.write(name, {"status": "finished", "update": outcome.update})
            return None
        run = int((await self._journal.read(name)).get("run", 1))
        if _is_unknown(outcome.error):
            if attempt.spec.on_unknown == "skip":
                return _skipped(attempt)
            if attempt.spec.on_unknown == "ask":
                why = f"Its end is not known ({outcome.error.get('user_message')})"
                return _question(attempt, run, why)
        await self._journal.write(name, {"status": "failed", "run": run, "attempt": attempt.number})
        return None

    async def earlier_failures(self, key: str, now: float) -> tuple[int, float | None]:
        """Return how often a step failed in this turn, and how long to wait before the next try."""
        if not self._journal.durable:
            return 0, None
        async with self._lock:
            if self._waits is None:
                self._waits = await self._journal.read(f"{self._turn}/waits")
        entry = self._waits.get(key)
        if entry is None:
            return 0, None
        # A clock that was set back must not make the wait longer than it was.
        return entry["failures"], min(max(0.0, entry["until"] - now), entry["delay"])

    async def failed(self, key: str, failures: int, delay: float, now: float) -> None:
        """Leave word that a step failed and when it is tried again."""
        entry = {"failures": failures, "until": now + delay, "delay": delay}
        async with self._lock:
            self._waits = {**(self._waits or {}), key: entry}
            await self._journal.write(f"{self._turn}/waits", self._waits)


def _settle(
    attempt: Attempt, decision: Mapping[str, Any] | None, run: int, why: str
) -> dict[str, Any] | Unknown | None:
    answer: Any = attempt.spec.on_unknown
    # A person decided about one run of the step; the next one that breaks off is asked about.
    if decision is not None and decision.get("run") == run:
        answer = decision.get(UNKNOWN) or answer
    if answer == "rerun":
        return None
    if answer == "skip":
        return _skipped(attempt)
    if answer == "fail":
        raise CapabilityError(
            f"The step {attempt.key!r} ({attempt.spec.name}) began in an earlier process and"
            " nobody knows whether its effect happened.",
            fix="Look at the outside system; then run it again, or set on_unknown.",
        )
    return _question(attempt, run, why)


def _question(attempt: Attempt, run: int, why: str) -> Unknown:
    return Unknown(
        {
            "kind": UNKNOWN,
            "capability": attempt.spec.name,
            "run": run,
            "reason": f"{why}; its effect may have happened.",
            "idempotency_key": attempt.idempotency_key,
        }
    )


def _is_unknown(error: Mapping[str, Any]) -> bool:
    classification = error["classification"]
    category = (classification.get("metadata") or {}).get("category")
    return classification["severity"] == "critical" and category in _NO_ANSWER


def _skipped(attempt: Attempt) -> dict[str, Any]:
    return {
        "execution_step_results": {
            attempt.key: {
                "step_index": attempt.index,
                "capability": attempt.spec.name,
                "task_objective": attempt.objective,
                "success": False,
                "skipped": True,
                "error": "Skipped: nobody knows whether its effect happened.",
                "attempts": attempt.number,
            }
        }
    }
