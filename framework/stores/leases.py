"""Who runs a thread: one row for each thread that is being run, beside the checkpoints.

A lease is taken when a run begins and given back when it ends or waits for a person. On one
machine it ends with the process that holds it, which no clock is needed for. Any other holder (on
another machine, or frozen) has lost it when its heartbeat is late by the clock of the database and
stays so for longer than a beat: after a machine slept, or the database was away, all are late, and
those that live beat again.

Who was frozen and wakes may not know that the lease is lost. So whatever must not happen twice asks
:meth:`Leases.confirm` first, which trusts its last heartbeat no longer than others wait for one.
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

# The leases of every run of this process that is under way, by owner, whichever graph it uses.
_under_way: dict[str, Lease] = {}
_LOCK = threading.Lock()
# By process id: a process that was split off is another one.
_process: dict[int, tuple[str, str]] = {}
_MACHINE = "CAPGRAPH_MACHINE"
_TRUSTED = 1.5
"""For so many beats a holder goes by its last one; so long whoever takes a late lease has looked, so
that no clock of the database has to be right for the two to be one after the other."""


class LeaseOwner(NamedTuple):
    """Who has a lease.

    Attributes:
        owner_id: Identifies the run.
        machine: Identifies the machine since it was started.
        process: Process id and the moment it began.
        heartbeat_at: When its heart beat last, by the clock of the database.
        age: Seconds since then, by the same clock.
    """

    owner_id: str
    machine: str
    process: str
    heartbeat_at: float = 0.0
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
        owner: Who holds it.
        leases: Those of the graph that took it.
        share_key: What tells that two graphs run inside one outer graph's step; they share a lease.
        share_count: How many graphs share it.
        is_acquired: Whether it stands in the database.
        is_lost: Whether another process was found to have taken over.
        confirmed_at: When it was last asked for in the database and was there, in seconds since the
            machine was started.
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
    """The leases of a saver's threads.

    Heartbeats are given in a thread of their own, on a connection of their own: code that blocks
    the event loop does not cost a run its lease.

    Attributes:
        ttl_seconds: After so long without a heartbeat a holder counts as late.
        heartbeat_seconds: Time between heartbeats.

    Args:
        tables: Tables in the saver's database; ``None`` if that is unknown. Leases then exclude only
            runs of this process.
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
        # Machine and process to the beat after which it was found to be silent: all of its leases
        # beat at once. One that is far from it is of another time, or by another clock.
        self._silent: dict[tuple[str, str], float] = {}
        # Owner to the beat at which it was found late, and when.
        self._late: BoundedDict[str, tuple[float, float]] = BoundedDict(256)

    def configure(self, settings: ScaleSettings) -> None:
        """Keep the times that the settings say."""
        self.ttl_seconds, self.heartbeat_seconds = (
            settings.lease_seconds,
            settings.heartbeat_interval,
        )

    def find_held(self, thread_id: str) -> Lease | None:
        """Return the lease that this process holds through this saver, if any."""
        if (mine := self._held.get(thread_id)) is not None:
            return mine
        # Another graph over the same saver may have taken it.
        for lease in [*_under_way.values()]:
            if lease.thread_id == thread_id and is_same_saver(lease.leases._saver, self._saver):
                return lease
        return None

    async def acquire(
        self, thread_id: str, *, share_key: str | None = None, outer_leases: Collection[Lease] = ()
    ) -> Lease:
        """Take the lease of a thread, or share one.

        Args:
            thread_id: The thread.
            share_key: The step of an outer graph that this run is part of; runs of one step share.
            outer_leases: Leases of the runs that this one is part of; they are shared.

        Raises:
            ThreadBusyError: Another run has the thread.
            PersistenceError: The lease cannot be kept.
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
        """Make sure that this process still has a thread that it runs.

        Args:
            thread_id: The thread.
            force_query: Whether to ask the database in any case; else it is asked where the last heartbeat
                is late.

        Raises:
            PersistenceError: Another process has taken over, or nobody can say.
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
                fix="Nothing more is run here; look at the thread to see how it goes on.",
            )

    def _is_sure(self, lease: Lease) -> bool:
        return self._now() - lease.confirmed_at < _TRUSTED * self.heartbeat_seconds

    @staticmethod
    def _found(lease: Lease, there: bool, asked: float) -> None:
        if there:
            lease.confirmed_at = max(lease.confirmed_at, asked)
        # A lease that was given back meanwhile is not a lost one.
        elif lease.is_acquired:
            lease.is_lost = True

    async def release(self, lease: Lease) -> None:
        """Give a lease back, when its last user does."""
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
            # The row is taken for stale by the next run: its owner is under way no more.
            _logger().warning("The lease was not given back: %s", exc)
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
        """Tell whether a holder has lost its lease; ``None`` when it is late, which may pass."""
        if holder.machine == claim.machine:
            if holder.process == claim.process:
                return holder.owner_id not in _under_way
            if not await self._lives(holder.process):
                return True
        # A beat that lies far ahead is one from before the clock was set back.
        return None if abs(holder.age) > self.ttl_seconds else False

    async def has_ended(self, owner: LeaseOwner) -> bool:
        """Tell whether a run that held something has ended without giving it back.

        It is also over when it has lost its thread. One whose heartbeat is late may beat again, so
        it has to be found late twice, some beats apart.

        Args:
            owner: Its lease, as it was then; without an owner only its process is looked at.
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
        """Return which machine and process this is."""
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
            # While the database is away nobody else can take over either.
            _logger().warning("No heartbeat: %s", exc)
            return
        if found is not None:
            there = {owner for (owner,) in found[1]}
            for lease in held:
                self._found(lease, lease.owner.owner_id in there, began)


def thread_busy_error(thread_id: str, owner: LeaseOwner) -> ThreadBusyError:
    """Say that another run has a thread."""
    return ThreadBusyError(
        f"The thread {thread_id!r} is being run already, by {owner.describe()}.",
        fix="Wait until that run ends or asks a person, or end its process.",
    )


async def _off_loop(call: Callable[[], T]) -> T:
    """Read a few small files, in no pool that others could fill."""
    own = ThreadPoolExecutor(1, thread_name_prefix="capgraph lease")
    try:
        return await asyncio.get_running_loop().run_in_executor(own, call)
    finally:
        own.shutdown(wait=False)


def read_identity() -> tuple[str, str]:
    """Read which machine and process this is; ``CAPGRAPH_MACHINE`` names the machine."""
    pid = os.getpid()
    boot = _text("/proc/sys/kernel/random/boot_id")
    with suppress(OSError):
        # Process ids of another container mean nothing here.
        boot += os.readlink("/proc/self/ns/pid")
    name = os.environ.get(_MACHINE) or platform.node()
    _process[pid] = f"{name}|{boot}", f"{pid}|{_started(pid)}"
    return _process[pid]


def seconds_since_boot() -> float:
    """Return the seconds since the machine was started, those it slept included where it can say."""
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
