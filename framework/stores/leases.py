"""Leases that allow one run per thread, stored beside the checkpoints.

A run acquires a lease when it starts, and releases it when it ends or waits for a person. A lease
expires in one of two ways. If its owner was a process on this machine, it expires when that process
ends; no clock is involved. Otherwise, its heartbeat must be late by the database's clock and stay
late for another 1.5 heartbeat intervals. After a machine slept or the database was unavailable, all
heartbeats are late, and live owners get the chance to send one.

A process that was frozen may not know that it lost its lease. Code must therefore call
:meth:`Leases.confirm` before an action that must not happen twice. That method trusts the last
heartbeat for no longer than other processes wait for one.
"""

from __future__ import annotations

import asyncio
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver

from capgraph.base.errors import CapgraphError, PersistenceError, ThreadBusyError
from capgraph.configs.bounded_dict import BoundedDict
from capgraph.configs.logger import get_logger
from capgraph.langgraph_compat import is_same_saver
from capgraph.stores.database import SqlTables

if TYPE_CHECKING:
    from capgraph.configs.settings import ScaleSettings

T = TypeVar("T")

_INSERT = (
    "INSERT INTO capgraph_leases (thread_id, owner, machine, process, beat)"
    " VALUES (?, ?, ?, ?, {now}) ON CONFLICT (thread_id) DO NOTHING"
)
_SELECT = (
    "SELECT owner, machine, process, beat, {now} - beat FROM capgraph_leases WHERE thread_id = ?"
)
_AGE = "SELECT beat, {now} - beat FROM capgraph_leases WHERE owner = ?"
_REPLACE = (
    "UPDATE capgraph_leases SET owner = ?, machine = ?, process = ?, beat = {now}"
    " WHERE thread_id = ? AND owner = ? AND beat = ?"
)
_TOUCH = "UPDATE capgraph_leases SET beat = {now} WHERE thread_id = ? AND owner = ?"
_BEAT = "UPDATE capgraph_leases SET beat = {now} WHERE owner IN ({marks}) RETURNING owner"
_DELETE = "DELETE FROM capgraph_leases WHERE thread_id = ? AND owner = ?"

# Leases of all active runs of this process, by owner ID.
_under_way: dict[str, Lease] = {}
_LOCK = threading.Lock()
# By process ID, because a forked process is a different one.
_process: dict[int, tuple[str, str]] = {}
_MACHINE = "CAPGRAPH_MACHINE"
_TRUSTED = 1.5
"""Number of heartbeat intervals for which an owner trusts its last heartbeat. A process that takes
over a late lease observes it for as long, so the two never overlap, even if the database's clock is
wrong.
"""


class LeaseOwner(NamedTuple):
    """Owner of a lease.

    Attributes:
        owner_id: ID of the run.
        machine: ID of the machine since its last boot.
        process: Process ID and start time.
        heartbeat_at: Time of the last heartbeat, by the database's clock.
        age: Seconds since then, by the same clock.
    """

    owner_id: str
    machine: str
    process: str
    heartbeat_at: float = 0.0
    age: float = 0.0

    def describe(self) -> str:
        """Return a description of the process, for error messages."""
        host = self.machine.partition("|")[0]
        return f"process {self.process.partition('|')[0]} on {host!r}"


@dataclass(slots=True)
class Lease:
    """Lease held by a run of this process.

    Attributes:
        thread_id: ID of the thread.
        owner: Owner of the lease.
        leases: ``Leases`` object that acquired it.
        share_key: Key that graphs inside the same step of an outer graph have in common. They share
            the lease.
        share_count: Number of graphs that share the lease.
        is_acquired: True if the lease is stored in the database.
        is_lost: True if another process was found to have taken over.
        confirmed_at: Time at which the database last confirmed the lease, in seconds since boot.
    """

    thread_id: str
    owner: LeaseOwner
    leases: Leases = field(repr=False)
    share_key: str | None = None
    share_count: int = 1
    is_acquired: bool = False
    is_lost: bool = False
    confirmed_at: float = 0.0


