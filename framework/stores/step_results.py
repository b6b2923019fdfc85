"""Requests, events, and results of steps that run on other workers.

A job in a queue contains only the ID of such a step. The request and the result are stored here, in
the database of the thread, with the saver's serializer: encrypted if checkpoints are. A finished
step is therefore not run again, and a resumed turn finds a step that is still running.

The worker of a step holds a lease (:func:`step_lease_name`). The row of the step contains the lease
owner of its thread. Before the worker acts, it verifies that this owner still holds the thread.
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

_HOLDS_LEASE = "EXISTS (SELECT 1 FROM capgraph_leases WHERE thread_id = ? AND owner = ?)"
_CREATE = (
    "INSERT INTO capgraph_steps (step_id, thread_id, room, turn, token, request, seconds, opened,"
    " begun, told, cancelled, ended, result)"
    " SELECT ?, ?, ?, ?, ?, ?, CAST(? AS DOUBLE PRECISION), {now}, 0, 0, 0, 0, ''"
    f" WHERE {_HOLDS_LEASE}"
    " ON CONFLICT (step_id) DO UPDATE SET token = excluded.token, cancelled = 0"
)
_SELECT_STATUS = (
    "SELECT begun, told, ended, result, (SELECT {now} - beat FROM capgraph_leases"
    " WHERE thread_id = ?) FROM capgraph_steps WHERE step_id = ?"
)
_CLAIM = (
    "UPDATE capgraph_steps SET begun = begun + 1 WHERE step_id = ? AND ended = 0"
    " AND cancelled = 0 RETURNING step_id, thread_id, request, seconds - ({now} - opened), told"
)
_HAS_WAITING_TURN = (
    "SELECT 1 FROM capgraph_steps s JOIN capgraph_leases l"
    " ON l.thread_id = s.thread_id AND l.owner = s.token"
    " WHERE s.step_id = ? AND s.cancelled = 0"
)
_FINISH = (
    "UPDATE capgraph_steps SET ended = {now}, result = ?, request = ''"
    f" WHERE step_id = ? AND ended = 0 AND {_HOLDS_LEASE} RETURNING step_id"
)
_LEASE_PREFIX = "capgraph-step/"
_RETENTION_SECONDS = 7 * 86_400.0
_SWEEP_SHARE = 0.01
_MAX_TURNS = 10_000


@dataclass(frozen=True, slots=True)
class StepStatus:
    """Progress of a step that runs on a remote worker.

    Attributes:
        attempts: Number of times that a worker started the step.
        event_count: Number of events that the step has emitted.
        result: Result of the step, or ``None`` until the step ends.
        silent_seconds: Seconds since the worker's last heartbeat, or ``None`` if the step has
            no worker.
    """

    attempts: int
    event_count: int
    result: Mapping[str, Any] | None
    silent_seconds: float | None


@dataclass(frozen=True, slots=True)
class ClaimedStep:
    """Remote step that a worker has claimed for execution.

    Attributes:
        thread_id: ID of the thread.
        request: Request that describes the step.
        timeout_seconds: Remaining time for the step. ``None`` means no limit.
        event_count: Number of events that earlier workers emitted for the step.
    """

    thread_id: str
    request: Mapping[str, Any]
    timeout_seconds: float | None
    event_count: int


def step_lease_name(step_id: str) -> str:
    """Return the name of a step's lease."""
    return _LEASE_PREFIX + step_id


