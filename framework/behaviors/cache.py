"""Results that are there already: the same step for the same person gives the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

from capgraph.base.ports import Attempt, CallNext, ShortCircuit, StepRecord
from capgraph.configs.bounded_dict import BoundedDict
from capgraph.helpers.clock import Clock, as_clock, current_clock
from capgraph.pipeline.effect_ledger import compute_digest, serialize_inputs
from capgraph.pipeline.run_config import current_caller


class CacheBehavior:
    """Gives the result of an earlier step that was the same, without running it again.

    The same is: capability, validated parameters, values of the inputs (of a step without
    parameters its objective), user and tenant. What it gives has been permitted and is checked like
    any other; the record says ``cache``. A capability with an effect is never given from it, nor
    are failures and what another behaviour put in place. It is kept in this object, in memory:
    give each graph its own.

    Args:
        max_entries: How many results are kept; the one that was not asked for longest goes first.
        seconds: How long a result is good for; ``None`` for as long as it is kept.
        shared: Whether one person's results are given to others; only for what is the same for all.
        clock: Gives seconds, or is a ``Clock``; the graph's when not given.

    Raises:
        ValueError: A number is not above 0.

    >>> CacheBehavior(seconds=60)
    CacheBehavior(0 of 1000)
    """

    stage = "retry"
    order = 20
    applies_to: ClassVar[tuple[str, ...]] = ("step",)

    def __init__(
        self,
        *,
        max_entries: int = 1000,
        seconds: float | None = None,
        shared: bool = False,
        clock: Callable[[], float] | Clock | None = None,
    ) -> None:
        if max_entries < 1 or (seconds is not None and not seconds > 0):
            raise ValueError(
                f"CacheBehavior got max_entries={max_entries!r}, seconds={seconds!r}."
                " Fix: give more than 0."
            )
        self._seconds = seconds
        self._shared = shared
        self._clock = as_clock(clock) if clock is not None else None
        self._entries: BoundedDict[str, tuple[float, Any]] = BoundedDict(max_entries)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"CacheBehavior({len(self._entries)} of {self._entries.max_entries})"

    def clear(self) -> None:
        """Forget all results."""
        with self._lock:
            self._entries.clear()

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Give an earlier result, or keep what the step gives."""
        key = self._key(attempt)
        found = self._lookup(key)
        if found is not None:
            given = ShortCircuit(deepcopy(found), "cache")
            record = await call_next(replace(attempt, short_circuit=given))
            if not isinstance(record, StepRecord) or record.success:
                return record
            # It no longer passes the checks; what is made anew may.
            with self._lock:
                self._entries.pop(key, None)
        record = await call_next(attempt)
        if isinstance(record, StepRecord) and record.success and record.source == "run":
            self._store(key, record)
        return record

    def _key(self, attempt: Attempt) -> str:
        caller = current_caller()
        for_whom = None if self._shared else [caller.user_id, caller.tenant]
        values = dict(attempt.values)
        objective = None if values else " ".join(attempt.objective.lower().split())
        return compute_digest(
            [attempt.capability, values, serialize_inputs(attempt.inputs), objective, for_whom]
        )

    def _now(self) -> float:
        return (self._clock or current_clock()).monotonic()

    def _lookup(self, key: str) -> Any:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            kept_at, value = entry
            if self._seconds is not None and self._now() - kept_at >= self._seconds:
                del self._entries[key]
                return None
            self._entries[key] = entry  # the last one used is the last to go
            return value

    def _store(self, key: str, record: StepRecord) -> None:
        if record.plan is not None or any(len(data) != 1 for data in record.contexts.values()):
            return
        value: list[Any] = [dict(record.updates)] if record.updates else []
        value += [{kind: next(iter(data.values()))} for kind, data in record.contexts.items()]
        with self._lock:
            self._entries[key] = (self._now(), deepcopy(value))
