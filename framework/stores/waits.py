"""Suspended threads and the signals sent to them, stored next to the checkpoints.

A signal is a record of its thread, so it is encrypted like checkpoints and deleted with the thread.
The sender and the receiver write separate records, so neither can overwrite the other: a signal has
a number, and the receiver's record contains the last number received.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from capgraph.base.ports import Caller
from capgraph.helpers.clock import SystemClock
from capgraph.langgraph_compat import open_interrupts
from capgraph.stores.atomic_values import FOREVER, AtomicValueStore
from capgraph.stores.records import NEVER_PRUNED, read_record, write_record

_PREFIX = "wait/"
_POSTPONE_SECONDS = 3600.0
_SAFE = re.compile(r"[A-Za-z0-9_.-]{1,80}")


class SuspendedThread(NamedTuple):
    """Suspended thread that waits for a point in time or an event.

    Attributes:
        thread_id: ID of the thread.
        wake_at: Time at which to wake the thread, in seconds since the epoch, or 0 if an event
            has arrived.
        caller: Caller of the suspended turn.
    """

    thread_id: str
    wake_at: float
    caller: Caller = Caller()


class SuspendedThreads:
    """Registry of the suspended threads of a saver and the times at which to wake them.

    Args:
        values: Value store for the entries.
    """

    def __init__(self, values: AtomicValueStore) -> None:
        self._values = values

    async def add(self, due: SuspendedThread) -> None:
        """Record that a thread is suspended, and when to wake the thread."""
        await self._change(due.thread_id, lambda _: [due.wake_at, asdict(due.caller)])

    async def wake_now(self, thread_id: str) -> None:
        """Mark a suspended thread as due immediately."""
        await self._change(thread_id, lambda known: known and [0.0, known[1]])

    async def postpone(self, thread_id: str) -> None:
        """Postpone the wake-up of a suspended thread that could not be resumed."""
        later = time.time() + _POSTPONE_SECONDS
        await self._change(thread_id, lambda known: known and [later, known[1]])

    async def drop(self, due: SuspendedThread) -> None:
        """Remove the entry of a suspended thread, unless the thread was suspended again."""
        same = due.wake_at
        await self._change(due.thread_id, lambda k: None if k and k[0] == same else k)

    async def all(self) -> list[SuspendedThread]:
        """Return all suspended threads, ordered by the time at which they are due."""
        cells, _now = await self._values.aread(_PREFIX, SystemClock())
        found = [_to_thread(name.removeprefix(_PREFIX), known) for name, known in cells.items()]
        return sorted(found, key=lambda due: (due.wake_at, due.thread_id))

    async def get(self, thread_id: str) -> SuspendedThread | None:
        """Return the entry of a suspended thread, or ``None`` if the thread is not suspended."""
        known = await self._change(thread_id, lambda known: known)
        return None if known is None else _to_thread(thread_id, known)

    async def _change(self, thread_id: str, compute: Callable[[Any], Any]) -> Any:
        def change(entry: Any, _now: float) -> tuple[Any, float, Any]:
            return compute(entry), FOREVER, entry

        return await self._values.achange(_PREFIX + thread_id, change, SystemClock())


def _to_thread(thread_id: str, entry: Any) -> SuspendedThread:
    return SuspendedThread(thread_id, entry[0], Caller(**entry[1]))


def open_waits(checkpoint_tuple: CheckpointTuple) -> list[dict[str, Any]]:
    """Return the times and events that the thread at a checkpoint is waiting for."""
    values = [item.value for item in open_interrupts(checkpoint_tuple.pending_writes)]
    return [
        wait for value in values if isinstance(value, Mapping) for wait in value.get("waits") or ()
    ]


RecordReader = Callable[[str], Awaitable[dict[str, Any]]]


async def find_signal(read: RecordReader, key: str, turn: str) -> dict[str, Any] | None:
    """Return the signal that a turn has received or can still receive, or ``None``.

    Args:
        read: Function that reads a record of the thread.
        key: Key of the event that the turn waits for.
        turn: ID of the turn.
    """
    signal = await read(f"signal/{_safe_name(key)}")
    if not signal:
        return None
    receipt = await read(f"taken/{_safe_name(key)}")
    return (
        signal
        if receipt.get("turn") == turn or receipt.get("number", 0) < signal["number"]
        else None
    )


def signal_receipt(key: str, turn: str, signal: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Build the record that marks a signal as received by a turn.

    Returns the name and the content of the record.
    """
    return f"taken/{_safe_name(key)}", {"turn": turn, "number": signal["number"]}


async def store_signal(
    saver: BaseCheckpointSaver[Any], thread_id: str, key: str, value: Any, turn: str
) -> bool:
    """Store a signal for a turn to receive. Returns False if the signal is not new.

    A signal that is already stored, or that the thread's current turn has received, is not new.

    Args:
        saver: An open saver.
        thread_id: ID of the thread.
        key: Key of the event that the signal reports.
        value: Payload of the signal, as plain data.
        turn: ID of the thread's last turn.
    """

    async def read(name: str) -> dict[str, Any]:
        return await read_record(saver, thread_id, name)

    if await find_signal(read, key, turn) is not None:
        return False
    last_number = (await read(f"signal/{_safe_name(key)}")).get("number", 0)
    record = {"key": key, "value": value, "number": last_number + 1, "at": time.time()}
    await write_record(
        saver, thread_id, f"signal/{_safe_name(key)}", record, parent_checkpoint_id=NEVER_PRUNED
    )
    return True


def _safe_name(key: str) -> str:
    return key if _SAFE.fullmatch(key) else hashlib.sha256(key.encode()).hexdigest()[:32]
