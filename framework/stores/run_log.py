"""What a server's runs are and what they told: numbered events, kept beside the threads.

A run outlives whoever listens to it, so what it tells is written down first and read from here.
Events of all runs are written together, as many as there are at the moment: a listener sees none
that a restart could lose.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from configs.logger import get_logger
from framework.base.errors import PersistenceError
from framework.base.ports import Rows
from framework.stores.reading import readable
from framework.stores.rows import OwnRows, rows_of

OPEN = ("queued", "running")
"""What a run's status says until it has ended."""

_RUNS = """CREATE TABLE IF NOT EXISTS capgraph_runs (
    run_id TEXT PRIMARY KEY,
    thread_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    status TEXT NOT NULL,
    opened DOUBLE PRECISION NOT NULL,
    ended DOUBLE PRECISION NOT NULL,
    request TEXT NOT NULL
)"""
_EVENTS = """CREATE TABLE IF NOT EXISTS capgraph_run_events (
    run_id TEXT NOT NULL,
    seq BIGINT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (run_id, seq)
)"""
_BY_THREAD = "CREATE INDEX IF NOT EXISTS capgraph_runs_thread ON capgraph_runs (thread_id)"
_COLUMNS = "run_id, thread_id, owner, status, opened, ended, request"
_PAGE = 200
_MOST = 10_000
_AT_ONCE = 500
_TAIL = 256
"""Events of a run that are kept at hand for listeners who are up to date."""
_LOOK_SECONDS = 1.0
"""How often a listener looks for what another process wrote."""
_QUIET_SECONDS = 15.0
"""How often a listener is given nothing, so that it is seen whether it is still there."""
_IN_MEMORY = 1000
"""Ended runs that are kept where there is no database."""


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """A run as it is kept.

    Attributes:
        run_id: Names it.
        thread_id: The saver's name of its thread.
        owner: Whose it is.
        status: ``queued``, ``running``, or how its turn ended.
        opened: When it was asked for, in seconds since the epoch.
        ended: When it ended; 0 while it goes on.
        request: What was asked for, and by whom; enough to begin it again.
    """

    run_id: str
    thread_id: str
    owner: str
    status: str = "queued"
    opened: float = field(default_factory=time.time)
    ended: float = 0.0
    request: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.status in OPEN


class _Live:
    """A run of this process: its last events, and who waits for the next one."""

    def __init__(self, seq: int, kept: int | None) -> None:
        self.seq, self.written = seq, seq
        self.tail: deque[str] = deque(maxlen=kept)
        self.changed = asyncio.Event()
        self.over = False

    def publish(self, text: str) -> None:
        self.written += 1
        self.tail.append(text)
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def after(self, seq: int) -> list[tuple[int, str]] | None:
        """Return what is at hand after a number; ``None`` where it is further back."""
        first = self.written - len(self.tail)
        if seq < first:
            return None
        return [
            (first + 1 + place, self.tail[place])
            for place in range(seq - first, min(len(self.tail), seq - first + _PAGE))
        ]