class Leases:
    """Leases of a saver's threads.

    Heartbeats are sent from a separate thread and connection, so code that blocks the event loop
    does not lose its lease.

    Attributes:
        ttl_seconds: Seconds without a heartbeat after which an owner is late.
        heartbeat_seconds: Seconds between heartbeats.

    Args:
        tables: Tables in the saver's database; ``None`` if it is unknown. In that case, leases
            exclude only runs of this process.
        saver: The saver.
    """

    def __init__(
        self, tables: SqlTables | None, saver: BaseCheckpointSaver[Any] | None = None
    ) -> None:
        self._saver = saver
        self.ttl_seconds: float = 30.0
        self.heartbeat_seconds: float = 10.0
        self._rows = tables
        self._held: dict[str, Lease] = {}
        self._wake = threading.Event()
        self._heart: threading.Thread | None = None
        # Last heartbeat of processes that were found silent. A process sends the heartbeats of all
        # its leases at once, so a very different time belongs to another boot or clock.
        self._silent: dict[tuple[str, str], float] = {}
        # By owner ID: the late heartbeat, and the time at which it was found.
        self._late: BoundedDict[str, tuple[float, float]] = BoundedDict(256)

    def configure(self, settings: ScaleSettings) -> None:
        """Apply the lease times of the settings."""
        self.ttl_seconds, self.heartbeat_seconds = (
            settings.lease_seconds,
            settings.heartbeat_interval,
        )

    def find_held(self, thread_id: str) -> Lease | None:
        """Return the lease of a thread that this process holds through this saver, or ``None``."""
        if (mine := self._held.get(thread_id)) is not None:
            return mine
        # Another graph with the same saver may have acquired it.
        for lease in [*_under_way.values()]:
            if lease.thread_id == thread_id and is_same_saver(lease.leases._saver, self._saver):
                return lease
        return None

    async def acquire(
        self, thread_id: str, *, share_key: str | None = None, outer_leases: Collection[Lease] = ()
    ) -> Lease:
        """Acquire the lease of a thread, or share an existing one.

        Args:
            thread_id: ID of the thread.
            share_key: Key of the outer graph's step that this run is part of. Runs with the same
                key share the lease.
            outer_leases: Leases of the surrounding runs. They can be shared too.

        Raises:
            ThreadBusyError: Another run holds the lease.
            PersistenceError: The lease cannot be stored.
        """
        machine, process = await self.identity()
        mine = Lease(thread_id, LeaseOwner(uuid.uuid4().hex, machine, process), self, share_key)
        with _LOCK:
            if (lease := self.find_held(thread_id)) is not None:
                shared = any(lease is one for one in outer_leases)
                if not shared and (share_key is None or lease.share_key != share_key):
                    raise thread_busy_error(thread_id, lease.owner)
                lease.share_count += 1
                return lease
            self._held[thread_id] = _under_way[mine.owner.owner_id] = mine
        try:
            if self._rows is not None:
                other = await self._insert(self._rows, mine)
                if other is not None:
                    raise thread_busy_error(thread_id, other)
                mine.is_acquired = True
        except BaseException:
            await asyncio.shield(self._forget(mine))
            raise
        self._keep_beating()
        return mine

    async def confirm(self, thread_id: str, *, force_query: bool = True) -> None:
        """Raise unless this process still holds the lease of a thread that it runs.

        Args:
            thread_id: ID of the thread.
            force_query: True to always query the database. Otherwise, it is queried only if the
                last heartbeat is late.

        Raises:
            PersistenceError: Another process took over, or the database cannot be reached.
        """
        lease = self.find_held(thread_id)
        if lease is None or not lease.is_acquired or self._rows is None:
            return
        while not lease.is_lost and (force_query or not self._is_sure(lease)):
            began = self._now()
            count, _ = await self._rows.run(_TOUCH, (thread_id, lease.owner.owner_id))
            self._found(lease, bool(count), began)
            force_query = False
        if lease.is_lost:
            raise PersistenceError(
                f"Another process has taken over the thread {thread_id!r}.",
                fix="This run has stopped; follow the thread to see how it continues.",
            )

    def _is_sure(self, lease: Lease) -> bool:
        return self._now() - lease.confirmed_at < _TRUSTED * self.heartbeat_seconds

    @staticmethod
    def _found(lease: Lease, there: bool, asked: float) -> None:
        if there:
            lease.confirmed_at = max(lease.confirmed_at, asked)
        # A lease that was released in the meantime is not lost.
        elif lease.is_acquired:
            lease.is_lost = True

    async def release(self, lease: Lease) -> None:
        """Release a lease when its last user releases it."""
        with _LOCK:
            lease.share_count -= 1
            if lease.share_count:
                return
        await asyncio.shield(lease.leases._forget(lease))

    async def _forget(self, lease: Lease) -> None:
        owner = lease.owner.owner_id
        try:
            lease.is_acquired = False
            if self._rows is not None:
                await self._rows.run(_DELETE, (lease.thread_id, owner))
        except CapgraphError as exc:
            # The next run treats the row as stale, because its owner is no longer active.
            _logger().warning("A lease was not released: %s", exc)
        finally:
            with _LOCK:
                self._held.pop(lease.thread_id, None)
                _under_way.pop(owner, None)
                if not self._held:
                    self._wake.set()

    async def _insert(self, rows: SqlTables, lease: Lease) -> LeaseOwner | None:
        claim = lease.owner
        who = (claim.owner_id, claim.machine, claim.process)
        late: LeaseOwner | None = None
        while True:
            lease.confirmed_at = self._now()
            count, _ = await rows.run(_INSERT, (lease.thread_id, *who))
            if count:
                return None
            _, found = await rows.run(_SELECT, (lease.thread_id,))
            if not found:
                continue
            holder = LeaseOwner(*found[0])
            gone = await self._is_gone(holder, claim)
            if gone is False:
                return holder
            place = (holder.machine, holder.process)
            known = abs(holder.heartbeat_at - self._silent.get(place, 0)) <= self.heartbeat_seconds
            if gone is None and not known:
                if late is None or late.heartbeat_at != holder.heartbeat_at:
                    late = holder
                    await asyncio.sleep(_TRUSTED * self.heartbeat_seconds)
                    continue
                self._silent[place] = holder.heartbeat_at
                await rows.end_stale_connections(self.ttl_seconds)
            values = (*who, lease.thread_id, holder.owner_id, holder.heartbeat_at)
            lease.confirmed_at = self._now()
            count, _ = await rows.run(_REPLACE, values)
            if count:
                return None

    async def _is_gone(self, holder: LeaseOwner, claim: LeaseOwner) -> bool | None:
        """Return whether an owner has lost its lease, or ``None`` if its heartbeat is only late."""
        if holder.machine == claim.machine:
            if holder.process == claim.process:
                return holder.owner_id not in _under_way
            if not await self._lives(holder.process):
                return True
        # A heartbeat far in the future is from before the clock was set back.
        return None if abs(holder.age) > self.ttl_seconds else False

    async def has_ended(self, owner: LeaseOwner) -> bool:
        """Return whether the run of an owner ended without releasing its lease, or lost its thread.

        A late heartbeat may resume. The owner must therefore be late in two calls that are 1.5
        heartbeat intervals apart.

        Args:
            owner: Owner of the lease, as it was recorded. If the owner ID is empty, only the
                process is checked.
        """
        machine, process = await self.identity()
        mine = owner.process == process
        if owner.machine == machine and not (mine or await self._lives(owner.process)):
            return True
        if self._rows is None or not owner.owner_id or owner.owner_id in _under_way:
            return False
        _, found = await self._rows.run(_AGE, (owner.owner_id,))
        if not found or abs(found[0][1]) <= self.ttl_seconds:
            return not found
        beat, now = found[0][0], self._now()
        first = self._late.setdefault(owner.owner_id, (beat, now))
        if first[0] != beat:
            self._late[owner.owner_id] = (beat, now)
        return first[0] == beat and now - first[1] >= _TRUSTED * self.heartbeat_seconds

    async def identity(self) -> tuple[str, str]:
        """Return the IDs of this machine and process."""
        known = _process.get(os.getpid())
        return known if known is not None else await _off_loop(read_identity)

    async def _lives(self, process: str) -> bool:
        return await _off_loop(lambda: _alive(process))

    def _now(self) -> float:
        return seconds_since_boot()

    def _keep_beating(self) -> None:
        with _LOCK:
            if self._rows is None or (self._heart is not None and self._heart.is_alive()):
                return
            self._wake.clear()
            self._heart = threading.Thread(
                target=self._live, name="capgraph heartbeat", daemon=True
            )
            self._heart.start()

    def _live(self) -> None:
        while True:
            self._wake.wait(self.heartbeat_seconds)
            with _LOCK:
                if not self._held:
                    self._heart = None
                    return
                self._wake.clear()
            self._beat()

    def _beat(self) -> None:
        with _LOCK:
            held = [
                lease for lease in self._held.values() if lease.is_acquired and not lease.is_lost
            ]
        if not held or self._rows is None:
            return
        owners = tuple(lease.owner.owner_id for lease in held)
        began = self._now()
        marks = ", ".join("?" * len(owners))
        try:
            found = self._rows.run_blocking(_BEAT.format(marks=marks, now="{now}"), owners)
        except CapgraphError as exc:
            # While the database is unavailable, no other process can take over either.
            _logger().warning("A heartbeat was not sent: %s", exc)
            return
        if found is not None:
            there = {owner for (owner,) in found[1]}
            for lease in held:
                self._found(lease, lease.owner.owner_id in there, began)


