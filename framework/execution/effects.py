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
from framework.execution.journal import Journal
from framework.planning import fingerprints

if TYPE_CHECKING:
    from framework.execution.step import Attempt, StepOutcome


@dataclass(frozen=True, slots=True)
class Unknown:
    """A step began in an earlier process and nobody knows how it ended."""

    question: dict[str, Any]


class EffectGuard:
    """Keeps the journal of one turn's attempts and effects.

    Args:
        journal: Durable records of the thread.
        turn: Identifies the turn within all threads, such as ``thread/3``.
    """

    def __init__(self, journal: Journal, turn: str) -> None:
        self._journal = journal
        self._turn = turn
        self._waits: dict[str, Any] | None = None
        self._prints: dict[str, str] | None = None
        self._lock = asyncio.Lock()

    def key(self, step: PlannedStep, plan: ExecutionPlan) -> str:
        """Return the step's idempotency key.

        It stays over retries, restarts and replays, and changes when the step's capability,
        parameters or inputs change.
        """
        stamp = plan.get("stamp") or {}
        if self._prints is None:
            self._prints = {**fingerprints(plan), **(stamp.get("fingerprints") or {})}
        return f"{self._turn}/{step['context_key']}/{self._prints[step['context_key']]}"

    async def before(
        self, attempt: Attempt, decision: Mapping[str, Any] | None
    ) -> dict[str, Any] | Unknown | None:
        """Make sure that an attempt may start, and leave word that it does.

        Returns:
            The state update of an earlier run that finished, an unknown outcome for a person to
            decide, or ``None`` to go on.

        Raises:
            CapabilityError: The outcome of an earlier run is unknown and ``on_unknown`` is ``fail``.
        """
        if attempt.spec.effect != "once":
            return None
        record = await self._journal.read(attempt.idempotency_key)
        status = record.get("status")
        if status == "finished":
            update: dict[str, Any] = record["update"]
            return update
        if status == "started":
            settled = self._settle(attempt, decision)
            if settled is not None:
                return settled
        await self._journal.write(
            attempt.idempotency_key, {"status": "started", "attempt": attempt.number}
        )
        return None

    def _settle(
        self, attempt: Attempt, decision: Mapping[str, Any] | None
    ) -> dict[str, Any] | Unknown | None:
        answer = (decision or {}).get("unknown_outcome") or attempt.spec.on_unknown
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
        return Unknown(
            {
                "kind": "unknown_outcome",
                "capability": attempt.spec.name,
                "reason": "It had started when the process ended; its effect may have happened.",
            }
        )

    async def after(self, attempt: Attempt, outcome: StepOutcome) -> None:
        """Leave word how an attempt ended."""
        if attempt.spec.effect != "once":
            return
        record: dict[str, Any] = {"status": "finished", "update": outcome.update}
        if outcome.error is not None:
            record = {"status": "failed", "attempt": attempt.number}
        await self._journal.write(attempt.idempotency_key, record)

    async def earlier_failures(self, key: str) -> tuple[int, float | None]:
        """Return how often a step failed in this turn, and when it may be tried again."""
        async with self._lock:
            if self._waits is None:
                self._waits = await self._journal.read(f"{self._turn}/waits")
        entry = self._waits.get(key) or {}
        return entry.get("failures", 0), entry.get("until")

    async def failed(self, key: str, failures: int, until: float) -> None:
        """Leave word that a step failed and when it is tried again."""
        async with self._lock:
            self._waits = {**(self._waits or {}), key: {"failures": failures, "until": until}}
            await self._journal.write(f"{self._turn}/waits", self._waits)


def _skipped(attempt: Attempt) -> dict[str, Any]:
    return {
        "execution_step_results": {
            attempt.key: {
                "step_index": attempt.index,
                "capability": attempt.spec.name,
                "task_objective": attempt.objective,
                "success": False,
                "skipped": True,
                "error": "Skipped: its outcome in an earlier process is unknown.",
                "attempts": attempt.number,
            }
        }
    }
