"""Usage of a session's model calls: the tracker, the usage limits, and sinks for each call."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from capgraph.base.errors import LimitError
from capgraph.configs.logger import get_logger
from capgraph.helpers.files import use_wal
from capgraph.helpers.number_validation import check_number
from capgraph.telemetry.builtin_sinks import FanoutSink, FileSink, RingBufferSink
from capgraph.telemetry.usage import PriceTable, UsageSnapshot, format_cost

_COLUMNS = ("model", "input_tokens", "output_tokens", "tool_calls", "cost_usd")


class UsageLimitExceededError(LimitError):
    """Raised if the usage of a session exceeds a limit on tokens, tool calls, or cost.

    Attributes:
        limit_name: Name of the limit.
        observed: Amount used. ``None`` for an unknown cost.
        ceiling: Value of the limit.
    """

    limit_name: str = ""
    observed: float | None = None
    ceiling: float = 0


@dataclass
class UsageTracker:
    """Thread-safe counter of the token usage and cost of model calls.

    Attributes:
        turns: Model and usage of each call.
        prices: Table of model prices.

    >>> from capgraph.telemetry import ModelPricing
    >>> tracker = UsageTracker(prices=PriceTable({"m": ModelPricing(1.0, 1.0)}))
    >>> tracker.record_turn("m", UsageSnapshot(input_tokens=500_000))
    >>> tracker.total_cost(), tracker.format_cost()
    (0.5, '$0.50')
    """

    turns: list[tuple[str, UsageSnapshot]] = field(default_factory=list)
    prices: PriceTable = field(default_factory=PriceTable.of_process)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def record_turn(self, model: str, usage: UsageSnapshot) -> None:
        """Record the usage of a model call."""
        with self._lock:
            self.turns.append((model, usage))

    def _calls(self) -> list[tuple[str, UsageSnapshot]]:
        with self._lock:
            return list(self.turns)

    def _sum(self, name: str) -> int:
        return sum(getattr(usage, name) for _, usage in self._calls())

    @property
    def total_input_tokens(self) -> int:
        """Total number of prompt tokens."""
        return self._sum("prompt_tokens")

    @property
    def total_output_tokens(self) -> int:
        """Total number of output tokens."""
        return self._sum("output_tokens")

    @property
    def total_tool_calls(self) -> int:
        """Total number of requested tool calls."""
        return self._sum("tool_calls")

    def cost_for_turn(self, model: str, usage: UsageSnapshot) -> float | None:
        """Return the cost of a model call, or ``None`` if the price is unknown."""
        return self.prices.cost(model, usage)

    def total_cost(self) -> float | None:
        """Return the cost of all recorded calls, or ``None`` if any price is unknown."""
        costs = [self.cost_for_turn(*turn) for turn in self._calls()]
        return None if None in costs else math.fsum(c for c in costs if c is not None)

    def format_cost(self) -> str:
        """Format the total cost of all recorded calls as a string."""
        return format_cost(self.total_cost())

    def budget_remaining(self, budget_usd: float) -> float | None:
        """Return the unspent part of a budget, or ``None`` if the total cost is unknown."""
        cost = self.total_cost()
        return None if cost is None else budget_usd - cost

    def is_over_budget(self, budget_usd: float) -> bool:
        """Return True if the total cost exceeds a budget or is unknown."""
        cost = self.total_cost()
        return cost is None or cost > budget_usd

    def per_model_summary(self) -> dict[str, float | None]:
        """Return the total cost of each model. An unknown cost is ``None``."""
        found: dict[str, float | None] = {}
        for model, usage in self._calls():
            cost, before = self.cost_for_turn(model, usage), found.get(model, 0.0)
            found[model] = None if cost is None or before is None else before + cost
        return found

    def summary(self) -> dict[str, Any]:
        """Return the totals as plain data."""
        return {
            "turns": len(self._calls()),
            "total_input_tokens": self.total_input_tokens,
            "total_output_tokens": self.total_output_tokens,
            "total_tool_calls": self.total_tool_calls,
            "total_cost_usd": self.total_cost(),
            "formatted_cost": self.format_cost(),
        }

    def check_limits(self, limits: UsageLimits) -> None:
        """Raise an error if the recorded usage exceeds one of the ``UsageLimits``."""
        limits.check(self)


@dataclass(frozen=True, slots=True)
class UsageLimits:
    """Limits on the tokens, tool calls, and cost of a session. ``None`` means no limit.

    Attributes:
        request_tokens_max: Maximum number of prompt tokens.
        response_tokens_max: Maximum number of output tokens.
        total_tokens_max: Maximum number of prompt and output tokens.
        tool_calls_max: Maximum number of tool calls.
        cost_usd_max: Maximum cost in US dollars. An unknown cost exceeds the limit.

    Raises:
        ValidationError: A limit is negative or not a number.

    >>> tracker = UsageTracker()
    >>> tracker.record_turn("m", UsageSnapshot(input_tokens=5))
    >>> UsageLimits(total_tokens_max=5).check(tracker)
    """

    request_tokens_max: int | None = None
    response_tokens_max: int | None = None
    total_tokens_max: int | None = None
    tool_calls_max: int | None = None
    cost_usd_max: float | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if (value := getattr(self, name)) is not None:
                check_number(name, value)

    def check(self, tracker: UsageTracker) -> None:
        """Check that the usage of a session is within these limits.

        Raises:
            UsageLimitExceededError: A limit is exceeded.
        """
        prompts, answers = tracker.total_input_tokens, tracker.total_output_tokens
        usage: dict[str, float | None] = {
            "request_tokens_max": prompts,
            "response_tokens_max": answers,
            "total_tokens_max": prompts + answers,
            "tool_calls_max": tracker.total_tool_calls,
        }
        if self.cost_usd_max is not None:
            usage["cost_usd_max"] = tracker.total_cost()
        for name, observed in usage.items():
            ceiling = getattr(self, name)
            if ceiling is None or (observed is not None and observed <= ceiling):
                continue
            amount = "an unknown amount" if observed is None else f"{observed:g}"
            raise UsageLimitExceededError(
                f"The session used {amount}, which exceeds the limit {name}={ceiling:g}.",
                fix=f"Raise {name}, or call register_pricing(…) for its models."
                if observed is None
                else f"Raise {name}, or use less.",
                limit_name=name,
                observed=observed,
                ceiling=ceiling,
            )


@runtime_checkable
class UsageSink(Protocol):
    """Protocol for sinks that record the usage and cost of model calls."""

    def record(self, model: str, usage: UsageSnapshot, cost_usd: float | None) -> None:
        """Record the usage of a model call. ``cost_usd`` is ``None`` if the cost is unknown."""


class NoopUsageSink:
    """Sink that discards usage."""

    def record(self, model: str, usage: UsageSnapshot, cost_usd: float | None) -> None:
        """Discard the usage of a model call."""


class RingBufferUsageSink(RingBufferSink):
    """Usage sink that keeps the latest model calls in memory.

    Args:
        capacity: Maximum number of calls to keep. The oldest call is dropped first.

    >>> sink = RingBufferUsageSink(capacity=1)
    >>> sink.record("a", UsageSnapshot(), 0.0); sink.record("b", UsageSnapshot(), None)
    >>> [model for model, _, _ in sink.records]
    ['b']
    """

    @property
    def records(self) -> list[Any]:
        """Recorded model calls, oldest first."""
        return self.events

    def record(self, model: str, usage: UsageSnapshot, cost_usd: float | None) -> None:
        """Append a model call, dropping the oldest recorded call if the buffer is full."""
        self.emit((model, usage, cost_usd))


class FanoutUsageSink(FanoutSink):
    """Usage sink that forwards each model call to several sinks.

    The call is forwarded to all sinks before the first error is raised.

    Args:
        sinks: Sinks that receive each call, in order.
    """

    def __init__(self, sinks: Sequence[UsageSink]) -> None:
        super().__init__(sinks)  # type: ignore[arg-type]  # each is asked for what it has

    def record(self, model: str, usage: UsageSnapshot, cost_usd: float | None) -> None:
        """Forward the usage of a model call to all sinks."""
        self._call_all("record", model, usage, cost_usd)


class SqliteUsageSink(FileSink):
    """Usage sink that stores model calls in a SQLite file from a separate thread.

    Args:
        path: Path of the file. Several processes may share it.
        capacity: Maximum number of queued calls. Excess calls are dropped and counted as lost.
    """

    def record(self, model: str, usage: UsageSnapshot, cost_usd: float | None) -> None:
        """Queue the usage of a model call for writing to the SQLite file."""
        spent = (usage.prompt_tokens, usage.output_tokens, usage.tool_calls, cost_usd)
        self.emit(dict(zip(_COLUMNS, (model, *spent), strict=True)))

    def totals(self) -> dict[str, dict[str, Any]]:
        """Return the total usage of each model. ``cost_usd`` is ``None`` if a price was unknown."""
        self._flush_now()
        with closing(self._open()) as conn:
            rows = conn.execute(
                "SELECT model, count(*), sum(input_tokens), sum(output_tokens), sum(tool_calls),"
                " CASE WHEN count(cost_usd) = count(*) THEN sum(cost_usd) END"
                " FROM usage GROUP BY model ORDER BY model"
            )
            names = ("calls", *_COLUMNS[1:])
            return {model: dict(zip(names, sums, strict=True)) for model, *sums in rows}

    def _write(self, events: list[dict[str, Any]]) -> None:
        rows = [tuple(event[name] for name in _COLUMNS) for event in events]
        try:
            with closing(self._open()) as conn, conn:
                conn.executemany("INSERT INTO usage VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as exc:  # the caller does not wait for the write
            self.lost += len(rows)
            get_logger("framework", "usage").warning(
                "The usage of %d calls was not written: %s", len(rows), exc
            )

    def _open(self) -> sqlite3.Connection:
        conn = sqlite3.connect(self.path, timeout=30.0)
        use_wal(conn, 30.0)
        conn.execute(
            "CREATE TABLE IF NOT EXISTS usage (model TEXT NOT NULL, input_tokens INTEGER NOT NULL,"
            " output_tokens INTEGER NOT NULL, tool_calls INTEGER NOT NULL, cost_usd REAL)"
        )
        return conn
