"""Log of runs and their events, stored next to the threads.

A run is logged before a worker starts it, and stays open until it ends, so another worker can take
it over. Events are written to the log first and delivered to listeners from there. A listener
therefore never sees an event that a restart could lose. Events of all runs are written in batches,
with one row per run and batch.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from capgraph.base.errors import LimitError, PersistenceError
from capgraph.configs.logger import get_logger
from capgraph.stores.channel_listener import CHANNEL, ChannelListener
from capgraph.stores.database import MEMORY_URL, SqlTables, open_tables
from capgraph.stores.leases import Leases
from capgraph.stores.serialization import deserialize_text, serialize_to_text

STOPPING = "stopping"
"""Status of a run for which a stop was requested."""
OPEN_STATUSES = ("queued", "running", STOPPING)
"""Statuses of a run that has not ended."""

_INSERT_EVENTS = (
    "INSERT INTO capgraph_run_events (run_id, seq, data) SELECT column1, column2, column3"
    " FROM (VALUES {marks}) AS told WHERE column1 IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM capgraph_run_places p WHERE p.run_id = column1"
    " AND p.teller <> column4) ON CONFLICT DO NOTHING RETURNING run_id"
)
_SET_RUNNING = (
    "UPDATE capgraph_runs SET status = 'running', starts = starts + 1 WHERE run_id = ?"
    " AND status IN ('queued', 'running') AND {held} RETURNING run_id"
)
_FINISH = (
    "UPDATE capgraph_runs SET status = ?, ended = ? WHERE run_id = ?"
    " AND NOT EXISTS (SELECT 1 FROM capgraph_run_places p WHERE p.run_id = ?"
    " AND p.teller <> COALESCE(?, p.teller)) RETURNING run_id"
)
_CLAIM = (
    "INSERT INTO capgraph_run_places (run_id, thread_id, begins, teller)"
    " SELECT ?, ?, COALESCE(({next}), ?), ? WHERE {held}"
    " ON CONFLICT (run_id) DO UPDATE SET teller = excluded.teller RETURNING run_id"
)
_NEXT_POSITION = (
    "SELECT p.begins + (SELECT COALESCE(MAX(e.seq), 0) FROM capgraph_run_events e"
    " WHERE e.run_id = p.run_id) FROM capgraph_run_places p WHERE p.thread_id = ?"
    " ORDER BY p.begins DESC LIMIT 1"
)
_THREAD_EVENTS = (
    "SELECT p.run_id, p.begins + e.seq, e.data FROM capgraph_run_places p"
    " JOIN capgraph_run_events e ON e.run_id = p.run_id AND e.seq > ? - p.begins"
    " WHERE p.thread_id = ? ORDER BY p.begins, e.seq LIMIT ?"
)
_OPEN_COUNT = "SELECT count(*) FROM capgraph_runs WHERE owner = ? AND ended = 0"
_RELEASE = (
    "UPDATE capgraph_runs SET starts = starts - 1 WHERE run_id = ? AND starts > 0 RETURNING run_id"
)
_COLUMNS = "run_id, thread_id, owner, status, opened, ended, request, starts"
Statement = tuple[str, tuple[Any, ...]]
_PAGE = 200
_MAX_RUNS = 10_000
_BATCH_SIZE = 500
_RECENT_EVENTS = 256
"""Number of recent events per run that are cached for listeners."""
_POLL_SECONDS = 1.0
"""Seconds between polls for events of other processes."""
_MAX_EVENT_CHARS = 1_000_000
"""Maximum length of an event in characters. Longer events are shortened."""
TERMINAL_EVENTS = frozenset({"RUN_FINISHED", "RUN_ERROR"})
"""Types of the event that ends a run."""
_TERMINAL_PREFIXES = tuple(f'{{"type":"{name}"' for name in TERMINAL_EVENTS)
"""Prefixes of the serialized events that end a run."""
_BATCH_SECONDS = 0.05
"""Maximum seconds that an event waits for its batch, if no listener waits for it."""
_IDLE_SECONDS = 5.0
"""Seconds between empty pages, which reveal whether a listener is still connected."""
_LATEST_ENDED = "SELECT run_id FROM capgraph_runs WHERE ended > 0 ORDER BY ended DESC LIMIT ?"
_MAX_ENDED_IN_MEMORY = 1000
"""Number of ended runs kept if there is no database."""


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """Entry of the run log that describes one run.

    Attributes:
        run_id: ID of the run.
        thread_id: ID of the run's thread in the saver.
        owner: ID of its owner.
        status: ``queued``, ``running``, ``stopping``, or the outcome of the turn.
        created_at: Time of the request, in seconds since the epoch.
        ended_at: Time at which the run ended, or 0 while it is open.
        request: Input and caller of the run, which are sufficient to start it again.
        starts: Number of processes that started the run and did not hand it over to another.
    """

    run_id: str
    thread_id: str
    owner: str
    status: str = "queued"
    created_at: float = field(default_factory=time.time)
    ended_at: float = 0.0
    request: Mapping[str, Any] = field(default_factory=dict)
    starts: int = 0

    @property
    def is_open(self) -> bool:
        """True if the run has not ended."""
        return self.status in OPEN_STATUSES

    @property
    def is_new_turn(self) -> bool:
        """True if the run starts a new turn, and False if it resumes one."""
        return starts_turn(self.request)


def starts_turn(request: Mapping[str, Any]) -> bool:
    """Return True if a request starts a new turn, and False if it resumes one."""
    return "message" in request or "plan" in request


class _LiveRun:
    """Run in progress in this process, with its recent events and waiting listeners."""

    def __init__(self, thread: str, seq: int = 0) -> None:
        self.thread = thread
        self.seq, self.written = seq, seq
        self.recent: deque[str] = deque(maxlen=_RECENT_EVENTS)
        self.changed = asyncio.Event()
        self.ended = self.is_released = self.has_listeners = False
        self.writer_id = ""
        self.idle_timer: asyncio.TimerHandle | None = None

    def publish(self, text: str) -> None:
        self.written += 1
        self.recent.append(text)
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()
        if self.idle_timer is not None:
            self.idle_timer.cancel()
            self.idle_timer = None
        if self.has_listeners and not self.is_released:
            # One timer per run. A timer per listener would be recreated for every event.
            self.idle_timer = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self.wake)

    def after(self, seq: int) -> list[tuple[int, str]] | None:
        """Return the cached events after a sequence number.

        Returns ``None`` if some of those events are no longer cached.
        """
        first = self.written - len(self.recent)
        if seq < first:
            return None
        return [
            (first + 1 + place, self.recent[place])
            for place in range(seq - first, min(len(self.recent), seq - first + _PAGE))
        ]


class RunLog:
    """Log of the runs on a saver's threads, including the events of each run.

    Args:
        tables: Tables in the threads' database. ``None`` keeps the latest runs in memory.
        serde: Serializer of the threads.
        listener: Listener for notifications from other processes.
        leases: Leases on running threads.
    """

    def __init__(
        self,
        tables: SqlTables | None,
        serde: SerializerProtocol,
        listener: ChannelListener,
        leases: Leases,
    ) -> None:
        self._saver_tables, self._leases = tables, leases
        self._tables: SqlTables = tables or open_tables(MEMORY_URL)
        self._serde: Any = serde
        self._live: dict[str, _LiveRun] = {}
        self._queue: deque[tuple[str, int, str, str]] = deque()
        self._endings: dict[str, tuple[str, float, asyncio.Future[None]]] = {}
        self._writer: asyncio.Task[None] | None = None
        self._write_now = asyncio.Event()
        self._listener = listener
        self._ready = False
        self.closing: asyncio.Event = asyncio.Event()

    # --- runs -----------------------------------------------------------------------------

    async def create(
        self, run: LoggedRun, *, is_local: bool = True, max_open: int | None = None
    ) -> bool:
        """Add a run to the log. Returns False if the run is already in the log.

        Args:
            run: Run to add.
            is_local: True if this process writes the run's events.
            max_open: Maximum number of open runs per owner, including this run.

        Raises:
            LimitError: The owner has too many open runs.
        """
        values: tuple[Any, ...] = (run.run_id, run.thread_id, run.owner, run.status)
        values += (run.created_at, run.ended_at, self._pack(dict(run.request)), 0)
        insert = f"INSERT INTO capgraph_runs ({_COLUMNS}) SELECT ?, ?, ?, ?, ?, ?, ?, ? WHERE "
        end = " ON CONFLICT (run_id) DO NOTHING RETURNING run_id"
        if max_open is None:
            added = await self._run(f"{insert} true{end}", values)
        else:
            await self._open_tables()
            _, added = await self._tables.run_locked(
                f"capgraph-runs/{run.owner}",
                f"{insert} ({_OPEN_COUNT}) < ?{end}",
                (*values, run.owner, max_open),
            )
            if not added and await self.get(run.run_id) is None:
                raise LimitError(
                    f"The limit of active runs per user is reached: {max_open}.",
                    fix="Wait until a run ends, or stop one.",
                    facts={"limit": "max_active_runs_per_user", "value": max_open},
                )
        if not added:
            return False
        if self._saver_tables is None:
            await self._delete(
                f"ended > 0 AND run_id NOT IN ({_LATEST_ENDED})", _MAX_ENDED_IN_MEMORY
            )
        if is_local:
            self._live[run.run_id] = _LiveRun(run.thread_id)
        return True

    async def claim(self, run: LoggedRun) -> tuple[list[dict[str, Any]], bool]:
        """Claim a run for this process and set its status to ``running``.

        This process becomes the only writer of the run's events. The first claim also assigns the
        run its position among the events of its thread.

        Returns:
            The events so far, and True unless a stop was requested.
        """
        events: list[dict[str, Any]] = []
        writer_id, may_run = await self._assign_position(run)
        if run.status == "queued":
            self._live.setdefault(run.run_id, _LiveRun(run.thread_id)).writer_id = writer_id
            return events, may_run
        seq = 0
        while page := await self._page(run.run_id, seq):
            events += [json.loads(text) for _, text in page]
            seq = page[-1][0]
        self._live[run.run_id] = _LiveRun(run.thread_id, seq)
        self._live[run.run_id].writer_id = writer_id
        return events, may_run

    async def _assign_position(self, run: LoggedRun) -> tuple[str, bool]:
        # Without earlier runs, numbers start at the clock, so they exceed the numbers of runs
        # that were deleted.
        first_position = int(1000 * time.time())
        # A process that lost the thread must not write events; its successor writes them.
        lease = self._leases.find_held(run.thread_id)
        writer_id = (
            lease.owner.owner_id if lease is not None and self._saver_tables is not None else ""
        )
        holds_lease = (
            "EXISTS (SELECT 1 FROM capgraph_leases WHERE owner = ?)" if writer_id else "? = ''"
        )
        values = (run.run_id, run.thread_id, run.thread_id, first_position, writer_id, writer_id)
        is_claimed, may_run = await self._run_statements(
            (_CLAIM.format(next=_NEXT_POSITION, held=holds_lease), values),
            (_SET_RUNNING.format(held=holds_lease), (run.run_id, writer_id)),
        )
        if not is_claimed:
            raise PersistenceError(
                f"Another process has taken over the thread {run.thread_id!r}.",
                fix="This run has stopped; follow the thread to see how it continues.",
            )
        return writer_id, may_run

    async def hand_over(self, run_id: str) -> None:
        """Record that this process is handing a claimed run over before the process ends."""
        await self._run(_RELEASE, (run_id,))

    async def poison_runs(self, max_losses: int) -> list[LoggedRun]:
        """Return failed runs whose processes died more than ``max_losses`` times, newest first."""
        return await self._select("status = 'failed' AND starts > ?", max_losses)

    async def get(self, run_id: str) -> LoggedRun | None:
        """Return the run with an ID, or ``None`` if it does not exist."""
        return next(iter(await self._select("run_id = ?", run_id)), None)

    async def unfinished_runs(self) -> list[LoggedRun]:
        """Return all open runs, newest first."""
        return await self._select("ended = 0")

    async def open_runs(self, thread_id: str) -> list[LoggedRun]:
        """Return the runs of a thread that have not ended, oldest first."""
        return (await self._select(f"thread_id = ? AND status IN {OPEN_STATUSES}", thread_id))[::-1]

    async def thread_runs(self, thread_id: str, limit: int = 20) -> list[LoggedRun]:
        """Return the most recent runs of a thread, newest first."""
        return await self._select("thread_id = ?", thread_id, limit=limit)

    async def owner_runs(self, owner: str, limit: int = _MAX_RUNS) -> list[LoggedRun]:
        """Return the most recent runs of an owner, newest first."""
        return await self._select("owner = ?", owner, limit=limit)

    async def waiting_threads(self, owner: str | None = None) -> list[str]:
        """Return the IDs of threads whose last run ended with a question, newest first.

        Args:
            owner: Return only threads of this owner.
        """
        return [run.thread_id for run in await self.waiting_runs(owner)]

    async def waiting_runs(self, owner: str | None = None) -> list[LoggedRun]:
        """Return the latest runs of threads that are waiting for an answer to a question."""
        return await self._select(
            "status = 'waiting' AND opened = (SELECT MAX(opened) FROM capgraph_runs AS other"
            " WHERE other.thread_id = capgraph_runs.thread_id)"
            + (" AND owner = ?" if owner is not None else ""),
            *([owner] if owner is not None else []),
        )

    async def finish(self, run_id: str, status: str) -> None:
        """Record the final status of a run. Later events of the run are not accepted."""
        # Written with the last events, so that a listener who sees the end finds the run ended.
        written = asyncio.get_running_loop().create_future()
        self._endings[run_id] = status, time.time(), written
        self._write_now.set()
        writer = self._ensure_writer()
        await asyncio.wait({written, writer}, return_when=asyncio.FIRST_COMPLETED)
        if not written.done():
            writer.result()
        if run_id in self._live:
            self._live[run_id].ended = True
        self.release(run_id)

    async def request_stop(self, thread_id: str, run_id: str | None = None) -> list[str]:
        """Mark the open runs of a thread, or one specific run, as stopping. Returns their IDs."""
        stopped = await self._run(
            "UPDATE capgraph_runs SET status = ?"
            f" WHERE thread_id = ? AND status IN {OPEN_STATUSES}"
            f"{' AND run_id = ?' if run_id is not None else ''} RETURNING run_id",
            (STOPPING, thread_id, *([run_id] if run_id is not None else [])),
        )
        return [run for (run,) in stopped]

    async def stopping_run_ids(self) -> list[str]:
        """Return the IDs of the runs for which a stop was requested."""
        return [run.run_id for run in await self._select("ended = 0 AND status = ?", STOPPING)]

    def release(self, run_id: str) -> None:
        """Stop writing events for a run that has ended or was taken over by another process."""
        if (live := self._live.pop(run_id, None)) is not None:
            live.is_released = True
            live.wake()

    async def drop_thread(self, thread_id: str) -> None:
        """Delete all runs of a thread from the log."""
        await self._delete("thread_id = ?", thread_id)

    async def prune(self, max_age_seconds: float) -> None:
        """Delete runs that ended more than ``max_age_seconds`` ago from the log."""
        await self._delete("ended > 0 AND ended < ?", time.time() - max_age_seconds)

    # --- events ---------------------------------------------------------------------------

    def append_events(
        self,
        run_id: str,
        events: Sequence[Mapping[str, Any]],
        shorten_event: Callable[[Any], Any] | None = None,
    ) -> None:
        """Number a run's events and queue them for writing.

        Listeners receive the events after they are written.

        Args:
            run_id: ID of the run.
            events: Events to append, in order.
            shorten_event: Function that shortens an event that exceeds the size limit.
        """
        live = self._live[run_id]
        for event in events:
            text = _text(event)
            if len(text) > _MAX_EVENT_CHARS and shorten_event is not None:
                text = _text(shorten_event(event))
            live.seq += 1
            self._queue.append((run_id, live.seq, text, live.writer_id))
        if live.has_listeners:
            self._write_now.set()
        if self._queue:
            self._ensure_writer()

    async def flush(self) -> None:
        """Wait until all queued events are written."""
        if self._writer is not None:
            self._write_now.set()
            await asyncio.shield(self._writer)

    def _ensure_writer(self) -> asyncio.Task[None]:
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        return self._writer

    async def _write(self) -> None:
        while self._queue or self._endings:
            if not self._write_now.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_BATCH_SECONDS):
                        await self._write_now.wait()
            self._write_now.clear()
            batch = [self._queue[place] for place in range(min(_BATCH_SIZE, len(self._queue)))]
            endings = dict(self._endings) if len(batch) == len(self._queue) else {}
            by_run: dict[tuple[str, str], tuple[int, list[str]]] = {}
            for run_id, seq, text, writer_id in batch:
                by_run.setdefault((run_id, writer_id), (seq, []))[1].append(text)
            statements = [self._insert_statement(by_run)] if by_run else []
            for run_id, (status, ended, _) in endings.items():
                live_run = self._live.get(run_id)
                owner = live_run.writer_id if live_run is not None else None
                statements.append((_FINISH, (status, ended, run_id, run_id, owner)))
            changed_names = {run_id for run_id, *_ in batch} | endings.keys()
            changed_names |= {
                self._live[name].thread for name in changed_names if name in self._live
            }
            try:
                await self._run_statements(*statements, notify=changed_names)
            except PersistenceError as exc:
                get_logger("framework", "run_log").warning(
                    "Events could not be written yet: %s", exc
                )
                await asyncio.sleep(_POLL_SECONDS)
                continue
            for run_id, _, text, _ in batch:
                self._queue.popleft()
                if (live := self._live.get(run_id)) is not None:
                    live.publish(text)
            for run_id, (_, _, written) in endings.items():
                del self._endings[run_id]
                if not written.done():
                    written.set_result(None)

    def _insert_statement(
        self, by_run: Mapping[tuple[str, str], tuple[int, list[str]]]
    ) -> Statement:
        # Rounding the number of rows up keeps the number of distinct statements small.
        rows = 1 << (len(by_run) - 1).bit_length()
        values: list[Any] = [
            part
            for (run_id, writer_id), (first, texts) in by_run.items()
            for part in (run_id, first + len(texts) - 1, self._pack(texts), writer_id)
        ]
        values += [None] * (4 * rows - len(values))
        return _INSERT_EVENTS.format(marks=", ".join(["(?, ?, ?, ?)"] * rows)), tuple(values)

    # --- listeners of other processes -----------------------------------------------------

    async def follow(self, run_id: str, after: int = 0) -> AsyncGenerator[list[tuple[int, str]]]:
        """Yield pages of a run's numbered events as JSON until the run ends.

        Each page contains the events that are available. Empty pages are yielded while there are no
        new events.

        Args:
            run_id: ID of the run.
            after: Number of the last event that the listener has received.
        """
        live: _LiveRun | None = None
        while not self.closing.is_set():
            live = self._live.get(run_id, live)
            if live is not None and live.is_released and not live.ended:
                live = None
            if live is not None and not live.has_listeners:
                live.has_listeners = True
                live.wake()
            over = live.ended if live is not None else await self._has_ended(run_id)
            changed = live.changed if live is not None else self._listener.event(run_id)
            page = live.after(after) if live is not None else None
            if page is None:
                page = await self._page(run_id, after)
            if page and not over and page[-1][1].startswith(_TERMINAL_PREFIXES):
                page.pop()  # yield the last event only when the run has ended
            if page:
                yield page
                after = page[-1][0]
                continue
            if over:
                return
            if live is not None:
                await changed.wait()
                if live.written <= after:
                    yield []
                continue
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    await changed.wait()
            except TimeoutError:
                yield []

    async def follow_thread(
        self, thread_id: str, after: int = 0
    ) -> AsyncGenerator[list[tuple[int, str, str]]]:
        """Yield pages of numbered events from all runs of a thread, indefinitely.

        Each item is a sequence number, a run ID, and an event as JSON. Each page contains the
        events that are available. Empty pages are yielded while there are no new events.

        Args:
            thread_id: ID of the thread.
            after: Number of the last event that the listener has received.
        """
        while not self.closing.is_set():
            changed = self._listener.event(thread_id)
            found = await self._run(_THREAD_EVENTS, (after, thread_id, _PAGE))
            page = [(seq, run, text) for run, seq, text in self._unpack_events(found, after)]
            yield page
            if page:
                after = page[-1][0]
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await changed.wait()

    def close(self) -> None:
        """Disconnect all listeners, which may reconnect to another process."""
        self.closing.set()
        for live in self._live.values():
            live.wake()
        self._listener.close()
        if self._saver_tables is not None:
            self._tables.close()

    # --- rows -----------------------------------------------------------------------------

    async def _has_ended(self, run_id: str) -> bool:
        run = await self.get(run_id)
        return run is None or not run.is_open

    async def _page(self, run_id: str, after: int) -> list[tuple[int, str]]:
        found = await self._run(
            "SELECT run_id, seq, data FROM capgraph_run_events WHERE run_id = ? AND seq > ?"
            " ORDER BY seq LIMIT ?",
            (run_id, after, _PAGE),
        )
        return [(seq, text) for _, seq, text in self._unpack_events(found, after)]

    def _unpack_events(
        self, rows: list[tuple[Any, ...]], after: int
    ) -> Iterator[tuple[str, int, str]]:
        """Yield the run ID, number, and text of each event after a sequence number.

        Each row stores several events and the number of the last one.
        """
        for run_id, last, data in rows:
            texts = self._events(data)
            for number, text in enumerate(texts, int(last) - len(texts) + 1):
                if number > after:
                    after = number
                    yield run_id, number, text

    async def _select(
        self, condition: str, *values: Any, limit: int = _MAX_RUNS
    ) -> list[LoggedRun]:
        found = await self._run(
            f"SELECT {_COLUMNS} FROM capgraph_runs WHERE {condition}"
            " ORDER BY opened DESC, run_id LIMIT ?",
            (*values, limit),
        )
        return [self._read(row) for row in found]

    async def _run_statements(
        self, *statements: Statement, notify: Collection[str] = ()
    ) -> list[bool]:
        """Run several SQL statements, and return which of them changed rows.

        On PostgreSQL, the statements are combined into one.

        Args:
            *statements: Statements with parameters. Each must return the rows that it changed.
            notify: Names to notify listeners of other processes about.
        """
        if not self._listener.can_notify:
            return [bool(await self._run(*part)) for part in statements]
        parts_sql = ", ".join(f"part{n} AS ({part})" for n, (part, _) in enumerate(statements))
        counts_sql = ", ".join(
            f"(SELECT count(*) FROM part{n}) > 0 AS is{n}" for n in range(len(statements))
        )
        values = [value for _, parameters in statements for value in parameters]
        if notify:
            # One value keeps the number of distinct statements small.
            counts_sql += (
                f", (SELECT count(pg_notify('{CHANNEL}', name)) FROM unnest(?::text[]) name)"
            )
            values.append(list(notify))
        rows = await self._run(f"WITH {parts_sql} SELECT {counts_sql}", tuple(values))
        return list(rows[0][: len(statements)])

    async def _run(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        await self._open_tables()
        return (await self._tables.run(statement, values))[1]

    async def _open_tables(self) -> None:
        if not self._ready:
            if self._tables is self._saver_tables is not None:
                self._tables = await self._saver_tables.relaxed_durability()
            self._ready = True

    async def _delete(self, condition: str, *values: Any) -> None:
        gone = f"SELECT run_id FROM capgraph_runs WHERE {condition}"
        for table in ("capgraph_run_events", "capgraph_run_places"):
            await self._run(f"DELETE FROM {table} WHERE run_id IN ({gone})", values)
        await self._run(f"DELETE FROM capgraph_runs WHERE {condition}", values)

    def _read(self, row: tuple[Any, ...]) -> LoggedRun:
        run_id, thread_id, owner, status, opened, ended, request, starts = row
        try:
            request_data = self._unpack(request)
        except PersistenceError as exc:
            request_data = {
                "caller": {},
                "unreadable": [exc.message, exc.fix],
            }  # must not hide other runs
        return LoggedRun(run_id, thread_id, owner, status, opened, ended, request_data, starts)

    def _events(self, text: str) -> list[str]:
        try:
            return list(self._unpack(text))
        except PersistenceError as exc:
            lost = {"type": "CUSTOM", "name": "capgraph.unreadable", "value": str(exc)}
            return [_text(lost)]

    def _pack(self, value: Any) -> str:
        return serialize_to_text(self._serde, value)

    def _unpack(self, text: str) -> Any:
        return deserialize_text(self._serde, text, "of a run")


_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode
