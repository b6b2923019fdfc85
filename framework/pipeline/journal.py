"""Durable records of a thread's steps, stored next to the checkpoints.

LangGraph saves a checkpoint at the end of a superstep. A record that must be durable earlier, such
as the start of an effect or a failed attempt, is written here through the same saver, under its own
checkpoint namespace. It survives even if the checkpoint of the running superstep is lost.

A record is needed while its turn can be resumed, forked, or replayed from a checkpoint. It
therefore names this checkpoint as its parent, and is deleted with the history of the turn
(``prune_threads``, the settings ``persistence.keep_…``) or with the thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.config import get_config

from capgraph.base.errors import PersistenceError
from capgraph.configs.run_context import run_context
from capgraph.langgraph_compat import inherited_saver, run_input, running_checkpoints
from capgraph.stores.database import SqlTables
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import PAST_LEASE, read_record, write_record

_CHECKPOINT_TIMEOUT_SECONDS = 10.0


@contextmanager
def _stop_run_on_errors() -> Iterator[None]:
    """Set ``stops_run`` on persistence errors raised within the ``with`` block.

    The run must stop, because its results can no longer be recorded.
    """
    try:
        yield
    except PersistenceError as exc:
        exc.stops_run = True
        raise


class RunStart(NamedTuple):
    """Starting point of a run.

    Attributes:
        checkpoint_id: ID of the first checkpoint.
        metadata: Stored configuration of the run, including its caller.
    """

    checkpoint_id: str
    metadata: Mapping[str, Any]


class Journal:
    """Durable records of a single thread, stored by key.

    Args:
        persistence: Storage of the graph's threads. ``None`` stores no records.
        thread_id: ID of the thread.
        checkpoints: Namespace and ID of each checkpoint on which the running superstep is
            based, outermost graph first. Empty if nothing is saved before the run ends.
        fence: Function that checks the lease in :meth:`assert_lease_held` if another process
            holds it.

    Attributes:
        persistence: Storage of the graph's threads, or ``None``.
        checkpoints: Namespace and ID of each checkpoint, outermost graph first.
    """

    def __init__(
        self,
        persistence: Persistence | None = None,
        thread_id: str | None = None,
        *,
        checkpoints: Sequence[tuple[str, str]] = (),
        fence: Callable[[bool], Awaitable[None]] | None = None,
    ) -> None:
        self.checkpoints: tuple[tuple[str, str], ...] = tuple(checkpoints)
        self.persistence: Persistence | None = persistence
        self._saver = persistence.saver if persistence is not None else None
        self._fence = fence
        self.thread_id = thread_id
        self._checkpoint = checkpoints[-1] if checkpoints else None
        self._unsaved_checkpoints = list(checkpoints)

    @property
    def is_durable(self) -> bool:
        """True if the journal's records survive the end of the process."""
        return self._saver is not None and self.thread_id is not None

    @property
    def is_remote(self) -> bool:
        """True if another process runs the turn."""
        return self._fence is not None

    @property
    def tables(self) -> SqlTables | None:
        """Database tables of the persistence layer, or ``None`` if there is no database."""
        return self.persistence.tables if self.persistence is not None else None

    @property
    def namespace(self) -> str:
        """Checkpoint namespace of the graph, which is empty for the outermost graph."""
        namespace = self._checkpoint[0] if self._checkpoint else ""
        # A task ID changes when its graph restarts; the name of its node does not.
        return "|".join(part.partition(":")[0] for part in namespace.split("|"))

    async def assert_lease_held(self, *, query_database: bool = False) -> None:
        """Raise an error if this process no longer holds the thread's lease.

        Args:
            query_database: True to always query the database. By default, it is queried only if the last
                heartbeat is late.

        Raises:
            PersistenceError: Another process holds the lease.
        """
        if self.persistence is None or self.thread_id is None:
            return
        with _stop_run_on_errors():
            if self._fence is not None:
                await self._fence(query_database)
            else:
                await self.persistence.leases.confirm(self.thread_id, force_query=query_database)

    async def wait_until_saved(self) -> None:
        """Wait until the checkpoint that contains the running plan is saved.

        LangGraph saves checkpoints in the background. If an effect happened before its plan was
        saved, a new plan after a crash could repeat the effect with different values.

        Raises:
            PersistenceError: The checkpoint was not saved in time.
        """
        if self._saver is None or self.thread_id is None:
            return
        with _stop_run_on_errors():
            # An outer graph that restarts also restarts this one.
            for checkpoint in self._unsaved_checkpoints:
                await self._wait_for_checkpoint(self._saver, *checkpoint)
            self._unsaved_checkpoints = []

    async def _wait_for_checkpoint(
        self, saver: BaseCheckpointSaver[Any], namespace: str, checkpoint_id: str
    ) -> CheckpointTuple:
        """Wait until a checkpoint is saved, and return it."""
        config: RunnableConfig = {
            "configurable": {
                "thread_id": self.thread_id,
                "checkpoint_ns": namespace,
                "checkpoint_id": checkpoint_id,
            }
        }
        loop = asyncio.get_running_loop()
        end, delay = loop.time() + _CHECKPOINT_TIMEOUT_SECONDS, 0.002
        while (saved := await saver.aget_tuple(config)) is None:
            if loop.time() > end:
                raise PersistenceError(
                    f"The plan of thread {self.thread_id!r} was not saved within"
                    f" {_CHECKPOINT_TIMEOUT_SECONDS:g} s. No effect was started.",
                    fix="check the database, then run the thread again.",
                )
            await asyncio.sleep(delay)
            delay = min(delay * 2, 0.1)
        return saved

    async def starting_checkpoint(self) -> CheckpointTuple | None:
        """Return the running graph's first checkpoint, or ``None`` if it is not saved."""
        if self._saver is None or self.thread_id is None or self._checkpoint is None:
            return None
        saved: CheckpointTuple | None = await self._wait_for_checkpoint(
            self._saver, *self._checkpoint
        )
        while saved is not None and saved.parent_config and run_input(saved) is None:
            saved = await self._saver.aget_tuple(saved.parent_config)
        return saved

    async def run_start(
        self, cache: dict[str, RunStart], *, is_resumed: bool = False
    ) -> RunStart | None:
        """Return where the outermost graph's run started, or ``None`` if the start is not saved.

        Args:
            cache: Cache of starts by checkpoint ID, so that each checkpoint is read only once.
            is_resumed: True if the run was started earlier, so its first checkpoint is already
                saved.
        """
        if self._saver is None or self.thread_id is None or not self.checkpoints:
            return None
        space, checkpoint_id = self.checkpoints[0]
        location = {"thread_id": self.thread_id, "checkpoint_ns": space}
        visited: list[str] = []
        while (start := cache.get(checkpoint_id)) is None:
            config: RunnableConfig = {"configurable": {**location, "checkpoint_id": checkpoint_id}}
            if visited or is_resumed:
                saved = await self._saver.aget_tuple(config)
                if saved is None and not visited:
                    saved = await self._saver.aget_tuple({"configurable": location})
            else:
                saved = await self._wait_for_checkpoint(self._saver, space, checkpoint_id)
            if saved is None:
                return None
            visited.append(checkpoint_id)
            if run_input(saved) is not None or not saved.parent_config:
                start = RunStart(saved.config["configurable"]["checkpoint_id"], saved.metadata)
                break
            checkpoint_id = saved.parent_config["configurable"]["checkpoint_id"]
        for name in visited:
            cache[name] = start
        return start

    async def raise_if_stopped(self, users: Collection[str], *, confirm: bool = False) -> None:
        """Raise an error if a user has stopped the run.

        Args:
            users: IDs of the run's users.
            confirm: True to query the database, as required before an effect starts.

        Raises:
            StoppedError: A user stopped the run.
        """
        if self.persistence is None or self.thread_id is None:
            return
        with _stop_run_on_errors():
            await self.persistence.stops.raise_if_stopped(self.thread_id, users, force_read=confirm)

    async def read(self, key: str) -> dict[str, Any]:
        """Return the latest record stored under a key, or an empty dictionary."""
        if self._saver is None or self.thread_id is None:
            return {}
        with _stop_run_on_errors():
            return await read_record(self._saver, self.thread_id, key)

    async def write(
        self, key: str, record: dict[str, Any], *, allow_lost_lease: bool = False
    ) -> None:
        """Store a record durably before returning.

        Args:
            key: Name of the record.
            record: Record to store, as plain data.
            allow_lost_lease: True to write even if another process holds the lease.

        Raises:
            PersistenceError: The record cannot be stored, or another process holds the lease.
        """
        if self._saver is None or self.thread_id is None:
            return
        base = self._checkpoint[1] if self._checkpoint else None
        options: dict[str, Any] = {PAST_LEASE: True} if allow_lost_lease else {}
        with _stop_run_on_errors():
            await write_record(
                self._saver, self.thread_id, key, record, parent_checkpoint_id=base, **options
            )


def running_journal(persistence: Persistence | None = None) -> Journal:
    """Return the journal, which holds the durable records of the running thread.

    Args:
        persistence: Default storage of the graph; a run may use another saver.
    """
    inherited: Journal | None = run_context().journal
    try:
        config = get_config()
    except RuntimeError:
        return inherited or Journal()
    if inherited is not None and inherited_saver(config) is None:
        return inherited
    thread = (config.get("configurable") or {}).get("thread_id")
    return Journal(
        Persistence.for_run(config, persistence),
        None if thread is None else str(thread),
        checkpoints=running_checkpoints(config),
    )
