"""Steps that run on another worker than their turn: what they need, and what came of them.

An order that passes an engine names such a step and holds nothing of it. What was asked for and what
came of it lie here, in the database of the thread, written by the saver's own serializer: encrypted
where checkpoints are. So a step that ended while nobody waited for it is not run again, and one that
still runs is found by whoever goes on with its turn.

Who runs a step holds a lease (:func:`lease_of`), like who runs a thread. Who waits for it stands in
its row as the owner of the thread's lease: what runs the step makes sure that this owner still has
the thread before it acts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capgraph.base.errors import PersistenceError
from capgraph.base.ports import SqlExecutor
from capgraph.stores.channel_listener import CHANNEL, ChannelListener
from capgraph.stores.serialization import deserialize_text, serialize_to_text

_HOLDS = "EXISTS (SELECT 1 FROM capgraph_leases WHERE thread_id = ? AND owner = ?)"
_OPEN = (
    "INSERT INTO capgraph_steps (step_id, thread_id, room, turn, token, request, seconds, opened,"
    " begun, told, cancelled, ended, result)"
    " SELECT ?, ?, ?, ?, ?, ?, CAST(? AS DOUBLE PRECISION), {now}, 0, 0, 0, 0, ''"
    f" WHERE {_HOLDS}"
    " ON CONFLICT (step_id) DO UPDATE SET token = excluded.token, cancelled = 0"
)
_LOOK = (
    "SELECT begun, told, ended, result, (SELECT {now} - beat FROM capgraph_leases"
    " WHERE thread_id = ?) FROM capgraph_steps WHERE step_id = ?"
)
_BEGIN = (
    "UPDATE capgraph_steps SET begun = begun + 1 WHERE step_id = ? AND ended = 0"
    " AND cancelled = 0 RETURNING step_id, thread_id, request, seconds - ({now} - opened), told"
)
_FENCE = (
    "SELECT 1 FROM capgraph_steps s JOIN capgraph_leases l"
    " ON l.thread_id = s.thread_id AND l.owner = s.token"
    " WHERE s.step_id = ? AND s.cancelled = 0"
)
_END = (
    "UPDATE capgraph_steps SET ended = {now}, result = ?, request = ''"
    f" WHERE step_id = ? AND ended = 0 AND {_HOLDS} RETURNING step_id"
)
_LEASE = "capgraph-step/"
_KEPT_SECONDS = 7 * 86_400.0
_SWEEP_SHARE = 0.01
_MANY = 10_000


@dataclass(frozen=True, slots=True)
class StepStatus:
    """What is to be seen of a step.

    Attributes:
        attempts: How often a worker began it.
        event_count: How many events it has told.
        result: What came of it; ``None`` before it has ended.
        silent_seconds: Seconds since the worker that runs it gave a sign of life; ``None`` for no worker.
    """

    attempts: int
    event_count: int
    result: Mapping[str, Any] | None
    silent_seconds: float | None


@dataclass(frozen=True, slots=True)
class ClaimedStep:
    """A step that a worker begins.

    Attributes:
        thread_id: The thread.
        request: What is asked for.
        timeout_seconds: How long it may take; ``None`` for no bound.
        event_count: How many events an earlier worker told of it.
    """

    thread_id: str
    request: Mapping[str, Any]
    timeout_seconds: float | None
    event_count: int


def step_lease_name(step_id: str) -> str:
    """Return the name of the lease of a step."""
    return _LEASE + step_id


class StepResults:
    """The steps beside a saver's threads.

    Args:
        tables: The saver's rows.
        serde: Its serializer.
        listener: Notified of steps.

    Attributes:
        listener: As given.
    """

    def __init__(self, tables: SqlExecutor, serde: Any, listener: ChannelListener) -> None:
        self._rows = tables
        self._serde = serde
        self.listener: ChannelListener = listener
        self._turns: dict[tuple[str, str], str] = {}

    # --- who waits ------------------------------------------------------------------------

    async def create(
        self,
        step_id: str,
        *,
        thread_id: str,
        namespace: str,
        turn_id: str,
        lease_owner: str,
        request: Mapping[str, Any],
        timeout_seconds: float | None,
    ) -> None:
        """Keep what is asked for, or wait from now on for what somebody asked for before.

        Args:
            step_id: Names the step.
            thread_id: The thread.
            namespace: Which graph of the thread asks.
            turn_id: Its turn; what is kept of its earlier ones goes.
            lease_owner: Owner of the thread's lease.
            request: Plain data.
            timeout_seconds: How long it may take; ``None`` for no bound.

        Raises:
            PersistenceError: Another process has the thread.
        """
        if self._turns.get((thread_id, namespace)) != turn_id:
            await self._drop(
                "thread_id = ? AND room = ? AND turn <> ?", (thread_id, namespace, turn_id)
            )
            if len(self._turns) >= _MANY:
                self._turns.clear()
            self._turns[thread_id, namespace] = turn_id
        if random.random() < _SWEEP_SHARE:  # noqa: S311 - no secret
            await self._drop("ended > 0 AND ended < {now} - ?", (_KEPT_SECONDS,))
        values = (
            step_id,
            thread_id,
            namespace,
            turn_id,
            lease_owner,
            self._packed(request),
            timeout_seconds,
        )
        count, _ = await self._rows.run(_OPEN, (*values, thread_id, lease_owner))
        if not count:
            raise PersistenceError(
                f"Another process has taken over the thread {thread_id!r}.",
                fix="Nothing more is run here; look at the thread to see how it goes on.",
                stops_run=True,
            )

    async def exists(self, step_id: str) -> bool:
        """Tell whether anything is kept of a step."""
        statement = "SELECT 1 FROM capgraph_steps WHERE step_id = ?"
        return bool((await self._rows.run(statement, (step_id,)))[1])

    async def get_status(self, step_id: str) -> StepStatus:
        """Return how far a step is.

        Raises:
            PersistenceError: Nothing is kept of it any more: its thread was dropped, or another
                process that waits for it has forgotten it.
        """
        _, found = await self._rows.run(_LOOK, (step_lease_name(step_id), step_id))
        if not found:
            raise PersistenceError(
                f"What was kept of the step {step_id} is gone.",
                fix="Look at its thread: another process goes on with it, or it was dropped.",
                stops_run=True,
            )
        begun, told, ended, result, silent = found[0]
        return StepStatus(begun, told, self._unpacked(result) if ended else None, silent)

    async def events(self, step_id: str, after: int) -> list[tuple[int, dict[str, Any]]]:
        """Return what a step has told after a number."""
        _, found = await self._rows.run(
            "SELECT seq, data FROM capgraph_step_events WHERE step_id = ? AND seq > ? ORDER BY seq",
            (step_id, after),
        )
        return [(int(seq), self._unpacked(data)) for seq, data in found]

    async def withdraw(self, step_id: str, lease_owner: str) -> bool:
        """Take a step back; tells whether no worker had begun it."""
        count, _ = await self._rows.run(
            "DELETE FROM capgraph_steps WHERE step_id = ? AND token = ? AND begun = 0",
            (step_id, lease_owner),
        )
        return bool(count)

    async def cancel(self, step_id: str, lease_owner: str) -> None:
        """Have the worker that runs a step stop it, unless another process goes on with its turn."""
        await self._rows.run(
            "UPDATE capgraph_steps SET cancelled = 1 WHERE step_id = ? AND token = ? AND NOT EXISTS"
            " (SELECT 1 FROM capgraph_leases l WHERE l.thread_id = capgraph_steps.thread_id"
            " AND l.owner <> capgraph_steps.token)",
            (step_id, lease_owner),
        )

    async def cancel_thread(self, thread_id: str) -> None:
        """Have all steps of a thread stopped, also where nobody waits for them now."""
        await self._rows.run(
            "UPDATE capgraph_steps SET cancelled = 1 WHERE thread_id = ? AND ended = 0",
            (thread_id,),
        )

    async def drop(self, step_id: str, lease_owner: str) -> None:
        """Forget a step, unless somebody else waits for it: asked for again, it is to run again."""
        await self._drop("step_id = ? AND token = ?", (step_id, lease_owner))

    async def drop_thread(self, thread_id: str) -> None:
        """Forget the steps of a thread."""
        await self._drop("thread_id = ?", (thread_id,))

    # --- who works ------------------------------------------------------------------------

    async def claim(self, step_id: str) -> ClaimedStep | None:
        """Say that a worker begins a step; ``None`` when nobody wants it any more."""
        found = await self._told(_BEGIN, (step_id,))
        if not found:
            return None
        _, thread_id, request, seconds, told, *_ = found[0]
        return ClaimedStep(thread_id, self._unpacked(request), seconds, int(told))

    async def unclaim(self, step_id: str) -> None:
        """Say that a worker has not begun a step after all."""
        statement = "UPDATE capgraph_steps SET begun = begun - 1 WHERE step_id = ?"
        await self._rows.run(statement, (step_id,))

    async def has_waiting_turn(self, step_id: str) -> bool:
        """Tell whether whoever waits for a step still has the thread, and has not cancelled it."""
        _, found = await self._rows.run(_FENCE, (step_id,))
        return bool(found)

    async def is_cancelled(self, step_id: str) -> bool:
        """Tell whether a step is to stop."""
        _, found = await self._rows.run(
            "SELECT 1 FROM capgraph_steps WHERE step_id = ? AND cancelled = 0", (step_id,)
        )
        return not found

    async def append_events(
        self, step_id: str, first_seq: int, events: Sequence[Mapping[str, Any]]
    ) -> None:
        """Keep what a step tells; the first of the events has this number."""
        values = [
            part
            for place, event in enumerate(events)
            for part in (step_id, first_seq + place, self._packed(_plain(event)))
        ]
        marks = ", ".join(["(?, ?, ?)"] * len(events))
        await self._rows.run(
            f"INSERT INTO capgraph_step_events (step_id, seq, data) VALUES {marks}"
            " ON CONFLICT DO NOTHING",
            tuple(values),
        )
        await self._told(
            "UPDATE capgraph_steps SET told = ? WHERE step_id = ? RETURNING step_id",
            (first_seq + len(events) - 1, step_id),
        )

    async def finish(self, step_id: str, owner: str, result: Mapping[str, Any]) -> bool:
        """Keep what came of a step; tells whether the step's lease was still there.

        Args:
            step_id: The step.
            owner: Who holds its lease.
            result: Plain data.
        """
        values = (self._packed(result), step_id, step_lease_name(step_id), owner)
        return bool(await self._told(_END, values))

    # --- rows -----------------------------------------------------------------------------

    async def _drop(self, condition: str, values: tuple[Any, ...]) -> None:
        mine = f"SELECT step_id FROM capgraph_steps WHERE {condition}"
        await self._rows.run(f"DELETE FROM capgraph_step_events WHERE step_id IN ({mine})", values)
        await self._rows.run(f"DELETE FROM capgraph_steps WHERE {condition}", values)

    async def _told(self, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Run a statement that returns a step; whoever waits for it hears of it."""
        if self.listener.can_notify:
            told = f"SELECT *, pg_notify('{CHANNEL}', step_id) FROM put"
            statement = f"WITH put AS ({statement}) {told}"
        return (await self._rows.run(statement, values))[1]

    def _packed(self, value: Any) -> str:
        return serialize_to_text(self._serde, value)

    def _unpacked(self, text: str) -> Any:
        return deserialize_text(self._serde, text, "of the steps")


def _plain(event: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(event, ensure_ascii=False, default=str))
