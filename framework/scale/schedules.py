"""Turns that are begun again and again: what they ask lies beside the threads, an engine keeps time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from capgraph.base.errors import PersistenceError, ValidationError
from capgraph.scale.engine import Engine
from capgraph.stores.persistence import Persistence
from capgraph.stores.serialization import deserialize_text, serialize_to_text


@dataclass(frozen=True, slots=True)
class Schedule:
    """A turn that is begun again and again.

    Attributes:
        id: Names it.
        cron: When, as five fields of cron, in UTC.
        message: What is asked.
        thread: Thread that it is asked in; empty for a new one each time.
        unreadable: Why nobody can say what is asked; then nothing is.
    """

    id: str
    cron: str
    message: str
    thread: str = ""
    unreadable: str = ""


class Schedules:
    """The schedules of a saver's database; encrypted where checkpoints are.

    Args:
        saver: An open saver whose database has rows of ours.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self._tables, self._serde = Persistence.of(saver).tables, saver.serde

    async def add(self, schedule: Schedule, engine: Engine) -> None:
        """Keep a schedule, and have an engine tell workers its moments.

        Args:
            schedule: The schedule.
            engine: Keeps time.

        Raises:
            ValidationError: It says no times, or there is nothing to ask.
            PersistenceError: The database or the engine cannot be reached.
        """
        from croniter import CroniterError, croniter  # comes with the extra of workers

        if not schedule.message.strip():
            raise ValidationError("The message is empty.", fix="Write something.")
        try:
            comes = len(schedule.cron.split()) == 5 and croniter(schedule.cron).get_next(float)
        except CroniterError:
            comes = False
        if not comes:
            raise ValidationError(
                f"{schedule.cron!r:.80} says no time that ever comes.",
                fix="Write the five fields of cron: '0 7 * * *' is every day at seven, UTC.",
            )
        request = serialize_to_text(self._serde, [schedule.message, schedule.thread])
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
        """Return the schedules, by id."""
        return await self._find("")

    async def get(self, schedule_id: str) -> Schedule | None:
        """Return a schedule; ``None`` when it is gone."""
        return next(iter(await self._find(schedule_id)), None)

    async def _find(self, schedule_id: str) -> list[Schedule]:
        statement = (
            "SELECT id, cron, request FROM capgraph_schedules WHERE ? IN ('', id) ORDER BY id"
        )
        return [self._read(*row) for row in await self._run(statement, (schedule_id,))]

    def _read(self, name: str, cron: str, request: str) -> Schedule:
        try:
            message, thread = deserialize_text(self._serde, request, "of the schedules")
        except PersistenceError as exc:
            return Schedule(name, cron, "", unreadable=str(exc))  # it hides no other one
        return Schedule(name, cron, message, thread)

    async def remove(self, schedule_id: str, engine: Engine) -> bool:
        """Forget a schedule; tells whether there was one."""
        known = await self._delete(schedule_id)
        await engine.unschedule(schedule_id)
        return known

    async def _delete(self, schedule_id: str) -> bool:
        statement = "DELETE FROM capgraph_schedules WHERE id = ? RETURNING id"
        return bool(await self._run(statement, (schedule_id,)))

    async def _run(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        assert self._tables is not None
        return (await self._tables.run(statement, values))[1]
