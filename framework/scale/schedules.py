"""Schedules of turns: requests are stored with the threads, an engine triggers the turns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from capgraph.base.errors import PersistenceError, ValidationError
from capgraph.base.ports import Caller
from capgraph.scale.engine import Engine
from capgraph.stores.persistence import Persistence
from capgraph.stores.serialization import deserialize_text, serialize_to_text


@dataclass(frozen=True, slots=True)
class Schedule:
    """Schedule that starts a turn repeatedly.

    Attributes:
        id: ID of the schedule.
        cron: Cron expression with five fields, in UTC.
        message: Message of each turn.
        thread: ID of the thread; empty for a new thread each time.
        caller: Person who created the schedule. Each turn acts as this caller.
        rules: Rules of the creator's agent, from :meth:`~capgraph.scale.agent_rules.AgentRules.describe`.
            A worker with weaker rules leaves the turns to other workers. None means the rules of the
            worker that starts the turn.
        unreadable: Reason why the request cannot be decrypted; empty if it can.
    """

    id: str
    cron: str
    message: str
    thread: str = ""
    caller: Caller = field(default_factory=Caller)
    rules: Mapping[str, Any] | None = None
    unreadable: str = ""


class Schedules:
    """Schedules that are stored in a saver's database, encrypted like checkpoints.

    Args:
        saver: Open checkpoint saver whose database contains the project's tables.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self._tables, self._serde = Persistence.of(saver).tables, saver.serde

    async def add(self, schedule: Schedule, engine: Engine) -> None:
        """Store a schedule and register it with an engine, which starts its turns.

        Args:
            schedule: Schedule to store.
            engine: Engine that triggers the schedule's turns.

        Raises:
            ValidationError: The cron expression is invalid or the message is empty.
            PersistenceError: The database or the engine is unavailable.
        """
        from croniter import CroniterError, croniter  # a dependency of the workers extra

        if not schedule.message.strip():
            raise ValidationError("The message is empty.", fix="Pass a non-empty message.")
        try:
            matches = len(schedule.cron.split()) == 5 and croniter(schedule.cron).get_next(float)
        except CroniterError:
            matches = False
        if not matches:
            raise ValidationError(
                f"The cron expression {schedule.cron!r:.80} is invalid or never matches.",
                fix="Use five fields, in UTC: '0 7 * * *' is every day at 7:00.",
            )
        request = serialize_to_text(
            self._serde,
            [schedule.message, schedule.thread, asdict(schedule.caller), schedule.rules],
        )
        await self._run(
            "INSERT INTO capgraph_schedules (id, cron, request) VALUES (?, ?, ?)",
            (schedule.id, schedule.cron, request),
        )
        try:
            await engine.schedule(schedule.id, schedule.cron)
        except BaseException:
            await asyncio.shield(self._delete(schedule.id))
            raise

    async def list_all(self) -> Sequence[Schedule]:
        """Return the schedules, by ID."""
        return await self._find("")

    async def get(self, schedule_id: str) -> Schedule | None:
        """Return the schedule with an ID, or ``None`` if it does not exist."""
        return next(iter(await self._find(schedule_id)), None)

    async def _find(self, schedule_id: str) -> list[Schedule]:
        statement = (
            "SELECT id, cron, request FROM capgraph_schedules WHERE ? IN ('', id) ORDER BY id"
        )
        return [self._read(*row) for row in await self._run(statement, (schedule_id,))]

    def _read(self, name: str, cron: str, request: str) -> Schedule:
        try:
            stored = deserialize_text(self._serde, request, "of the schedules")
        except PersistenceError as exc:
            return Schedule(
                name, cron, "", unreadable=str(exc)
            )  # one unreadable row must not hide the others
        message, thread, caller, *rules = stored
        return Schedule(name, cron, message, thread, Caller(**caller), *rules)

    async def remove(self, schedule_id: str, engine: Engine) -> bool:
        """Delete a schedule, and return True if it existed."""
        known = await self._delete(schedule_id)
        await engine.unschedule(schedule_id)
        return known

    async def _delete(self, schedule_id: str) -> bool:
        statement = "DELETE FROM capgraph_schedules WHERE id = ? RETURNING id"
        return bool(await self._run(statement, (schedule_id,)))

    async def _run(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        assert self._tables is not None
        return (await self._tables.run(statement, values))[1]
