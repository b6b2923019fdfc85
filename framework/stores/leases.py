"""Who runs a thread: one row for each thread that is being run, beside the checkpoints.

A lease is taken when a run begins and given back when it ends or waits for a person. On one
machine it ends with the process that holds it, which no clock is needed for; a holder on another
machine counts as gone when its heartbeat is late by the clock of the database.
"""

from __future__ import annotations

import asyncio
import os
import platform
import threading
import uuid
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from langgraph.checkpoint.base import BaseCheckpointSaver

from configs.logger import get_logger
from framework.base.errors import CapgraphError, PersistenceError, ThreadBusyError
from framework.base.ports import Rows
from framework.stores.rows import rows_of

T = TypeVar("T")

_TABLE = """CREATE TABLE IF NOT EXISTS capgraph_leases (
    thread_id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    machine TEXT NOT NULL,
    process TEXT NOT NULL,
    beat DOUBLE PRECISION NOT NULL
)"""
_INSERT = (
    "INSERT INTO capgraph_leases (thread_id, owner, machine, process, beat)"
    " VALUES (?, ?, ?, ?, {now}) ON CONFLICT (thread_id) DO NOTHING"
)
_SELECT = "SELECT owner, machine, process, {now} - beat FROM capgraph_leases WHERE thread_id = ?"
_REPLACE = (
    "UPDATE capgraph_leases SET owner = ?, machine = ?, process = ?, beat = {now}"
    " WHERE thread_id = ? AND owner = ?"
)
_TOUCH = "UPDATE capgraph_leases SET beat = {now} WHERE thread_id = ? AND owner = ?"
_DELETE = "DELETE FROM capgraph_leases WHERE thread_id = ? AND owner = ?"

