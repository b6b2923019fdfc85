"""Built-in event sinks. Any object with ``emit(event)`` is a sink, too.

On an event loop, methods that access files run in a thread of the sink and return awaitables.
Otherwise they return when they are done.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TextIO

from capgraph.base.ports import Sink
from capgraph.helpers.files import create_private, use_wal
from capgraph.helpers.number_validation import check_number
from capgraph.telemetry.event_dispatcher import SentEvent


class FileThread:
    """Background thread for file operations, so that they never block an event loop."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    def run(self, work: Callable[[], Any]) -> Any:
        """Run a function in the file thread, or immediately if no event loop is running.

        Returns:
            The function's result, or an awaitable if an event loop is running.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return work()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="capgraph files")
        return asyncio.wrap_future(self._executor.submit(work), loop=loop)


def event_to_dict(event: Any) -> dict[str, Any]:
    """Convert an event of any supported type to a dictionary.

    >>> event_to_dict({"event_type": "retry"})
    {'event_type': 'retry'}
    """
    if isinstance(event, Mapping):
        return dict(event)
    write = getattr(event, "to_dict", None) or event.model_dump
    found: dict[str, Any] = write()
    return found


class NoopSink:
    """Sink that discards events.

    >>> NoopSink().emit({"event_type": "retry"})
    """

    inline = True

    def emit(self, event: Any) -> None:
        """Discard an event."""

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class RingBufferSink(NoopSink):
    """Event sink that keeps the latest events in memory.

    Args:
        capacity: Maximum number of events to keep. The oldest event is dropped first.

    Raises:
        ValueError: ``capacity`` is less than 1.

    >>> sink = RingBufferSink(capacity=2)
    >>> for number in (1, 2, 3):
    ...     sink.emit({"number": number})
    >>> [event["number"] for event in sink.events]
    [2, 3]
    """

    def __init__(self, capacity: int = 1000) -> None:
        if capacity < 1:
            raise ValueError(
                f"capacity is {capacity}: it must be at least 1. Fix: pass a positive number."
            )
        self._events: deque[Any] = deque(maxlen=capacity)

    def emit(self, event: Any) -> None:
        """Append an event to the buffer, dropping the oldest event if the buffer is full."""
        self._events.append(event)

    @property
    def events(self) -> list[Any]:
        """Events in the buffer, oldest first."""
        return list(self._events.copy())

    def clear(self) -> None:
        """Remove all events."""
        self._events.clear()


class FlushableSink(ABC):
    """Base class for sinks that buffer events and can be flushed.

    A flush first waits until the upstream queues that feed the sink are empty.
    """

    def __init__(self) -> None:
        self._file_thread, self._lock = FileThread(), threading.Lock()
        self._upstream_drains: list[Callable[[], None]] = []

    def set_upstream_drain(self, drain: Callable[[], None]) -> None:
        """Register a callback that waits until all emitted events have reached this sink."""
        self._upstream_drains.append(drain)

    def flush(self) -> Awaitable[None] | None:
        """Wait until all events emitted so far have been written."""
        result: Awaitable[None] | None = self._file_thread.run(self._flush_now)
        return result

    def close(self) -> Awaitable[None] | None:
        """Flush the sink and close its files and connections. The next event reopens them."""
        result: Awaitable[None] | None = self._file_thread.run(self._close_now)
        return result

    def _flush_now(self) -> None:
        for drain in self._upstream_drains:
            drain()
        self._write_queue()

    def _close_now(self) -> None:
        self._flush_now()
        with self._lock:
            self._close()

    @abstractmethod
    def _write_queue(self) -> None: ...

    def _close(self) -> None:  # noqa: B027 - optional to override
        """Release resources, if there are any."""


class FileSink(FlushableSink):
    """Base class for sinks that write batches of events to a file from a bounded queue."""

    def __init__(self, path: str | Path, *, capacity: int = 10_000) -> None:
        super().__init__()
        self.path: Path = Path(path)
        self.lost: int = 0
        self._capacity = capacity
        self._queue: deque[dict[str, Any]] = deque()

    def emit(self, event: Any) -> Any:
        """Write an event. Returns an awaitable if an event loop is running."""
        return self.emit_many([event])

    def emit_many(self, events: Sequence[Any]) -> Any:
        """Write several events in one batch. Events beyond the queue capacity are dropped."""
        free = self._capacity - len(self._queue)
        self.lost += max(0, len(events) - free)
        self._queue.extend(event_to_dict(event) for event in events[:free])
        return self._file_thread.run(self._write_queue)

    def _write_queue(self) -> None:
        with self._lock:
            events = [self._queue.popleft() for _ in range(len(self._queue))]
            try:
                if events:
                    self._write(events)
            except Exception:
                self.lost += len(events)
                raise

    @abstractmethod
    def _write(self, events: list[dict[str, Any]]) -> None: ...


class JsonLinesSink(FileSink):
    """Event sink that appends each event to a file as a line of JSON.

    Args:
        path: Path of the file. The file is created when the first event is written.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "events.jsonl"
    >>> sink = JsonLinesSink(path)
    >>> sink.emit({"event_type": "retry", "seq": 1})
    >>> sink.close()
    >>> path.read_text().splitlines()
    ['{"event_type": "retry", "seq": 1}']
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._file: TextIO | None = None

    def _write(self, events: list[dict[str, Any]]) -> None:
        if self._file is None:
            self._file = self.path.open("a", encoding="utf-8")
        lines = [json.dumps(event, ensure_ascii=False, default=str) + "\n" for event in events]
        self._file.write("".join(lines))
        self._file.flush()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


