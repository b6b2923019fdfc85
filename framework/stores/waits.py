"""Threads that wait, and events that came for them: beside the checkpoints.

An event is kept as a record of its thread, so it is encrypted as checkpoints are and goes with the
thread. Whoever sends and whoever takes write a record each, so neither can undo what the other did:
a signal has a number, and the taker's record says up to which number a turn has taken.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from framework.base.ports import Caller, Rows
from framework.langgraph_compat import open_interrupts
from framework.stores.records import NEVER, read_record, write_record
from framework.stores.rows import rows_of

_TABLE = """CREATE TABLE IF NOT EXISTS capgraph_waits (
    thread_id TEXT PRIMARY KEY,
    moment DOUBLE PRECISION NOT NULL,
    caller TEXT NOT NULL
)"""
_PUT = (
    "INSERT INTO capgraph_waits (thread_id, moment, caller) VALUES (?, ?, ?) ON CONFLICT (thread_id)"
    " DO UPDATE SET moment = excluded.moment, caller = excluded.caller"
)
_HURRY = "UPDATE capgraph_waits SET moment = 0 WHERE thread_id = ?"
_DROP = "DELETE FROM capgraph_waits WHERE thread_id = ? AND moment = ?"
_ALL = "SELECT thread_id, moment, caller FROM capgraph_waits ORDER BY moment, thread_id"
_ONE = "SELECT thread_id, moment, caller FROM capgraph_waits WHERE thread_id = ?"
_KEPT = "_capgraph_waits"
_SAFE = re.compile(r"[A-Za-z0-9_.-]{1,80}")


@dataclass(frozen=True, slots=True)
class Due:
    """A thread that waits.

    Attributes:
        thread_id: The thread.
        moment: When it is to be woken, in seconds since the epoch; 0 for now, because an event came.
        caller: Whose turn waits.
    """

    thread_id: str
    moment: float
    caller: Caller = field(default_factory=Caller)


class Waits:
    """Which threads of a saver wait, and until when.

    Args:
        rows: The saver's rows; ``None`` keeps them in memory.
    """

    def __init__(self, rows: Rows | None) -> None:
        self._rows = rows
        self._known: dict[str, Due] = {}

    async def put(self, due: Due) -> None:
        """Say that a thread waits."""
        if self._rows is None:
            self._known[due.thread_id] = due
            return
        caller = json.dumps(asdict(due.caller))
        await self._run(_PUT, (due.thread_id, due.moment, caller))

    async def hurry(self, thread_id: str) -> None:
        """Say that a thread that waits is to be woken now."""
        known = self._known.get(thread_id)  # only where there are no rows
        if known is not None:
            self._known[thread_id] = Due(thread_id, 0.0, known.caller)
        await self._run(_HURRY, (thread_id,))

    async def drop(self, due: Due) -> None:
        """Say that a thread waits no more, unless it waits anew."""
        if self._rows is None and self._known.get(due.thread_id) == due:
            del self._known[due.thread_id]
        await self._run(_DROP, (due.thread_id, due.moment))

    async def all(self) -> list[Due]:
        """Return the threads that wait, the soonest first."""
        if self._rows is None:
            return sorted(self._known.values(), key=lambda due: (due.moment, due.thread_id))
        return [_due(row) for row in await self._run(_ALL)]

    async def of(self, thread_id: str) -> Due | None:
        """Return what is known of one thread; ``None`` when it does not wait."""
        if self._rows is None:
            return self._known.get(thread_id)
        return next((_due(row) for row in await self._run(_ONE, (thread_id,))), None)

    async def _run(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if self._rows is None:
            return []
        await self._rows.table(_TABLE)
        return (await self._rows.run(statement, values))[1]


def _due(row: tuple[Any, ...]) -> Due:
    return Due(row[0], row[1], Caller(**json.loads(row[2])))


def waits_of(saver: BaseCheckpointSaver[Any]) -> Waits:
    """Return what is known of a saver's threads that wait."""
    # Kept with the saver, so that LangGraph's copies of it have the same.
    found = vars(saver).get(_KEPT)
    if found is None:
        found = vars(saver)[_KEPT] = Waits(rows_of(saver))
    return cast("Waits", found)


async def due(saver: BaseCheckpointSaver[Any], *, now: float | None = None) -> list[Due]:
    """Return the threads that wait, the soonest first.

    Whoever serves threads wakes those whose moment has come (:func:`framework.graph.wake`).

    Args:
        saver: An open saver.
        now: Only those that are to be woken at this moment; all when not given.

    >>> import asyncio
    >>> from langgraph.checkpoint.memory import InMemorySaver
    >>> asyncio.run(due(InMemorySaver(), now=time.time()))
    []
    """
    found = await waits_of(saver).all()
    return [one for one in found if now is None or one.moment <= now]


def open_waits(found: CheckpointTuple) -> list[dict[str, Any]]:
    """Return what the thread of a checkpoint waits for, without a person being asked."""
    values = [item.value for item in open_interrupts(found.pending_writes)]
    return [
        wait for value in values if isinstance(value, Mapping) for wait in value.get("waits") or ()
    ]


Read = Callable[[str], Awaitable[dict[str, Any]]]


async def signal_for(read: Read, key: str, turn: str) -> dict[str, Any] | None:
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


def taken(key: str, turn: str, sent: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return name and content of the record that a turn took a signal."""
    return f"taken/{_named(key)}", {"turn": turn, "number": sent["number"]}


async def keep_signal(
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

    if await signal_for(read, key, turn) is not None:
        return False
    before = (await read(f"signal/{_named(key)}")).get("number", 0)
    record = {"key": key, "value": value, "number": before + 1, "at": time.time()}
    await write_record(saver, thread_id, f"signal/{_named(key)}", record, builds_on=NEVER)
    return True


def _named(key: str) -> str:
    return key if _SAFE.fullmatch(key) else hashlib.sha256(key.encode()).hexdigest()[:32]
