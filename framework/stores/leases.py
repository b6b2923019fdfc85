"""Leases that allow one run per thread, stored next to the checkpoints.

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
_active_leases: dict[str, Lease] = {}
_LOCK = threading.Lock()
# By process ID, because a forked process is a different one.
_identities: dict[int, tuple[str, str]] = {}
_MACHINE_VARIABLE = "CAPGRAPH_MACHINE"
_TRUST_INTERVALS = 1.5
"""Number of heartbeat intervals for which an owner trusts its last heartbeat. A process that takes
over a late lease observes it for as long, so the two never overlap, even if the database's clock is
wrong.
"""


class LeaseOwner(NamedTuple):
    """Process and run that hold a lease on a thread.

    Attributes:
        owner_id: ID of the run.
        machine: ID of the machine since its last boot.
        process: Process ID and start time.
        heartbeat_at: Time of the last heartbeat, by the database's clock.
        age: Seconds since the last heartbeat, by the database's clock.
    """

    owner_id: str
    machine: str
    process: str
    heartbeat_at: float = 0.0
    age: float = 0.0

    def describe(self) -> str:
        """Describe the lease owner's process and host for error messages."""
        host = self.machine.partition("|")[0]
        return f"process {self.process.partition('|')[0]} on {host!r}"


@dataclass(slots=True)
class Lease:
    """Exclusive lease on a thread, held by a run in this process.

    Attributes:
        thread_id: ID of the thread.
        owner: Owner of the lease.
        leases: ``Leases`` object that acquired the lease.
        share_key: Key of the outer step. Graphs nested in the same step of an outer graph share
            the lease.
        share_count: Number of graphs that share the lease.
        is_acquired: True if the lease is stored in the database.
        is_lost: True if another process has taken over the thread.
        confirmed_at: Time of the last confirmation by the database, in seconds since boot.
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
    """Manager of the exclusive leases on a saver's threads.

    A separate thread with its own connection sends the heartbeats, so code that blocks the
    event loop does not cause a lease to expire.

    Attributes:
        ttl_seconds: Seconds without a heartbeat after which an owner is late.
        heartbeat_seconds: Seconds between heartbeats.

    Args:
        tables: Tables in the saver's database. ``None`` if the database is unknown, and leases
            exclude only other runs in this process.
        saver: Saver that stores the threads.
    """

    def __init__(
        self, tables: SqlTables | None, saver: BaseCheckpointSaver[Any] | None = None
    ) -> None:
        self._saver = saver
        self.ttl_seconds: float = 30.0
        self.heartbeat_seconds: float = 10.0
        self._tables = tables
        self._leases: dict[str, Lease] = {}
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        # Last heartbeat of processes that were found silent. A process sends the heartbeats of all
        # its leases at once, so a very different time belongs to another boot or clock.
        self._silent_processes: dict[tuple[str, str], float] = {}
        # By owner ID: the late heartbeat, and the time at which it was found.
        self._late_heartbeats: BoundedDict[str, tuple[float, float]] = BoundedDict(256)

    def configure(self, settings: ScaleSettings) -> None:
        """Set the lease duration and heartbeat interval from the scale settings."""
        self.ttl_seconds, self.heartbeat_seconds = (
            settings.lease_seconds,
            settings.heartbeat_interval,
        )

    def find_held(self, thread_id: str) -> Lease | None:
        """Return the lease that this process holds on a thread with this saver, or ``None``."""
        if (own_lease := self._leases.get(thread_id)) is not None:
            return own_lease
        # Another graph with the same saver may have acquired it.
        for lease in [*_active_leases.values()]:
            if lease.thread_id == thread_id and is_same_saver(lease.leases._saver, self._saver):
                return lease
        return None

    async def acquire(
        self, thread_id: str, *, share_key: str | None = None, outer_leases: Collection[Lease] = ()
    ) -> Lease:
        """Acquire the lease on a thread, or share a lease that a related run already holds.

        Args:
            thread_id: ID of the thread.
            share_key: Key of the outer graph's step that contains this run. Runs with the same key
                share the lease.
            outer_leases: Leases held by the enclosing runs, which can also be shared.

        Raises:
            ThreadBusyError: Another run holds the lease.
            PersistenceError: The lease cannot be stored.
        """
        machine, process = await self.identity()
        new_lease = Lease(
            thread_id, LeaseOwner(uuid.uuid4().hex, machine, process), self, share_key
        )
        with _LOCK:
            if (lease := self.find_held(thread_id)) is not None:
                shared = any(lease is outer for outer in outer_leases)
                if not shared and (share_key is None or lease.share_key != share_key):
                    raise thread_busy_error(thread_id, lease.owner)
                lease.share_count += 1
                return lease
            self._leases[thread_id] = _active_leases[new_lease.owner.owner_id] = new_lease
        try:
            if self._tables is not None:
                current_owner = await self._insert(self._tables, new_lease)
                if current_owner is not None:
                    raise thread_busy_error(thread_id, current_owner)
                new_lease.is_acquired = True
        except BaseException:
            await asyncio.shield(self._delete(new_lease))
            raise
        self._start_heartbeats()
        return new_lease

    async def confirm(self, thread_id: str, *, force_query: bool = True) -> None:
        """Raise an error if this process no longer holds its lease on a thread.

        Args:
            thread_id: ID of the thread.
            force_query: True to always query the database. If false, the database is queried only
                when the last heartbeat is late.

        Raises:
            PersistenceError: Another process took over the thread, or the database is
                unreachable.
        """
        lease = self.find_held(thread_id)
        if lease is None or not lease.is_acquired or self._tables is None:
            return
        while not lease.is_lost and (force_query or not self._is_fresh(lease)):
            asked_at = self._now()
            count, _ = await self._tables.run(_TOUCH, (thread_id, lease.owner.owner_id))
            self._record_check(lease, bool(count), asked_at)
            force_query = False
        if lease.is_lost:
            raise PersistenceError(
                f"Another process has taken over the thread {thread_id!r}.",
                fix="This run has stopped; follow the thread to see how it continues.",
            )

    def _is_fresh(self, lease: Lease) -> bool:
        return self._now() - lease.confirmed_at < _TRUST_INTERVALS * self.heartbeat_seconds

    @staticmethod
    def _record_check(lease: Lease, exists: bool, checked_at: float) -> None:
        if exists:
            lease.confirmed_at = max(lease.confirmed_at, checked_at)
        # A lease that was released in the meantime is not lost.
        elif lease.is_acquired:
            lease.is_lost = True

    async def release(self, lease: Lease) -> None:
        """Release one use of a shared lease, and delete the lease after its last use."""
        with _LOCK:
            lease.share_count -= 1
            if lease.share_count:
                return
        await asyncio.shield(lease.leases._delete(lease))

    async def _delete(self, lease: Lease) -> None:
        owner = lease.owner.owner_id
        try:
            lease.is_acquired = False
            if self._tables is not None:
                await self._tables.run(_DELETE, (lease.thread_id, owner))
        except CapgraphError as exc:
            # The next run treats the row as stale, because its owner is no longer active.
            _logger().warning("A lease was not released: %s", exc)
        finally:
            with _LOCK:
                self._leases.pop(lease.thread_id, None)
                _active_leases.pop(owner, None)
                if not self._leases:
                    self._wake.set()

    async def _insert(self, tables: SqlTables, lease: Lease) -> LeaseOwner | None:
        new_owner = lease.owner
        new_row = (new_owner.owner_id, new_owner.machine, new_owner.process)
        late_owner: LeaseOwner | None = None
        while True:
            lease.confirmed_at = self._now()
            count, _ = await tables.run(_INSERT, (lease.thread_id, *new_row))
            if count:
                return None
            _, found = await tables.run(_SELECT, (lease.thread_id,))
            if not found:
                continue
            owner = LeaseOwner(*found[0])
            is_expired = await self._is_expired(owner, new_owner)
            if is_expired is False:
                return owner
            process_key = (owner.machine, owner.process)
            is_silent = (
                abs(owner.heartbeat_at - self._silent_processes.get(process_key, 0))
                <= self.heartbeat_seconds
            )
            if is_expired is None and not is_silent:
                if late_owner is None or late_owner.heartbeat_at != owner.heartbeat_at:
                    late_owner = owner
                    await asyncio.sleep(_TRUST_INTERVALS * self.heartbeat_seconds)
                    continue
                self._silent_processes[process_key] = owner.heartbeat_at
                await tables.end_stale_connections(self.ttl_seconds)
            values = (*new_row, lease.thread_id, owner.owner_id, owner.heartbeat_at)
            lease.confirmed_at = self._now()
            count, _ = await tables.run(_REPLACE, values)
            if count:
                return None

    async def _is_expired(self, owner: LeaseOwner, new_owner: LeaseOwner) -> bool | None:
        """Check whether a lease owner is gone.

        Returns True if the owner's run or process has ended, ``None`` if only its heartbeat is
        late, and False otherwise.
        """
        if owner.machine == new_owner.machine:
            if owner.process == new_owner.process:
                return owner.owner_id not in _active_leases
            if not await self._is_alive(owner.process):
                return True
        # A heartbeat far in the future is from before the clock was set back.
        return None if abs(owner.age) > self.ttl_seconds else False

    async def has_ended(self, owner: LeaseOwner) -> bool:
        """Return True if a lease owner's run ended without a release or lost its thread.

        A late heartbeat may resume, so the owner must be late in two calls that are 1.5 heartbeat
        intervals apart.

        Args:
            owner: Recorded owner of the lease. If the owner ID is empty, only the process is
                checked.
        """
        machine, process = await self.identity()
        is_own_process = owner.process == process
        if owner.machine == machine and not (is_own_process or await self._is_alive(owner.process)):
            return True
        if self._tables is None or not owner.owner_id or owner.owner_id in _active_leases:
            return False
        _, found = await self._tables.run(_AGE, (owner.owner_id,))
        if not found or abs(found[0][1]) <= self.ttl_seconds:
            return not found
        heartbeat, now = found[0][0], self._now()
        first_late = self._late_heartbeats.setdefault(owner.owner_id, (heartbeat, now))
        if first_late[0] != heartbeat:
            self._late_heartbeats[owner.owner_id] = (heartbeat, now)
        return (
            first_late[0] == heartbeat
            and now - first_late[1] >= _TRUST_INTERVALS * self.heartbeat_seconds
        )

    async def is_held(self, thread_id: str) -> bool:
        """Return True if a run in any process holds the lease on a thread."""
        if self.find_held(thread_id) is not None:
            return True
        if self._tables is None:
            return False
        _, rows = await self._tables.run(_SELECT, (thread_id,))
        reader = LeaseOwner("", *await self.identity())
        return bool(rows) and await self._is_expired(LeaseOwner(*rows[0]), reader) is False

    async def identity(self) -> tuple[str, str]:
        """Return the unique IDs of this machine and this process."""
        known = _identities.get(os.getpid())
        return known if known is not None else await _run_in_thread(read_identity)

    async def _is_alive(self, process: str) -> bool:
        return await _run_in_thread(lambda: _is_process_alive(process))

    def _now(self) -> float:
        return seconds_since_boot()

    def _start_heartbeats(self) -> None:
        with _LOCK:
            if self._tables is None or (self._thread is not None and self._thread.is_alive()):
                return
            self._wake.clear()
            self._thread = threading.Thread(
                target=self._run_heartbeats, name="capgraph heartbeat", daemon=True
            )
            self._thread.start()

    def _run_heartbeats(self) -> None:
        while True:
            self._wake.wait(self.heartbeat_seconds)
            with _LOCK:
                if not self._leases:
                    self._thread = None
                    return
                self._wake.clear()
            self._send_heartbeats()

    def _send_heartbeats(self) -> None:
        with _LOCK:
            leases = [
                lease for lease in self._leases.values() if lease.is_acquired and not lease.is_lost
            ]
        if not leases or self._tables is None:
            return
        owners = tuple(lease.owner.owner_id for lease in leases)
        sent_at = self._now()
        marks = ", ".join("?" * len(owners))
        try:
            result = self._tables.run_blocking(_BEAT.format(marks=marks, now="{now}"), owners)
        except CapgraphError as exc:
            # While the database is unavailable, no other process can take over either.
            _logger().warning("A heartbeat was not sent: %s", exc)
            return
        if result is not None:
            renewed = {owner for (owner,) in result[1]}
            for lease in leases:
                self._record_check(lease, lease.owner.owner_id in renewed, sent_at)


def thread_busy_error(thread_id: str, owner: LeaseOwner) -> ThreadBusyError:
    """Create the error for a thread whose lease is held by another run."""
    return ThreadBusyError(
        f"The thread {thread_id!r} is already running in {owner.describe()}.",
        fix="Wait until that run ends or waits for a person, or end its process.",
    )


async def _run_in_thread(call: Callable[[], T]) -> T:
    """Run a blocking function in a new thread.

    Shared thread pools may be full, so the function gets a thread of its own. It should only
    read small files.
    """
    own = ThreadPoolExecutor(1, thread_name_prefix="capgraph lease")
    try:
        return await asyncio.get_running_loop().run_in_executor(own, call)
    finally:
        own.shutdown(wait=False)


def read_identity() -> tuple[str, str]:
    """Read the unique IDs of this machine and process.

    The machine ID changes with each boot. Set ``CAPGRAPH_MACHINE`` to override the machine's
    name.
    """
    pid = os.getpid()
    boot = _text("/proc/sys/kernel/random/boot_id")
    with suppress(OSError):
        # Process IDs are unique only within a container.
        boot += os.readlink("/proc/self/ns/pid")
    name = os.environ.get(_MACHINE_VARIABLE) or platform.node()
    _identities[pid] = f"{name}|{boot}", f"{pid}|{_read_process_start(pid)}"
    return _identities[pid]


def seconds_since_boot() -> float:
    """Return the seconds since boot, including time spent asleep on supported platforms."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _is_process_alive(process: str) -> bool:
    number, _, started = process.partition("|")
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return _read_process_start(int(number)) == started


def _read_process_start(pid: int) -> str:
    """Return the start time of a process.

    The start time distinguishes the process from a later process with the same ID.

    The start time distinguishes the process from a later process with the same ID.
    """
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