_CREATE_EVENTS = """CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, run_id TEXT, thread_id TEXT, event TEXT NOT NULL)"""


class SqliteEventSink(FileSink):
    """Event sink that stores events in a SQLite file and can replay them.

    Args:
        path: Path of the file. The file is created when the first event is written.

    >>> import tempfile
    >>> sink = SqliteEventSink(Path(tempfile.mkdtemp()) / "events.db")
    >>> sink.emit({"event_type": "retry", "run_id": "r", "seq": 1})
    >>> [event.run_id for event in sink.replay()]
    ['r']
    >>> sink.close()
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._conn: sqlite3.Connection | None = None

    def replay(
        self, *, run_id: str | None = None, thread_id: str | None = None, limit: int | None = None
    ) -> list[SentEvent]:
        """Return the stored events in their original order.

        Args:
            run_id: Return only events of this run.
            thread_id: Return only events of this thread.
            limit: Maximum number of events. ``None`` means all.

        Raises:
            ValidationError: ``limit`` is not a nonnegative integer.
        """
        if limit is not None:
            check_number("limit", limit, integer=True)
        self._flush_now()
        if not self.path.exists():
            return []
        # A separate connection, so that reading does not block writing.
        with closing(sqlite3.connect(self.path)) as conn:
            rows = conn.execute(
                "SELECT event FROM events WHERE (? IS NULL OR run_id = ?)"
                " AND (? IS NULL OR thread_id = ?) ORDER BY id LIMIT ?",
                (run_id, run_id, thread_id, thread_id, -1 if limit is None else limit),
            ).fetchall()
        return [SentEvent(json.loads(text)) for (text,) in rows]

    def _write(self, events: list[dict[str, Any]]) -> None:
        if self._conn is None:
            create_private(self.path)
            self._conn = sqlite3.connect(self.path, timeout=30.0, check_same_thread=False)
            use_wal(self._conn, 30.0)
            self._conn.execute("PRAGMA synchronous=NORMAL")
            self._conn.execute(_CREATE_EVENTS)
        with self._conn:
            self._conn.executemany(
                "INSERT INTO events (run_id, thread_id, event) VALUES (?, ?, ?)",
                [(e.get("run_id"), e.get("thread_id"), json.dumps(e, default=str)) for e in events],
            )

    def _close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None


class FanoutSink:
    """Event sink that forwards each event to several sinks, even if one of them raises.

    Args:
        sinks: Sinks that receive each event, in order.

    >>> first, second = RingBufferSink(), RingBufferSink()
    >>> FanoutSink([first, second]).emit({"event_type": "retry"})
    >>> first.events == second.events
    True
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks: tuple[Sink, ...] = tuple(sinks)

    def set_upstream_drain(self, drain: Callable[[], None]) -> None:
        """Register a drain callback with all sinks that support it."""
        for sink in self.sinks:
            if (set_upstream_drain := getattr(sink, "set_upstream_drain", None)) is not None:
                set_upstream_drain(drain)

    def emit(self, event: Any) -> Any:
        """Forward an event to all sinks, then raise the first error if any sink failed."""
        return self._call_all("emit", event)

    def run_began(self, run_id: str, agent_name: str) -> Any:
        """Call ``run_began`` on the sinks that define it, to report the start of a run."""
        return self._call_all("run_began", run_id, agent_name)

    def run_ended(self, event: Any) -> Any:
        """Call ``run_ended`` on the sinks that define it, to report the end of a run."""
        return self._call_all("run_ended", event)

    def flush(self) -> Any:
        """Flush all sinks that have a ``flush`` method."""
        return self._call_all("flush")

    def close(self) -> Any:
        """Close all sinks that have a ``close`` method."""
        return self._call_all("close")

    def _call_all(self, name: str, *args: Any) -> Any:
        errors: list[Exception] = []
        awaitables: list[Awaitable[Any]] = []
        results: list[Any] = []
        for sink in self.sinks:
            method = getattr(sink, name, None)
            try:
                result = method(*args) if method is not None else None
            except Exception as exc:
                errors.append(exc)
            else:
                if inspect.isawaitable(result):
                    awaitables.append(result)
                else:
                    results.append(result)
        if awaitables:
            return _await_all(awaitables, errors)
        _raise_first(errors)
        return next((one for one in results if one is not None), None)


def _raise_first(errors: Sequence[Exception]) -> None:
    for error in errors[1:]:
        errors[0].add_note(f"Another sink raised {error!r}")
    if errors:
        raise errors[0]


async def _await_all(awaitables: Sequence[Awaitable[Any]], errors: list[Exception]) -> None:
    for awaitable in awaitables:
        try:
            await awaitable
        except Exception as exc:
            errors.append(exc)
    _raise_first(errors)
