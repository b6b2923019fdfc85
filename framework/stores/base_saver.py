"""What every saver of ours does around each operation of LangGraph's saver below it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from capgraph.langgraph_compat import INTERRUPT
from capgraph.stores.database import SqlTables
from capgraph.stores.history import History, load_deltas_since_snapshot
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import PAST_LEASE
from capgraph.stores.serialization import validate_checkpoint, wrap_read_errors

T = TypeVar("T")
PAGE_SIZE = 100
"""So many checkpoints are read at once."""
_ASKED = (
    "EXISTS (SELECT 1 FROM {writes} AS w WHERE w.thread_id = known.thread_id"
    f" AND w.checkpoint_ns = '' AND w.checkpoint_id = latest AND w.channel = '{INTERRUPT}')"
)


class BaseSaver(BaseCheckpointSaver[Any]):
    """Hands every operation to :meth:`guarded`, and checks what is read.

    It precedes LangGraph's own saver in the bases of a class.

    Attributes:
        persistence: The tables beside the checkpoints; LangGraph's copies of the saver share it.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.persistence: Persistence = Persistence(self)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Write a checkpoint."""
        put = super().aput

        async def write() -> RunnableConfig:
            if PAST_LEASE not in metadata:
                await self._confirm(config)
            return await put(config, checkpoint, metadata, new_versions)

        return await self.guarded("written", write)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Write what a task gave."""
        put = super().aput_writes

        async def write() -> None:
            await self._confirm(config)
            await put(config, writes, task_id, task_path)

        await self.guarded("written", write)

    async def _confirm(self, config: RunnableConfig) -> None:
        # Whoever was frozen, or cut off, must not write over what the next one did.
        await self.persistence.leases.confirm(str(_thread(config)), force_query=False)

    async def adelete_thread(self, thread_id: str) -> None:
        """Drop a thread, with what its steps left on other workers."""
        drop = super().adelete_thread
        await self.guarded("written", lambda: drop(thread_id))
        self.persistence.history_cache.pop(thread_id, None)
        await self.persistence.step_results.drop_thread(thread_id)

    @abstractmethod
    async def guarded(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Do an operation; what the database raises becomes an error of the project.

        Args:
            what: What is done to the database, for the message: ``read``, ``written``.
            call: Does it; rows are found by their keys, so doing it twice is doing it once.

        Raises:
            PersistenceError: The database refused, or is away.
        """

    def unseal(self, found: CheckpointTuple | None) -> CheckpointTuple | None:
        """Return what was read in its own form."""
        return found

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read a checkpoint."""
        read = super().aget_tuple
        with wrap_read_errors(_thread(config)):
            found = await self.guarded("read", lambda: read(config))
            return validate_checkpoint(self.unseal(found))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the base class's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """List checkpoints, newest first, holding neither the database nor all of them."""
        listed = super().alist
        place = (config or {}).get("configurable", {})
        # Only one graph of one thread has an order that pages can follow.
        ordered = "thread_id" in place and "checkpoint_ns" in place
        left = limit
        while left is None or left > 0:
            size = left if not ordered else PAGE_SIZE if left is None else min(left, PAGE_SIZE)

            async def read(
                start: RunnableConfig | None = before, size: int | None = size
            ) -> list[CheckpointTuple]:
                found = listed(config, filter=filter, before=start, limit=size)
                return [item async for item in found]

            with wrap_read_errors(_thread(config)):
                page = [self.unseal(item) for item in await self.guarded("read", read)]
            for item in page:
                if item is not None:
                    yield item
            if not ordered or size is None or len(page) < size or page[-1] is None:
                return
            before, left = page[-1].config, None if left is None else left - size

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Read what was written to channels since they were last saved as a whole."""
        read = super().aget_delta_channel_history
        at = config["configurable"]
        place = (str(at["thread_id"]), at.get("checkpoint_ns", ""), at.get("checkpoint_id") or "")
        with wrap_read_errors(_thread(config)):
            found = await load_deltas_since_snapshot(self.persistence, place, channels)
            if found is not None:
                return found
            return await self.guarded("read", lambda: read(config=config, channels=channels))

    async def thread_ids(
        self,
        *,
        limit: int | None = None,
        before: tuple[str, str] | None = None,
        older_than: str | None = None,
        prefix: str = "",
        interrupted_only: bool = False,
    ) -> list[tuple[str, str]]:
        """Name threads with their latest checkpoint, the one that was saved last first.

        Args:
            limit: At most so many.
            before: What the last page ended with.
            older_than: Only those whose latest checkpoint comes before this one.
            prefix: Only those whose name begins so.
            interrupted_only: Only those whose latest checkpoint was interrupted.
        """
        # Checkpoint ids begin with the time.
        only, values = [_ASKED if interrupted_only else "1 = 1"], list[Any]()
        if before is not None:
            only.append("(latest, thread_id) < (?, ?)")
            values += before[::-1]
        if older_than is not None:
            only.append("latest < ?")
            values.append(older_than)
        _, found = await self._rows.run(
            "SELECT thread_id, latest FROM (SELECT thread_id, MAX(checkpoint_id) AS latest"
            " FROM checkpoints WHERE checkpoint_ns = '' AND substr(thread_id, 1, ?) = ?"
            f" GROUP BY thread_id) AS known WHERE {' AND '.join(only)}"
            " ORDER BY latest DESC, thread_id DESC LIMIT ?",
            (len(prefix), prefix, *values, 2**62 if limit is None else limit),
        )
        return [(str(thread), str(latest)) for thread, latest in found]

    async def is_interrupted(self, thread_id: str) -> bool:
        """Tell whether a thread's latest checkpoint was interrupted, without reading what it holds.

        Args:
            thread_id: The thread.
        """
        _, found = await self._rows.run(
            "SELECT 1 FROM (SELECT CAST(? AS TEXT) AS thread_id, (SELECT MAX(checkpoint_id)"
            " FROM checkpoints WHERE checkpoint_ns = '' AND thread_id = ?) AS latest) AS known"
            f" WHERE {_ASKED}",
            (thread_id, thread_id),
        )
        return bool(found)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the latest checkpoint of each namespace of threads, or nothing.

        Args:
            thread_ids: The threads.
            strategy: ``keep_latest`` or ``delete``.
        """
        for thread in thread_ids:
            if strategy == "delete":
                await self.adelete_thread(thread)
            else:
                await History(self.persistence, thread).prune(checkpoints=1)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with its history and its records.

        Args:
            source_thread_id: The thread.
            target_thread_id: Name of the copy; no thread may have it.

        Raises:
            PersistenceError: The source does not exist, or the target does, or its name is not
                usable.
            ThreadBusyError: A run or another copy uses the target.
        """
        await History(self.persistence, source_thread_id).copy(target_thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Drop what runs have saved; what followed them keeps what it holds.

        Args:
            run_ids: Ids that were given to the runs (``run_id`` in their metadata).
        """
        for run in run_ids:
            _, threads = await self._rows.run(
                "SELECT DISTINCT thread_id FROM checkpoints"
                f" WHERE {self._rows.metadata('run_id')} = ?",
                (run,),
            )
            for (thread,) in threads:
                await History(self.persistence, str(thread)).delete_run(run)

    @property
    def _rows(self) -> SqlTables:
        rows = self.persistence.tables
        assert rows is not None
        return rows


def _thread(config: RunnableConfig | None) -> Any:
    return (config or {}).get("configurable", {}).get("thread_id")
