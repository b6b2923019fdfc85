"""Who takes up what calls used: nobody, a bounded list, or a SQLite file."""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from configs.logger import get_logger
from framework.telemetry.usage import UsageSnapshot


@runtime_checkable
class UsageSink(Protocol):
    """Takes up what calls used."""

    def record(self, model: str, usage: UsageSnapshot, cost_usd: float | None) -> None:
        """Take up one call; the cost is ``None`` where it is unknown."""


class NoopUsageSink:
    """Takes up nothing."""

    def record(self, model: str, usage: UsageSnapshot, cost_usd: float | None) -> None:
        """Do nothing."""


class RingBufferUsageSink:
    """Keeps the last calls in memory.

    Args:
        capacity: How many.

    >>> sink = RingBufferUsageSink(capacity=1)
    >>> sink.record("a", UsageSnapshot(), 0.0); sink.record("b", UsageSnapshot(), None)
    >>> [model for model, _, _ in sink.records]
    ['b']
    """

    def __init__(self, capacity: int = 1000) -> None:
        self._kept: deque[tuple[str, UsageSnapshot, float | None]] = deque(maxlen=capacity)

    def record(self, model: str, usage: UsageSnapshot, cost_usd: float | None) -> None:
        """Keep one call; the oldest goes where there is no room."""
        self._kept.append((model, usage, cost_usd))

    @property
    def records(self) -> list[tuple[str, UsageSnapshot, float | None]]:
        """The calls, the oldest first."""
        return list(self._kept.copy())  # a copy is made in one piece, whoever adds meanwhile

    def clear(self) -> None:
        """Forget them."""
        self._kept.clear()


class FanoutUsageSink:
    """Hands each call to several sinks; all are tried, then the first error is raised.

    Args:
        sinks: The sinks.
    """

    def __init__(self, sinks: Sequence[UsageSink]) -> None:
        self._sinks = tuple(sinks)

    def record(self, model: str, usage: UsageSnapshot, cost_usd: float | None) -> None:
        """Hand one call on."""
        failed: list[Exception] = []
        for sink in self._sinks:
            try:
                sink.record(model, usage, cost_usd)
            except Exception as exc:
                failed.append(exc)
        if failed:
            for later in failed[1:]:
                failed[0].add_note(f"Another sink raised {later!r}")
            raise failed[0]


class SqliteUsageSink:
    """Keeps calls in a SQLite file, written by a thread of its own so that no event loop waits.

    Args:
        path: The file; several processes may share it.
        capacity: Calls that may wait to be written; what comes beyond is counted as lost.
    """

    def __init__(self, path: str | Path, *, capacity: int = 10_000) -> None:
        self._path, self._capacity = str(path), capacity
        self._waiting: deque[tuple[Any, ...]] = deque()
        self._lock = threading.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="capgraph usage")
        self.lost = 0

    def record(self, model: str, usage: UsageSnapshot, cost_usd: float | None) -> None:
        """Take up one call; it is written soon."""
        if len(self._waiting) >= self._capacity:
            self.lost += 1
            return
        prompt, answer = usage.prompt_tokens, usage.output_tokens
        self._waiting.append((model, prompt, answer, usage.tool_calls, cost_usd))
        self._writer.submit(self._write)

    def flush(self) -> None:
        """Wait until everything so far is written."""
        self._writer.submit(self._write).result()

    def close(self) -> None:
        """Write what waits, and take up nothing more."""
        self._writer.shutdown(wait=True)

    def totals(self) -> dict[str, dict[str, Any]]:
        """Return the sums of each model; ``cost_usd`` is ``None`` where a price was unknown."""
        self.flush()
        names = ("calls", "input_tokens", "output_tokens", "tool_calls", "cost_usd")
        with self._lock, closing(self._open()) as conn:
            rows = conn.execute(
                "SELECT model, count(*), sum(input_tokens), sum(output_tokens), sum(tool_calls),"
                " CASE WHEN count(cost_usd) = count(*) THEN sum(cost_usd) END"
                " FROM usage GROUP BY model ORDER BY model"
            )
            return {model: dict(zip(names, sums, strict=True)) for model, *sums in rows}

    def _open(self) -> sqlite3.Connection:
        conn = sqlite3.connect(self._path, timeout=30.0)
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute(
            "CREATE TABLE IF NOT EXISTS usage (model TEXT NOT NULL, input_tokens INTEGER NOT NULL,"
            " output_tokens INTEGER NOT NULL, tool_calls INTEGER NOT NULL, cost_usd REAL)"
        )
        return conn

    def _write(self) -> None:
        rows = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not rows:
            return
        try:
            with self._lock, closing(self._open()) as conn, conn:
                conn.executemany("INSERT INTO usage VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as exc:
            self.lost += len(rows)
            get_logger("framework", "usage").warning(
                "%d calls were not written: %s", len(rows), exc
            )
