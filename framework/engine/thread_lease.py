"""One run of a thread at a time: a lease is held from the start of a run to its end.

LangGraph tells callbacks when a run begins, before it has read or written anything, and when it
ends, in whatever way. So a second run is told before it can do harm, and a run that waits for a
person holds nothing.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import AsyncCallbackHandler
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Command

from configs.logger import get_logger
from framework.base.errors import CapgraphError, PersistenceError, ValidationError
from framework.pipeline.journal import Journal
from framework.stores.leases import BEAT_SECONDS, Claim, LeaseTable, lease_table, this_process
from framework.stores.threads import open_questions


@dataclass(slots=True)
class _Held:
    thread_id: str
    owner: str
    heartbeat: asyncio.Task[None] | None = None
    lost: bool = False


class OneRunPerThread(AsyncCallbackHandler):
    """Takes the lease of a thread when a run of the graph begins, and gives it back.

    Args:
        saver: The graph's saver.
        beat_seconds: Time between heartbeats.
    """

    raise_error = True
    run_inline = True

    def __init__(
        self, saver: BaseCheckpointSaver[Any], *, beat_seconds: float = BEAT_SECONDS
    ) -> None:
        self._saver = saver
        self._leases: LeaseTable = lease_table(saver)
        self._beat_seconds = beat_seconds
        self._runs: dict[uuid.UUID, _Held] = {}

    async def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: uuid.UUID,
        parent_run_id: uuid.UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Take the lease when the graph's own run begins.

        Raises:
            PersistenceError: Another run has the thread.
            ValidationError: The input answers a question, and none is open.
        """
        known = metadata or {}
        thread = known.get("thread_id")
        # Runs of nodes name their node; updates of the state by hand are no runs of a graph.
        if thread is None or "langgraph_node" in known or "ls_integration" not in known:
            return
        held = _Held(str(thread), uuid.uuid4().hex)
        machine, process = await asyncio.to_thread(this_process, os.getpid())
        runs = {held.owner, *(run.owner for run in self._runs.values())}
        self._runs[run_id] = held
        try:
            other = await self._leases.take(
                held.thread_id, Claim(held.owner, machine, process, runs)
            )
            if other is not None:
                raise PersistenceError(
                    f"The thread {held.thread_id!r} is being run already, by {other.describe()}.",
                    fix="Wait until that run ends or asks a person, or end its process.",
                )
            if isinstance(inputs, Command) and inputs.resume is not None:
                await self._check_question(held.thread_id)
        except BaseException:
            del self._runs[run_id]
            with suppress(CapgraphError):
                await asyncio.shield(self._leases.release(held.thread_id, held.owner))
            raise
        held.heartbeat = asyncio.create_task(self._beat(held), name="capgraph heartbeat")

    async def on_chain_end(self, outputs: Any, *, run_id: uuid.UUID, **_: Any) -> None:
        """Give the lease back after a run that ended or waits."""
        if run_id in self._runs:
            await self._release(run_id)

    async def on_chain_error(self, error: BaseException, *, run_id: uuid.UUID, **_: Any) -> None:
        """Leave word how the run ended, and give the lease back."""
        if run_id not in self._runs:
            return
        try:
            if not self._runs[run_id].lost:
                await self._leave_word(self._runs[run_id].thread_id, error)
        finally:
            await self._release(run_id)

    async def confirm(self, thread_id: str | None) -> None:
        """Make sure, in the database, that this process still has the thread.

        Raises:
            PersistenceError: Another process has taken over.
        """
        for held in list(self._runs.values()):
            if held.thread_id != thread_id:
                continue
            if held.lost or not await self._leases.beat(held.thread_id, held.owner):
                held.lost = True
                raise PersistenceError(
                    f"Another process has taken over the thread {thread_id!r}.",
                    fix="Nothing more is run here; look at the thread to see how it goes on.",
                )

    async def _check_question(self, thread_id: str) -> None:
        found = await self._saver.aget_tuple(
            {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        )
        if found is None or not open_questions(found):
            raise ValidationError(
                f"The thread {thread_id!r} asks nothing, so the answer changes nothing.",
                fix="It was answered before, or it is meant for another thread.",
            )

    async def _beat(self, held: _Held) -> None:
        while not held.lost:
            await asyncio.sleep(self._beat_seconds)
            try:
                held.lost = not await self._leases.beat(held.thread_id, held.owner)
            except CapgraphError as exc:
                # While the database is away nobody else can take over either.
                get_logger("framework", "lease").warning("No heartbeat: %s", exc)

    async def _release(self, run_id: uuid.UUID) -> None:
        held = self._runs.pop(run_id)
        if held.heartbeat is not None:
            held.heartbeat.cancel()
            await asyncio.wait([held.heartbeat])
        try:
            await asyncio.shield(self._leases.release(held.thread_id, held.owner))
        except CapgraphError as exc:
            # The row is taken for stale by the next run: its owner is under way no more.
            get_logger("framework", "lease").warning("The lease was not given back: %s", exc)

    async def _leave_word(self, thread_id: str, error: BaseException) -> None:
        cancelled = isinstance(error, (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt))
        reason = "The run was cancelled." if cancelled else f"{type(error).__name__}: {error}"
        with suppress(CapgraphError):
            found = await self._saver.aget_tuple(
                {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
            )
            record = {
                "status": "cancelled" if cancelled else "failed",
                "reason": reason[:2000],
                "checkpoint": found.checkpoint["id"] if found else None,
            }
            await Journal(self._saver, thread_id).write("end", record)


Confirm = Callable[[str | None], Any]
