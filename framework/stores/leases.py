"""Who runs a thread: one row for each thread that is being run, beside the checkpoints.

A lease is taken when a run begins and given back when it ends or waits for a person. On one
machine it ends with the process that holds it, which no clock is needed for; a holder on another
machine counts as gone when its heartbeat is late by the clock of the database.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from langgraph.checkpoint.base import BaseCheckpointSaver

from framework.base.errors import PersistenceError

TTL_SECONDS = 30.0
"""After so long without a heartbeat a holder on another machine counts as gone."""
BEAT_SECONDS = 10.0

_TABLE = """CREATE TABLE IF NOT EXISTS capgraph_leases (
    thread_id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    machine TEXT NOT NULL,
    process TEXT NOT NULL,
    beat DOUBLE PRECISION NOT NULL
)"""


@dataclass(frozen=True, slots=True)
class Claim:
    """Who asks for a lease.

    Attributes:
        owner: Identifies the run.
        machine: Identifies the machine since it was started.
        process: Process id and the moment it began.
        runs: Every run of this process that is under way.
    """

    owner: str
    machine: str
    process: str
    runs: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a lease.

    Attributes:
        owner: Identifies the run.
        machine: Identifies the machine.
        process: Process id and the moment it began.
        age: Seconds since the last heartbeat, by the clock of the database.
    """

    owner: str
    machine: str
    process: str
    age: float

    def describe(self) -> str:
        """Say where it runs."""
        host = self.machine.partition("|")[0]
        return f"process {self.process.partition('|')[0]} on {host!r}"


class LeaseTable(Protocol):
    """Keeps leases where the checkpoints are."""

    async def take(self, thread_id: str, claim: Claim) -> Holder | None:
        """Take the lease of a thread; returns who has it when it cannot be had."""

    async def beat(self, thread_id: str, owner: str) -> bool:
        """Say that the holder is alive; false when the lease is another's."""

    async def release(self, thread_id: str, owner: str) -> None:
        """Give the lease back."""


def lease_table(saver: BaseCheckpointSaver[Any]) -> LeaseTable:
    """Return the leases that belong to a saver.

    They are rows of the same database for SQLite and PostgreSQL. Any other saver gets leases in
    memory, which keep the runs of one process apart.
    """
    names = {cls.__name__ for cls in type(saver).__mro__}
    if "AsyncSqliteSaver" in names:
        return SqliteLeases(saver)
    if "AsyncPostgresSaver" in names:
        return PostgresLeases(saver)
    return MemoryLeases()


def is_free(holder: Holder, claim: Claim) -> bool:
    """Tell whether a lease may be taken from its holder. Looks at processes; may block."""
    if holder.machine != claim.machine:
        return holder.age > TTL_SECONDS
    if holder.process == claim.process:
        return holder.owner not in claim.runs
    return not _alive(holder.process)


class MemoryLeases:
    """Leases of one process."""

    def __init__(self) -> None:
        self._holders: dict[str, Claim] = {}

    async def take(self, thread_id: str, claim: Claim) -> Holder | None:
        """Take the lease of a thread; returns who has it when it cannot be had."""
        held = self._holders.setdefault(thread_id, claim)
        if held.owner == claim.owner:
            return None
        return Holder(held.owner, held.machine, held.process, 0.0)

    async def beat(self, thread_id: str, owner: str) -> bool:
        """Say that the holder is alive."""
        held = self._holders.get(thread_id)
        return held is not None and held.owner == owner

    async def release(self, thread_id: str, owner: str) -> None:
        """Give the lease back."""
        if await self.beat(thread_id, owner):
            del self._holders[thread_id]