# Every run of this process that is under way, whichever graph and saver it uses.
_under_way: set[str] = set()
# By process id: a process that was split off is another one.
_process: dict[int, tuple[str, str]] = {}
_KEPT = "_capgraph_leases"


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a lease.

    Attributes:
        owner: Identifies the run.
        machine: Identifies the machine since it was started.
        process: Process id and the moment it began.
        age: Seconds since the last heartbeat, by the clock of the database.
    """

    owner: str
    machine: str
    process: str
    age: float = 0.0

    def describe(self) -> str:
        """Say where it runs."""
        host = self.machine.partition("|")[0]
        return f"process {self.process.partition('|')[0]} on {host!r}"


@dataclass(slots=True)
class Lease:
    """A lease that a run of this process holds.

    Attributes:
        thread_id: The thread.
        holder: Who holds it.
        family: What tells that two graphs run inside one outer graph's step; they share a lease.
        users: How many graphs share it.
        taken: Whether it stands in the database.
        lost: Whether another process was found to have taken over.
    """

    thread_id: str
    holder: Holder
    family: str | None = None
    users: int = 1
    taken: bool = False
    lost: bool = False


def leases_of(saver: BaseCheckpointSaver[Any]) -> Leases:
    """Return the leases that belong to a saver: one object for every graph of this process.

    They are rows of the same database for SQLite and PostgreSQL. Any other saver gets leases in
    memory, which keep the runs of one process apart.

    Args:
        saver: An open saver.
    """
    # Kept with the saver, so that LangGraph's copies of it have the same.
    found = vars(saver).get(_KEPT)
    if found is None:
        found = vars(saver)[_KEPT] = Leases(rows_of(saver))
    return cast("Leases", found)


class Leases:
    """The leases of a saver's threads.

    Heartbeats are given in a thread of their own, on a connection of their own: code that blocks
    the event loop does not cost a run its lease.

    Attributes:
        ttl_seconds: After so long without a heartbeat a holder on another machine counts as gone.
        beat_seconds: Time between heartbeats.

    Args:
        rows: The saver's rows; ``None`` keeps leases in memory.
    """

    ttl_seconds = 30.0
    beat_seconds = 10.0

    def __init__(self, rows: Rows | None) -> None:
        self._rows = rows
        self._held: dict[str, Lease] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._heart: threading.Thread | None = None

    def held(self, thread_id: str) -> Lease | None:
        """Return the lease that this process holds through this saver, if any."""
        return self._held.get(thread_id)

    async def take(
        self, thread_id: str, *, family: str | None = None, outer: Collection[Lease] = ()
    ) -> Lease:
        """Take the lease of a thread, or share one.

        Args:
            thread_id: The thread.
            family: The step of an outer graph that this run is part of; runs of one step share.
            outer: Leases of the runs that this one is part of; they are shared.

        Raises:
            ThreadBusyError: Another run has the thread.
            PersistenceError: The lease cannot be kept.
        """
        known = _process.get(os.getpid())
        machine, process = known if known is not None else await _off_loop(this_process)
        mine = Lease(thread_id, Holder(uuid.uuid4().hex, machine, process), family)
        with self._lock:
            lease = self._held.setdefault(thread_id, mine)
            if lease is not mine:
                shared = any(lease is one for one in outer)
                if not shared and (family is None or lease.family != family):
                    raise busy(thread_id, lease.holder)
                lease.users += 1
                return lease
            _under_way.add(mine.holder.owner)
        try:
            if self._rows is not None:
                other = await self._insert(self._rows, mine)
                if other is not None:
                    raise busy(thread_id, other)
                mine.taken = True
        except BaseException:
            await asyncio.shield(self._forget(mine))
            raise
        self._keep_beating()
        return mine

    async def confirm(self, thread_id: str) -> None:
        """Make sure, in the database, that this process still has a thread that it runs.

        Raises:
            PersistenceError: Another process has taken over.
        """
        lease = self._held.get(thread_id)
        if lease is None:
            return
        if not lease.lost and self._rows is not None:
            count, _ = await self._rows.run(_TOUCH, (thread_id, lease.holder.owner))
            lease.lost = not count
        if lease.lost:
            raise PersistenceError(
                f"Another process has taken over the thread {thread_id!r}.",
                fix="Nothing more is run here; look at the thread to see how it goes on.",
            )

    async def release(self, lease: Lease) -> None:
        """Give a lease back, when its last user does."""
        with self._lock:
            lease.users -= 1
            if lease.users:
                return
        await asyncio.shield(self._forget(lease))

    async def _forget(self, lease: Lease) -> None:
        owner = lease.holder.owner
        try:
            lease.taken = False
            if self._rows is not None:
                await self._rows.run(_DELETE, (lease.thread_id, owner))
        except CapgraphError as exc:
            # The row is taken for stale by the next run: its owner is under way no more.
            _logger().warning("The lease was not given back: %s", exc)
        finally:
            with self._lock:
                self._held.pop(lease.thread_id, None)
                _under_way.discard(owner)
                if not self._held:
                    self._wake.set()

    async def _insert(self, rows: Rows, lease: Lease) -> Holder | None:
        await rows.table(_TABLE)
        claim = lease.holder
        who = (claim.owner, claim.machine, claim.process)
        while True:
            count, _ = await rows.run(_INSERT, (lease.thread_id, *who))
            if count:
                return None
            _, found = await rows.run(_SELECT, (lease.thread_id,))
            if not found:
                continue
            holder = Holder(*found[0])
            if not await _off_loop(lambda: self._is_free(holder, claim)):  # noqa: B023 - awaited
                return holder
            count, _ = await rows.run(_REPLACE, (*who, lease.thread_id, holder.owner))
            if count:
                return None

    def _is_free(self, holder: Holder, claim: Holder) -> bool:
        if holder.machine != claim.machine:
            return holder.age > self.ttl_seconds
        if holder.process == claim.process:
            return holder.owner not in _under_way
        return not _alive(holder.process)

    def _keep_beating(self) -> None:
        with self._lock:
            if self._rows is None or (self._heart is not None and self._heart.is_alive()):
                return
            self._wake.clear()
            self._heart = threading.Thread(
                target=self._beat, name="capgraph heartbeat", daemon=True
            )
            self._heart.start()

    def _beat(self) -> None:
        while True:
            self._wake.wait(self.beat_seconds)
            with self._lock:
                held = [lease for lease in self._held.values() if lease.taken and not lease.lost]
                if not self._held:
                    self._heart = None
                    return
                self._wake.clear()
            for lease in held:
                values = (lease.thread_id, lease.holder.owner)
                try:
                    found = self._rows.run_blocking(_TOUCH, values) if self._rows else None
                except CapgraphError as exc:
                    # While the database is away nobody else can take over either.
                    _logger().warning("No heartbeat: %s", exc)
                else:
                    # A lease that was given back meanwhile is not a lost one.
                    lease.lost = found is not None and not found[0] and lease.taken


def busy(thread_id: str, holder: Holder) -> ThreadBusyError:
    """Say that another run has a thread."""
    return ThreadBusyError(
        f"The thread {thread_id!r} is being run already, by {holder.describe()}.",
        fix="Wait until that run ends or asks a person, or end its process.",
    )


async def _off_loop(call: Callable[[], T]) -> T:
    """Read a few small files, in no pool that others could fill."""
    own = ThreadPoolExecutor(1, thread_name_prefix="capgraph lease")
    try:
        return await asyncio.get_running_loop().run_in_executor(own, call)
    finally:
        own.shutdown(wait=False)


def this_process() -> tuple[str, str]:
    """Read which machine and process this is."""
    pid = os.getpid()
    boot = _text("/proc/sys/kernel/random/boot_id")
    with suppress(OSError):
        # Process ids of another container mean nothing here.
        boot += os.readlink("/proc/self/ns/pid")
    _process[pid] = f"{platform.node()}|{boot}", f"{pid}|{_started(pid)}"
    return _process[pid]


def _alive(process: str) -> bool:
    number, _, started = process.partition("|")
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return _started(int(number)) == started


def _started(pid: int) -> str:
    """Return when a process began, so that its number used again is not taken for it."""
    line = _text(f"/proc/{pid}/stat")
    fields = line.rpartition(")")[2].split()
    if len(fields) < 20:
        return ""
    return "dead" if fields[0] in "ZX" else fields[19]


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _logger() -> Any:
    return get_logger("framework", "lease")
