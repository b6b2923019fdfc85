"""Behavior that caches the results of equal steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

from capgraph.base.ports import Attempt, CallNext, ShortCircuit, StepRecord
from capgraph.configs.bounded_dict import BoundedDict
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.clock import Clock, as_clock, current_clock
from capgraph.pipeline.effect_ledger import compute_digest, serialize_inputs
from capgraph.pipeline.run_config import current_caller


class CacheBehavior:
    """In-memory cache of step results.

    Two steps are equal if they have the same capability, validated parameters and input values, the
    same user and tenant and, for a step without parameters, the same objective. A cached result
    passes permissions and validation, and its record has the source ``cache``. Steps with an
    effect, failures and fallback results are not cached. Use a separate object for each graph.

    Args:
        max_entries: Maximum number of results. The least recently used one is evicted first.
        seconds: Lifetime of a result. ``None`` means no expiry.
        shared: True to share results between users. Use it only for results that are equal for all
            users.
        clock: A ``Clock`` or a function that returns seconds. Defaults to the graph's clock.

    Raises:
        ValueError: A number is not positive.

    >>> CacheBehavior(seconds=60)
    CacheBehavior(0 of 1000)
    """

    stage = "retry"
    order = 20
    applies_to: ClassVar[tuple[str, ...]] = ("step",)

    @validate_arguments
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
                f"CacheBehavior has max_entries={max_entries!r} and seconds={seconds!r}: both"
                " must be positive. Fix: pass values above 0."
            )
        self._seconds = seconds
        self._shared = shared
        self._clock = as_clock(clock) if clock is not None else None
        self._entries: BoundedDict[str, tuple[float, Any]] = BoundedDict(max_entries)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"CacheBehavior({len(self._entries)} of {self._entries.max_entries})"

    def clear(self) -> None:
        """Remove all cached results."""
        with self._lock:
            self._entries.clear()

    async def wrap_step(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Return the cached result of the step, or run the step and cache its result."""
        key = self._build_key(attempt)
        cached = self._lookup(key)
        if cached is not None:
            short_circuit = ShortCircuit(deepcopy(cached), "cache")
            record = await call_next(replace(attempt, short_circuit=short_circuit))
            if not isinstance(record, StepRecord) or record.success:
                return record
            # The cached result no longer passes the checks. A new one may.
            with self._lock:
                self._entries.pop(key, None)
        record = await call_next(attempt)
        if isinstance(record, StepRecord) and record.success and record.source == "run":
            self._store(key, record)
        return record

    def _build_key(self, attempt: Attempt) -> str:
        caller = current_caller()
        owner = None if self._shared else [caller.user_id, caller.tenant]
        values = dict(attempt.values)
        objective = None if values else " ".join(attempt.objective.lower().split())
        return compute_digest(
            [attempt.capability, values, serialize_inputs(attempt.inputs), objective, owner]
        )

    def _now(self) -> float:
        return (self._clock or current_clock()).monotonic()

    def _lookup(self, key: str) -> Any:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            stored_at, value = entry
            if self._seconds is not None and self._now() - stored_at >= self._seconds:
                del self._entries[key]
                return None
            self._entries[key] = entry  # moves it to the end of the eviction order
            return value

    def _store(self, key: str, record: StepRecord) -> None:
        if record.plan is not None or any(len(data) != 1 for data in record.contexts.values()):
            return
        value: list[Any] = [dict(record.updates)] if record.updates else []
        value += [{kind: next(iter(data.values()))} for kind, data in record.contexts.items()]
        with self._lock:
            self._entries[key] = (self._now(), deepcopy(value))