def thread_busy_error(thread_id: str, owner: LeaseOwner) -> ThreadBusyError:
    """Return the error for a thread that another run holds."""
    return ThreadBusyError(
        f"The thread {thread_id!r} is already running in {owner.describe()}.",
        fix="Wait until that run ends or waits for a person, or end its process.",
    )


async def _off_loop(call: Callable[[], T]) -> T:
    """Run a function that reads small files in a thread outside all shared pools."""
    own = ThreadPoolExecutor(1, thread_name_prefix="capgraph lease")
    try:
        return await asyncio.get_running_loop().run_in_executor(own, call)
    finally:
        own.shutdown(wait=False)


def read_identity() -> tuple[str, str]:
    """Return the IDs of this machine and process.

    ``CAPGRAPH_MACHINE`` overrides the machine's name.
    """
    pid = os.getpid()
    boot = _text("/proc/sys/kernel/random/boot_id")
    with suppress(OSError):
        # Process IDs are unique only within a container.
        boot += os.readlink("/proc/self/ns/pid")
    name = os.environ.get(_MACHINE) or platform.node()
    _process[pid] = f"{name}|{boot}", f"{pid}|{_started(pid)}"
    return _process[pid]


def seconds_since_boot() -> float:
    """Return the seconds since boot, including time asleep if the platform reports it."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


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
    """Return the start time of a process, which tells it from a later one with the same ID."""
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
