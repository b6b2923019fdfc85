"""Durable records beside the checkpoints: attempts, waits and effects of single steps.

LangGraph saves a superstep when it ends. What must be on disk earlier (an effect that is about
to happen, a failed attempt and the moment of the next one) is written here, through the same
saver, each record under a checkpoint namespace of its own. It therefore survives whatever the
checkpoint of the running superstep does not.

A record is needed for as long as its turn can be run again: resumed, forked or replayed from one
of its checkpoints. So it names the checkpoint that it builds on as its parent, goes with the
history of its turn (``prune_threads``, the settings' ``persistence.keep_…``) and with the thread.
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
def _errors_end_run() -> Iterator[None]:
    """Mark what cannot be kept: nothing that the run did could be reported."""
    try:
        yield
    except PersistenceError as exc:
        exc.stops_run = True
        raise


class RunStart(NamedTuple):
    """With what a run began.

    Attributes:
        checkpoint_id: The checkpoint.
        metadata: What is kept of its configuration: who began it.
    """

    checkpoint_id: str
    metadata: Mapping[str, Any]


class Journal:
    """Reads and writes the records of one thread.

    Args:
        persistence: Where the graph stores its threads; ``None`` keeps no records.
        thread_id: The thread.
        checkpoints: Namespace and id of the checkpoints on which the running superstep builds, the
            outermost graph's first; none when the run saves nothing before its end.
        fence: Does what :meth:`have` does, where another process holds the thread's lease.

    Attributes:
        persistence: As given.
        checkpoints: As given.
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
        """Whether records outlive the process."""
        return self._saver is not None and self.thread_id is not None

    @property
    def is_remote(self) -> bool:
        """Whether another process runs the turn whose records these are."""
        return self._fence is not None

    @property
    def tables(self) -> SqlTables | None:
        """Tables beside the threads; ``None`` without a database."""
        return self.persistence.tables if self.persistence is not None else None

    @property
    def namespace(self) -> str:
        """Which graph of the thread these records belong to; empty for the outermost."""
        namespace = self._checkpoint[0] if self._checkpoint else ""
        # The identity of a task changes when its graph starts anew; its node's name does not.
        return "|".join(part.partition(":")[0] for part in namespace.split("|"))

    async def assert_lease_held(self, *, query_database: bool = False) -> None:
        """Make sure that this process still has the thread.

        Args:
            query_database: Whether to ask the database in any case; else it is asked where the last heartbeat
                is late.

        Raises:
            PersistenceError: Another process has the thread.
        """
        if self.persistence is None or self.thread_id is None:
            return
        with _errors_end_run():
            if self._fence is not None:
                await self._fence(query_database)
            else:
                await self.persistence.leases.confirm(self.thread_id, force_query=query_database)

    async def wait_until_saved(self) -> None:
        """Wait until a restart would come back to the plan that is being run.

        LangGraph saves checkpoints in the background. An effect that happens before its plan is
        saved would be planned anew after a crash, perhaps in other words, and happen again.

        Raises:
            PersistenceError: The checkpoint is not saved.
        """
        if self._saver is None or self.thread_id is None:
            return
        with _errors_end_run():
            # An outer graph that starts anew would start this one anew.
            for checkpoint in self._unsaved_checkpoints:
                await self._wait_for_checkpoint(self._saver, *checkpoint)
            self._unsaved_checkpoints = []

    async def _wait_for_checkpoint(
        self, saver: BaseCheckpointSaver[Any], namespace: str, checkpoint_id: str
    ) -> CheckpointTuple:
        """Return the checkpoint on which the superstep builds, as soon as it is saved."""
        config: RunnableConfig = {
            "configurable": {
                "thread_id": self.thread_id,
                "checkpoint_ns": namespace,
                "checkpoint_id": checkpoint_id,
            }
        }
        loop = asyncio.get_running_loop()
        end, delay = loop.time() + _CHECKPOINT_TIMEOUT_SECONDS, 0.002
        while (found := await saver.aget_tuple(config)) is None:
            if loop.time() > end:
                raise PersistenceError(
                    f"The plan of thread {self.thread_id!r} was not saved in"
                    f" {_CHECKPOINT_TIMEOUT_SECONDS:g} s, so no effect is begun.",
                    fix="Look at the database; then run the thread again.",
                )
            await asyncio.sleep(delay)
            delay = min(delay * 2, 0.1)
        return found

    async def starting_checkpoint(self) -> CheckpointTuple | None:
        """Return the checkpoint with which the running graph began; ``None`` when none is kept."""
        if self._saver is None or self.thread_id is None or self._checkpoint is None:
            return None
        found: CheckpointTuple | None = await self._wait_for_checkpoint(
            self._saver, *self._checkpoint
        )
        while found is not None and found.parent_config and run_input(found) is None:
            found = await self._saver.aget_tuple(found.parent_config)
        return found

    async def run_start(
        self, cache: dict[str, RunStart], *, is_resumed: bool = False
    ) -> RunStart | None:
        """Return with what the run of the outermost graph began; ``None`` when nothing is kept.

        Args:
            cache: The same by the checkpoints seen so far; each is read once.
            is_resumed: Whether it began in an earlier run, so that nothing has to be waited for.
        """
        if self._saver is None or self.thread_id is None or not self.checkpoints:
            return None
        space, moment = self.checkpoints[0]
        place = {"thread_id": self.thread_id, "checkpoint_ns": space}
        passed: list[str] = []
        while (found := cache.get(moment)) is None:
            here: RunnableConfig = {"configurable": {**place, "checkpoint_id": moment}}
            if passed or is_resumed:
                read = await self._saver.aget_tuple(here)
                if read is None and not passed:
                    read = await self._saver.aget_tuple({"configurable": place})
            else:
                read = await self._wait_for_checkpoint(self._saver, space, moment)
            if read is None:
                return None
            passed.append(moment)
            if run_input(read) is not None or not read.parent_config:
                found = RunStart(read.config["configurable"]["checkpoint_id"], read.metadata)
                break
            moment = read.parent_config["configurable"]["checkpoint_id"]
        for name in passed:
            cache[name] = found
        return found

    async def raise_if_stopped(self, users: Collection[str], *, confirm: bool = False) -> None:
        """Make sure that nobody stopped the run.

        Args:
            users: Whose run it is.
            confirm: Whether an effect is about to begin.

        Raises:
            StoppedError: Somebody did.
        """
        if self.persistence is None or self.thread_id is None:
            return
        with _errors_end_run():
            await self.persistence.stops.raise_if_stopped(self.thread_id, users, force_read=confirm)

    async def read(self, key: str) -> dict[str, Any]:
        """Return the last record under a key; empty when there is none."""
        if self._saver is None or self.thread_id is None:
            return {}
        with _errors_end_run():
            return await read_record(self._saver, self.thread_id, key)

    async def write(
        self, key: str, record: dict[str, Any], *, allow_lost_lease: bool = False
    ) -> None:
        """Put a record under a key; it is durable when this returns.

        Args:
            key: Name of the record.
            record: Plain data.
            allow_lost_lease: Whether it is written also where another process has the thread by now.

        Raises:
            PersistenceError: It cannot be kept, or another process has the thread.
        """
        if self._saver is None or self.thread_id is None:
            return
        base = self._checkpoint[1] if self._checkpoint else None
        told: dict[str, Any] = {PAST_LEASE: True} if allow_lost_lease else {}
        with _errors_end_run():
            await write_record(
                self._saver, self.thread_id, key, record, parent_checkpoint_id=base, **told
            )


def running_journal(persistence: Persistence | None = None) -> Journal:
    """Return the journal of the running thread.

    Args:
        persistence: Where the graph stores its threads; a run may bring another saver.
    """
    lent: Journal | None = run_context().journal
    try:
        config = get_config()
    except RuntimeError:
        return lent or Journal()
    if lent is not None and inherited_saver(config) is None:
        return lent
    thread = (config.get("configurable") or {}).get("thread_id")
    return Journal(
        Persistence.for_run(config, persistence),
        None if thread is None else str(thread),
        checkpoints=running_checkpoints(config),
    )