class StepResults:
    """Requests and results of remote steps, stored in the database of a saver's threads.

    Args:
        tables: Tables of the saver's database.
        serde: Serializer of the saver.
        listener: Listener for notifications about steps.

    Attributes:
        listener: The listener.
    """

    def __init__(self, tables: SqlExecutor, serde: Any, listener: ChannelListener) -> None:
        self._tables = tables
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
        """Store the request for a remote step, or start waiting for a stored request.

        Args:
            step_id: ID of the step.
            thread_id: ID of the thread.
            namespace: Namespace of the graph that requests the step.
            turn_id: ID of the current turn. Steps of earlier turns in the namespace are deleted.
            lease_owner: ID of the owner of the thread's lease.
            request: Request for the step, as plain data.
            timeout_seconds: Time limit for the step. ``None`` means no limit.

        Raises:
            PersistenceError: Another process holds the thread.
        """
        if self._turns.get((thread_id, namespace)) != turn_id:
            await self._delete(
                "thread_id = ? AND room = ? AND turn <> ?", (thread_id, namespace, turn_id)
            )
            if len(self._turns) >= _MAX_TURNS:
                self._turns.clear()
            self._turns[thread_id, namespace] = turn_id
        if random.random() < _SWEEP_SHARE:  # noqa: S311 - not a secret
            await self._delete("ended > 0 AND ended < {now} - ?", (_RETENTION_SECONDS,))
        values = (
            step_id,
            thread_id,
            namespace,
            turn_id,
            lease_owner,
            self._pack(request),
            timeout_seconds,
        )
        count, _ = await self._tables.run(_CREATE, (*values, thread_id, lease_owner))
        if not count:
            raise PersistenceError(
                f"Another process has taken over the thread {thread_id!r}.",
                fix="This run has stopped; follow the thread to see how it continues.",
                stops_run=True,
            )

    async def exists(self, step_id: str) -> bool:
        """Return True if a remote step is stored in the database."""
        statement = "SELECT 1 FROM capgraph_steps WHERE step_id = ?"
        return bool((await self._tables.run(statement, (step_id,)))[1])

    async def get_status(self, step_id: str) -> StepStatus:
        """Return the progress of a remote step.

        Raises:
            PersistenceError: The step is no longer stored, because its thread or another process
                deleted it.
        """
        _, found = await self._tables.run(_SELECT_STATUS, (step_lease_name(step_id), step_id))
        if not found:
            raise PersistenceError(
                f"The step {step_id} is no longer stored: its thread was deleted or taken over.",
                fix="Follow the thread to see how it continues.",
                stops_run=True,
            )
        begun, told, ended, result, silent = found[0]
        return StepStatus(begun, told, self._unpack(result) if ended else None, silent)

    async def events(self, step_id: str, after: int) -> list[tuple[int, dict[str, Any]]]:
        """Return the events of a step after a sequence number, each with its number."""
        _, found = await self._tables.run(
            "SELECT seq, data FROM capgraph_step_events WHERE step_id = ? AND seq > ? ORDER BY seq",
            (step_id, after),
        )
        return [(int(seq), self._unpack(data)) for seq, data in found]

    async def withdraw(self, step_id: str, lease_owner: str) -> bool:
        """Delete a step that no worker has started. Returns True if the step was deleted."""
        count, _ = await self._tables.run(
            "DELETE FROM capgraph_steps WHERE step_id = ? AND token = ? AND begun = 0",
            (step_id, lease_owner),
        )
        return bool(count)

    async def cancel(self, step_id: str, lease_owner: str) -> None:
        """Ask the worker of a step to stop, unless another process has taken over the turn."""
        await self._tables.run(
            "UPDATE capgraph_steps SET cancelled = 1 WHERE step_id = ? AND token = ? AND NOT EXISTS"
            " (SELECT 1 FROM capgraph_leases l WHERE l.thread_id = capgraph_steps.thread_id"
            " AND l.owner <> capgraph_steps.token)",
            (step_id, lease_owner),
        )

    async def cancel_thread(self, thread_id: str) -> None:
        """Ask the workers that are running a thread's steps to stop."""
        await self._tables.run(
            "UPDATE capgraph_steps SET cancelled = 1 WHERE thread_id = ? AND ended = 0",
            (thread_id,),
        )

    async def drop(self, step_id: str, lease_owner: str) -> None:
        """Delete a step unless another process waits for it.

        A new request for the deleted step runs it again.
        """
        await self._delete("step_id = ? AND token = ?", (step_id, lease_owner))

    async def drop_thread(self, thread_id: str) -> None:
        """Delete all remote steps of a thread."""
        await self._delete("thread_id = ?", (thread_id,))

    # --- who works ------------------------------------------------------------------------

    async def claim(self, step_id: str) -> ClaimedStep | None:
        """Claim a step for a worker. Returns ``None`` if the step has ended or was canceled."""
        found = await self._run_and_notify(_CLAIM, (step_id,))
        if not found:
            return None
        _, thread_id, request, seconds, told, *_ = found[0]
        return ClaimedStep(thread_id, self._unpack(request), seconds, int(told))

    async def unclaim(self, step_id: str) -> None:
        """Undo the claim on a step that was not started."""
        statement = "UPDATE capgraph_steps SET begun = begun - 1 WHERE step_id = ?"
        await self._tables.run(statement, (step_id,))

    async def has_waiting_turn(self, step_id: str) -> bool:
        """Return True if the process that holds the thread is still waiting for the step."""
        _, found = await self._tables.run(_HAS_WAITING_TURN, (step_id,))
        return bool(found)

    async def is_cancelled(self, step_id: str) -> bool:
        """Return True if a step was canceled or is no longer stored."""
        _, found = await self._tables.run(
            "SELECT 1 FROM capgraph_steps WHERE step_id = ? AND cancelled = 0", (step_id,)
        )
        return not found

    async def append_events(
        self, step_id: str, first_seq: int, events: Sequence[Mapping[str, Any]]
    ) -> None:
        """Store events of a step, numbered consecutively from ``first_seq``."""
        values = [
            part
            for place, event in enumerate(events)
            for part in (step_id, first_seq + place, self._pack(_to_plain(event)))
        ]
        marks = ", ".join(["(?, ?, ?)"] * len(events))
        await self._tables.run(
            f"INSERT INTO capgraph_step_events (step_id, seq, data) VALUES {marks}"
            " ON CONFLICT DO NOTHING",
            tuple(values),
        )
        await self._run_and_notify(
            "UPDATE capgraph_steps SET told = ? WHERE step_id = ? RETURNING step_id",
            (first_seq + len(events) - 1, step_id),
        )

    async def finish(self, step_id: str, owner: str, result: Mapping[str, Any]) -> bool:
        """Store the result of a step. Returns False if the worker has lost the step's lease.

        Args:
            step_id: ID of the step.
            owner: ID of the owner of the step's lease.
            result: Result of the step, as plain data.
        """
        values = (self._pack(result), step_id, step_lease_name(step_id), owner)
        return bool(await self._run_and_notify(_FINISH, values))

    # --- rows -----------------------------------------------------------------------------

    async def _delete(self, condition: str, values: tuple[Any, ...]) -> None:
        selected = f"SELECT step_id FROM capgraph_steps WHERE {condition}"
        await self._tables.run(
            f"DELETE FROM capgraph_step_events WHERE step_id IN ({selected})", values
        )
        await self._tables.run(f"DELETE FROM capgraph_steps WHERE {condition}", values)

    async def _run_and_notify(
        self, statement: str, values: tuple[Any, ...]
    ) -> list[tuple[Any, ...]]:
        """Run an SQL statement, and notify the processes that wait for the steps it returns."""
        if self.listener.can_notify:
            notify = f"SELECT *, pg_notify('{CHANNEL}', step_id) FROM put"
            statement = f"WITH put AS ({statement}) {notify}"
        return (await self._tables.run(statement, values))[1]

    def _pack(self, value: Any) -> str:
        return serialize_to_text(self._serde, value)

    def _unpack(self, text: str) -> Any:
        return deserialize_text(self._serde, text, "of a step")


def _to_plain(event: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(event, ensure_ascii=False, default=str))