class RunLog:
    """The runs of a saver's threads and what they told.

    Args:
        saver: Where the threads are; its database keeps the runs, and with one that is in memory
            they are in memory.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self._saver_rows = rows_of(saver)
        self._rows: Rows | None = self._saver_rows
        self._serde: Any = saver.serde
        self._known: dict[str, LoggedRun] = {}
        self._live: dict[str, _Live] = {}
        self._waiting: deque[tuple[str, int, str]] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._ready = False
        self.closing = asyncio.Event()

    # --- runs -----------------------------------------------------------------------------

    async def open(self, run: LoggedRun) -> None:
        """Keep a new run."""
        if self._rows is None:
            self._known[run.run_id] = run
            for old in [one for one in self._known.values() if not one.is_open][:-_IN_MEMORY]:
                self._forget(old.run_id)
        else:
            values = (run.run_id, run.thread_id, run.owner, run.status, run.opened, run.ended)
            await self._run(
                f"INSERT INTO capgraph_runs ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*values, self._packed(dict(run.request))),
            )
        await self.take_up(run.run_id)

    async def take_up(self, run_id: str) -> list[dict[str, Any]]:
        """Go on with the numbers of a run in this process; returns what it has told so far."""
        told: list[dict[str, Any]] = []
        seq = 0
        while self._rows is not None and (page := await self._page(run_id, seq)):
            told += [json.loads(text) for _, text in page]
            seq = page[-1][0]
        self._live[run_id] = _Live(seq, None if self._rows is None else _TAIL)
        return told

    async def get(self, run_id: str) -> LoggedRun | None:
        """Return a run; ``None`` when there is none."""
        if self._rows is None:
            return self._known.get(run_id)
        found = await self._run(f"SELECT {_COLUMNS} FROM capgraph_runs WHERE run_id = ?", (run_id,))
        return self._read(found[0]) if found else None

    async def unfinished(self) -> list[LoggedRun]:
        """Return the runs that have not ended, the latest first."""
        known = [run for run in self._known.values() if run.is_open]
        return known[::-1] + await self._where(f"status IN {OPEN}")

    async def of_thread(self, thread_id: str, limit: int = 20) -> list[LoggedRun]:
        """Return the last runs of a thread, the latest first."""
        known = [run for run in self._known.values() if run.thread_id == thread_id]
        return known[: -limit - 1 : -1] + await self._where("thread_id = ?", thread_id, limit=limit)

    async def of_owner(self, owner: str, limit: int = _MOST) -> list[LoggedRun]:
        """Return the last runs of an owner, the latest first."""
        known = [run for run in self._known.values() if run.owner == owner]
        return known[: -limit - 1 : -1] + await self._where("owner = ?", owner, limit=limit)

    async def waiting(self, owner: str | None = None) -> list[str]:
        """Name the threads whose last run ended with a question, the latest first.

        Args:
            owner: Only threads of this one.
        """
        last = {run.thread_id: run for run in self._known.values() if owner in {None, run.owner}}
        known = [run for run in last.values() if run.status == "waiting"][::-1]
        known += await self._where(
            "status = 'waiting' AND opened = (SELECT MAX(opened) FROM capgraph_runs AS other"
            " WHERE other.thread_id = capgraph_runs.thread_id)"
            + (" AND owner = ?" if owner is not None else ""),
            *([owner] if owner is not None else []),
        )
        return [run.thread_id for run in known]

    async def set_status(self, run_id: str, status: str) -> None:
        """Say how far a run is; one that has ended tells nothing more."""
        if status not in OPEN:
            await self.flush()
        ended = 0.0 if status in OPEN else time.time()
        if run_id in self._known:
            self._known[run_id] = replace(self._known[run_id], status=status, ended=ended)
        await self._run(
            "UPDATE capgraph_runs SET status = ?, ended = ? WHERE run_id = ?",
            (status, ended, run_id),
        )
        if ended:
            self.leave(run_id)

    def leave(self, run_id: str) -> None:
        """Tell no more of a run in this process: it has ended, or another one goes on with it."""
        live = self._live.get(run_id)
        if live is not None:
            live.over = True
            live.wake()
            if self._rows is not None:
                del self._live[run_id]

    async def drop_thread(self, thread_id: str) -> None:
        """Forget the runs of a thread."""
        for run in [one for one in self._known.values() if one.thread_id == thread_id]:
            self._forget(run.run_id)
        mine = "SELECT run_id FROM capgraph_runs WHERE thread_id = ?"
        await self._run(f"DELETE FROM capgraph_run_events WHERE run_id IN ({mine})", (thread_id,))
        await self._run("DELETE FROM capgraph_runs WHERE thread_id = ?", (thread_id,))

    async def prune(self, seconds: float) -> None:
        """Forget the runs that ended longer ago."""
        before = time.time() - seconds
        for run in [one for one in self._known.values() if 0 < one.ended < before]:
            self._forget(run.run_id)
        old = "SELECT run_id FROM capgraph_runs WHERE ended > 0 AND ended < ?"
        await self._run(f"DELETE FROM capgraph_run_events WHERE run_id IN ({old})", (before,))
        await self._run("DELETE FROM capgraph_runs WHERE ended > 0 AND ended < ?", (before,))

    # --- events ---------------------------------------------------------------------------

    def tell(self, run_id: str, events: Sequence[Mapping[str, Any]]) -> None:
        """Number events of a run; they are written soon, and listeners have them then."""
        live = self._live[run_id]
        for event in events:
            text = json.dumps(event, ensure_ascii=False, separators=(",", ":"), default=str)
            live.seq += 1
            if self._rows is None:
                live.publish(text)
            else:
                self._waiting.append((run_id, live.seq, text))
        if self._waiting and (self._writer is None or self._writer.done()):
            self._writer = asyncio.create_task(self._write())

    async def flush(self) -> None:
        """Wait until everything that was told is written."""
        if self._writer is not None:
            await asyncio.shield(self._writer)

    async def _write(self) -> None:
        while self._waiting:
            batch = [self._waiting[place] for place in range(min(_AT_ONCE, len(self._waiting)))]
            marks = ", ".join(["(?, ?, ?)"] * len(batch))
            values = [
                part for run_id, seq, text in batch for part in (run_id, seq, self._packed(text))
            ]
            try:
                await self._run(
                    f"INSERT INTO capgraph_run_events (run_id, seq, data) VALUES {marks}"
                    " ON CONFLICT DO NOTHING",
                    tuple(values),
                )
            except PersistenceError as exc:
                get_logger("framework", "run_log").warning("Events wait to be written: %s", exc)
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            for run_id, _, text in batch:
                self._waiting.popleft()
                if (live := self._live.get(run_id)) is not None:
                    live.publish(text)

    async def follow(self, run_id: str, after: int = 0) -> AsyncIterator[list[tuple[int, str]]]:
        """Yield the events of a run with their numbers, as JSON, until the run has told its last.

        They come as many at a time as there are; none at all now and then, where nothing happens.

        Args:
            run_id: The run.
            after: The number of the last event that the listener has.
        """
        while not self.closing.is_set():
            live = self._live.get(run_id)
            over = live.over if live is not None else await self._has_ended(run_id)
            changed = live.changed if live is not None else self.closing
            page = live.after(after) if live is not None else None
            if page is None:
                page = await self._page(run_id, after)
            if page:
                yield page
                after = page[-1][0]
                continue
            if over:
                return
            try:
                async with asyncio.timeout(_QUIET_SECONDS if live is not None else _LOOK_SECONDS):
                    await changed.wait()
            except TimeoutError:
                yield []

    def close(self) -> None:
        """Let all listeners go: the process ends, and they come again."""
        self.closing.set()
        for live in self._live.values():
            live.wake()
        if isinstance(self._rows, OwnRows):
            self._rows.close()

    # --- rows -----------------------------------------------------------------------------

    async def _has_ended(self, run_id: str) -> bool:
        run = await self.get(run_id)
        return run is None or not run.is_open

    async def _page(self, run_id: str, after: int) -> list[tuple[int, str]]:
        found = await self._run(
            "SELECT seq, data FROM capgraph_run_events WHERE run_id = ? AND seq > ?"
            " ORDER BY seq LIMIT ?",
            (run_id, after, _PAGE),
        )
        return [(int(seq), self._unpacked(data)) for seq, data in found]

    async def _where(self, condition: str, *values: Any, limit: int = _MOST) -> list[LoggedRun]:
        found = await self._run(
            f"SELECT {_COLUMNS} FROM capgraph_runs WHERE {condition}"
            " ORDER BY opened DESC, run_id LIMIT ?",
            (*values, limit),
        )
        return [self._read(row) for row in found]

    async def _run(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if self._rows is None:
            return []
        if not self._ready:
            if self._rows is self._saver_rows and self._saver_rows is not None:
                self._rows = await self._saver_rows.beside()
            for definition in (_RUNS, _EVENTS, _BY_THREAD):
                await self._rows.table(definition)
            self._ready = True
        return (await self._rows.run(statement, values))[1]

    def _forget(self, run_id: str) -> None:
        self._known.pop(run_id, None)
        self._live.pop(run_id, None)

    def _read(self, row: tuple[Any, ...]) -> LoggedRun:
        run_id, thread_id, owner, status, opened, ended, request = row
        return LoggedRun(run_id, thread_id, owner, status, opened, ended, self._unpacked(request))

    # As text of the saver's own serializer: encrypted where checkpoints are.
    def _packed(self, value: Any) -> str:
        kind, data = self._serde.dumps_typed(value)
        return f"{kind}:{base64.b64encode(data).decode()}"

    def _unpacked(self, text: str) -> Any:
        kind, _, data = text.partition(":")
        with readable("of the runs"):
            return self._serde.loads_typed((kind, base64.b64decode(data)))