class _Rows(ABC):
    """Leases as rows; a subclass says how a statement is run."""

    _insert = (
        "INSERT INTO capgraph_leases (thread_id, owner, machine, process, beat)"
        " VALUES ({0}, {0}, {0}, {0}, {now}) ON CONFLICT (thread_id) DO NOTHING"
    )
    _select = (
        "SELECT owner, machine, process, {now} - beat AS age FROM capgraph_leases"
        " WHERE thread_id = {0}"
    )
    _replace = (
        "UPDATE capgraph_leases SET owner = {0}, machine = {0}, process = {0}, beat = {now}"
        " WHERE thread_id = {0} AND owner = {0}"
    )
    _touch = "UPDATE capgraph_leases SET beat = {now} WHERE thread_id = {0} AND owner = {0}"
    _delete = "DELETE FROM capgraph_leases WHERE thread_id = {0} AND owner = {0}"

    def __init__(self, saver: Any) -> None:
        self._saver = saver
        self._ready = False

    async def take(self, thread_id: str, claim: Claim) -> Holder | None:
        """Take the lease of a thread; returns who has it when it cannot be had."""
        if not self._ready:
            await self._prepare()
            self._ready = True
        who = (claim.owner, claim.machine, claim.process)
        while True:
            count, _ = await self._run(self._insert, (thread_id, *who))
            if count:
                return None
            _, row = await self._run(self._select, (thread_id,))
            if row is None:
                continue
            holder = Holder(*row)
            if not await asyncio.to_thread(is_free, holder, claim):
                return holder
            count, _ = await self._run(self._replace, (*who, thread_id, holder.owner))
            if count:
                return None

    async def beat(self, thread_id: str, owner: str) -> bool:
        """Say that the holder is alive; false when the lease is another's."""
        count, _ = await self._run(self._touch, (thread_id, owner))
        return count > 0

    async def release(self, thread_id: str, owner: str) -> None:
        """Give the lease back."""
        await self._run(self._delete, (thread_id, owner))

    async def _prepare(self) -> None:
        await self._run(_TABLE, ())

    @abstractmethod
    async def _run(self, statement: str, values: tuple[Any, ...]) -> tuple[int, Any]:
        """Run one statement; return how many rows it touched and the first row it gave."""


class SqliteLeases(_Rows):
    """Leases beside the checkpoints of a SQLite saver, through its connection."""

    async def _prepare(self) -> None:
        await self._saver.setup()
        await super()._prepare()

    async def _run(self, statement: str, values: tuple[Any, ...]) -> tuple[int, Any]:
        text = statement.format("?", now=repr(time.time()))
        conn = self._saver.conn
        # The lock keeps this apart from the saver's own transactions.
        async with self._saver.lock:
            try:
                async with conn.execute(text, values) as cursor:
                    row = await cursor.fetchone() if text.startswith("SELECT") else None
                    await conn.commit()
                    return cursor.rowcount, row
            except sqlite3.Error as exc:
                with suppress(sqlite3.Error):
                    await conn.rollback()
                raise PersistenceError(
                    f"The lease of a thread cannot be kept: {exc}.",
                    fix="Look at the database; then run the thread again.",
                ) from exc


class PostgresLeases(_Rows):
    """Leases beside the checkpoints of a PostgreSQL saver, through its connection or pool."""

    async def _prepare(self) -> None:
        # Two processes that create it at once would collide in spite of IF NOT EXISTS.
        _, row = await self._run("SELECT to_regclass('capgraph_leases')::text", ())
        if row[0] is None:
            await self._run(
                f"DO $$ BEGIN PERFORM pg_advisory_xact_lock(7089056); {_TABLE}; END $$", ()
            )

    async def _run(self, statement: str, values: tuple[Any, ...]) -> tuple[int, Any]:
        patiently = getattr(self._saver, "patiently", None)
        text = statement.format("%s", now="extract(epoch from clock_timestamp())::float8")
        if patiently is None:
            return await self._once(text, values)
        found: tuple[int, Any] = await patiently(lambda: self._once(text, values))
        return found

    async def _once(self, text: str, values: tuple[Any, ...]) -> tuple[int, Any]:
        async with self._saver._cursor() as cursor:
            await cursor.execute(text, values or None)
            row = await cursor.fetchone() if text.startswith("SELECT") else None
            return cursor.rowcount, tuple(row.values()) if row is not None else None


@lru_cache(maxsize=4)
def this_process(pid: int) -> tuple[str, str]:
    """Return machine and process of the process with this id; reads files the first time."""
    boot = _text("/proc/sys/kernel/random/boot_id")
    with suppress(OSError):
        # Process ids of another container mean nothing here.
        boot += os.readlink("/proc/self/ns/pid")
    return f"{platform.node()}|{boot}", f"{pid}|{_started(pid)}"


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
