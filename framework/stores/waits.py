"""Threads that wait, and events that came for them: beside the checkpoints.

An event is kept as a record of its thread, so it is encrypted as checkpoints are and goes with the
thread. Whoever sends and whoever takes write a record each, so neither can undo what the other did:
a signal has a number, and the taker's record says up to which number a turn has taken.
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
_LATER_SECONDS = 3600.0
_SAFE = re.compile(r"[A-Za-z0-9_.-]{1,80}")


class SuspendedThread(NamedTuple):
    """A thread that waits.

    Attributes:
        thread_id: The thread.
        wake_at: When it is to be woken, in seconds since the epoch; 0 for now, because an event came.
        caller: Whose turn waits.
    """

    thread_id: str
    wake_at: float
    caller: Caller = Caller()


class SuspendedThreads:
    """Which threads of a saver wait, and until when.

    Args:
        values: Where they are stored.
    """

    def __init__(self, values: AtomicValueStore) -> None:
        self._values = values

    async def put(self, due: SuspendedThread) -> None:
        """Say that a thread waits."""
        await self._change(due.thread_id, lambda _: [due.wake_at, asdict(due.caller)])

    async def wake_now(self, thread_id: str) -> None:
        """Say that a thread that waits is to be woken now."""
        await self._change(thread_id, lambda known: known and [0.0, known[1]])

    async def postpone(self, thread_id: str) -> None:
        """Say that a thread that waits could not go on when it was woken: it is tried again later."""
        later = time.time() + _LATER_SECONDS
        await self._change(thread_id, lambda known: known and [later, known[1]])

    async def drop(self, due: SuspendedThread) -> None:
        """Say that a thread waits no more, unless it waits anew."""
        same = due.wake_at
        await self._change(due.thread_id, lambda k: None if k and k[0] == same else k)

    async def all(self) -> list[SuspendedThread]:
        """Return the threads that wait, the soonest first."""
        cells, _now = await self._values.aread(_PREFIX, SystemClock())
        found = [_due(name.removeprefix(_PREFIX), known) for name, known in cells.items()]
        return sorted(found, key=lambda due: (due.wake_at, due.thread_id))

    async def get(self, thread_id: str) -> SuspendedThread | None:
        """Return what is known of one thread; ``None`` when it does not wait."""
        known = await self._change(thread_id, lambda known: known)
        return None if known is None else _due(thread_id, known)

    async def _change(self, thread_id: str, work: Callable[[Any], Any]) -> Any:
        def change(known: Any, _now: float) -> tuple[Any, float, Any]:
            return work(known), FOREVER, known

        return await self._values.achange(_PREFIX + thread_id, change, SystemClock())


def _due(thread_id: str, known: Any) -> SuspendedThread:
    return SuspendedThread(thread_id, known[0], Caller(**known[1]))


def open_waits(checkpoint_tuple: CheckpointTuple) -> list[dict[str, Any]]:
    """Return what the thread of a checkpoint waits for, without a person being asked."""
    values = [item.value for item in open_interrupts(checkpoint_tuple.pending_writes)]
    return [
        wait for value in values if isinstance(value, Mapping) for wait in value.get("waits") or ()
    ]


RecordReader = Callable[[str], Awaitable[dict[str, Any]]]


async def find_signal(read: RecordReader, key: str, turn: str) -> dict[str, Any] | None:
    """Return the signal that a turn may take, or has taken; ``None`` when there is none.

    Args:
        read: Reads a record of the thread.
        key: Key of the event.
        turn: The turn.
    """
    sent = await read(f"signal/{_named(key)}")
    if not sent:
        return None
    taken = await read(f"taken/{_named(key)}")
    return sent if taken.get("turn") == turn or taken.get("number", 0) < sent["number"] else None


def signal_receipt(key: str, turn: str, sent: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return name and content of the record that a turn took a signal."""
    return f"taken/{_named(key)}", {"turn": turn, "number": sent["number"]}


async def store_signal(
    saver: BaseCheckpointSaver[Any], thread_id: str, key: str, value: Any, turn: str
) -> bool:
    """Keep a signal until a turn takes it; tells whether it is a new one.

    One that is kept already, or that the thread's turn has taken, is the same one again.

    Args:
        saver: An open saver.
        thread_id: The thread.
        key: Key of the event.
        value: What comes with it, as plain data.
        turn: The last turn of the thread.
    """

    async def read(name: str) -> dict[str, Any]:
        return await read_record(saver, thread_id, name)

    if await find_signal(read, key, turn) is not None:
        return False
    before = (await read(f"signal/{_named(key)}")).get("number", 0)
    record = {"key": key, "value": value, "number": before + 1, "at": time.time()}
    await write_record(
        saver, thread_id, f"signal/{_named(key)}", record, parent_checkpoint_id=NEVER_PRUNED
    )
    return True


def _named(key: str) -> str:
    return key if _SAFE.fullmatch(key) else hashlib.sha256(key.encode()).hexdigest()[:32]
