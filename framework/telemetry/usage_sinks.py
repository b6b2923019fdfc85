"""Sinks for the usage of model calls, which discard it or store it in memory or in a SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Protocol, runtime_checkable

from capgraph.configs.logger import get_logger
from capgraph.helpers.files import use_wal
from capgraph.telemetry.builtin_sinks import FanoutSink, FileSink, RingBufferSink
from capgraph.telemetry.usage import UsageSnapshot

_COLUMNS = ("model", "input_tokens", "output_tokens", "tool_calls", "cost_usd")


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

    All sinks receive the call before the first error is raised.

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
