"""Base class of capgraph's savers: leases, error translation, and checkpoint validation."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from capgraph.configs.bounded_dict import BoundedDict
from capgraph.langgraph_compat import DELTA_COUNTERS, INTERRUPT
from capgraph.stores.database import SqlTables
from capgraph.stores.history import History, load_deltas_since_snapshot
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import PAST_LEASE
from capgraph.stores.serialization import validate_checkpoint, wrap_read_errors

T = TypeVar("T")
DeltaCounters = Mapping[str, Sequence[int]]
"""By channel: number of updates and of checkpoints since its last snapshot."""
PAGE_SIZE = 100
"""Number of checkpoints read at a time."""
_IS_INTERRUPTED = (
    "EXISTS (SELECT 1 FROM {writes} AS w WHERE w.thread_id = known.thread_id"
    f" AND w.checkpoint_ns = '' AND w.checkpoint_id = latest AND w.channel = '{INTERRUPT}')"
)


class BaseSaver(BaseCheckpointSaver[Any]):
    """Mixin for LangGraph savers that runs each database operation in :meth:`run_operation`.

    A class must list the mixin before LangGraph's saver among its bases.

    Attributes:
        persistence: Tables stored next to the checkpoints. LangGraph's copies of the saver
            share the tables.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.persistence: Persistence = Persistence(self)
        self._delta_counters: BoundedDict[str, DeltaCounters] = BoundedDict(1024)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint of a graph and return the config that identifies the checkpoint."""
        put = super().aput
        stored = await self._add_delta_counters(config, checkpoint, metadata, new_versions)

        async def write() -> RunnableConfig:
            if PAST_LEASE not in metadata:
                await self._confirm(config)
            return await put(config, checkpoint, stored, new_versions)

        return await self.run_operation("written", write)

    async def _add_delta_counters(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> CheckpointMetadata:
        """Return checkpoint metadata whose delta counters start at the last snapshot.

        See :meth:`aget_tuple` for the reason.
        """
        configurable = config["configurable"]
        fields: Any = metadata
        counters: DeltaCounters = fields.get(DELTA_COUNTERS) or {}
        parent = configurable.get("checkpoint_id")
        if not counters or not parent:
            return metadata
        position = (str(_thread(config)), configurable.get("checkpoint_ns", ""), parent)
        at_parent = "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
        if (before := self._delta_counters.get(parent)) is None:
            _, rows = await self._rows.run(
                f"SELECT {self._rows.metadata(DELTA_COUNTERS)} FROM checkpoints {at_parent}",
                position,
            )
            before = json.loads((rows and rows[0][0]) or "{}")
        updated = {*new_versions}
        if not updated:  # a copy of a checkpoint, whose writes belong to the same parent
            _, rows = await self._rows.run(
                f"SELECT DISTINCT channel FROM {{writes}} {at_parent}", position
            )
            updated = {channel for (channel,) in rows}
        # A channel without counters at the parent has a snapshot or its first value there.
        stored = {
            name: [previous[0] + (name in updated), previous[1] + 1]
            for name in counters
            for previous in [before.get(name, (0, 0))]
        }
        self._delta_counters[checkpoint["id"]] = stored
        return cast("CheckpointMetadata", {**fields, DELTA_COUNTERS: stored})

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the pending channel writes of a graph task."""
        put = super().aput_writes

        async def write() -> None:
            await self._confirm(config)
            await put(config, writes, task_id, task_path)

        await self.run_operation("written", write)

    async def _confirm(self, config: RunnableConfig) -> None:
        # A process that was frozen or disconnected must not overwrite its successor's checkpoints.
        await self.persistence.leases.confirm(str(_thread(config)), force_query=False)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread, its checkpoints, and the results of its remote steps."""
        drop = super().adelete_thread
        await self.run_operation("written", lambda: drop(thread_id))
        self.persistence.history_cache.pop(thread_id, None)
        await self.persistence.step_results.drop_thread(thread_id)

    @abstractmethod
    async def run_operation(self, verb: str, operation: Callable[[], Awaitable[T]]) -> T:
        """Run a database operation and convert its errors to ``PersistenceError``.

        Args:
            verb: Verb for the error message, such as ``read`` or ``written``.
            operation: Operation to run. It must be idempotent, because it may be retried.

        Raises:
            PersistenceError: The database rejected the operation or is unavailable.
        """

    def unseal(self, checkpoint_tuple: CheckpointTuple | None) -> CheckpointTuple | None:
        """Decode the encoded values of a loaded checkpoint."""
        return checkpoint_tuple

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the requested checkpoint of a thread, or ``None`` if it does not exist.

        LangGraph stores a snapshot of a whole channel when the channel's update counters are high.
        The size of a snapshot grows with the thread, so the counters start at 1 in each run.
        """
        read = super().aget_tuple
        with wrap_read_errors(_thread(config)):
            found = validate_checkpoint(
                self.unseal(await self.run_operation("read", lambda: read(config)))
            )
        fields: Any = found.metadata if found is not None else {}
        counters: DeltaCounters = fields.get(DELTA_COUNTERS) or {}
        if found is None or not counters:
            return found
        self._delta_counters[found.checkpoint["id"]] = counters
        fields = {**fields, DELTA_COUNTERS: dict.fromkeys(counters, (0, 1))}
        return found._replace(metadata=fields)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the base class's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints from newest to oldest, loading them from the database in pages."""
        listed = super().alist
        configurable = (config or {}).get("configurable", {})
        # Pages need a total order, which exists only within one namespace of one thread.
        ordered = "thread_id" in configurable and "checkpoint_ns" in configurable
        remaining = limit
        while remaining is None or remaining > 0:
            size = (
                remaining
                if not ordered
                else PAGE_SIZE
                if remaining is None
                else min(remaining, PAGE_SIZE)
            )

            async def read(
                start: RunnableConfig | None = before, size: int | None = size
            ) -> list[CheckpointTuple]:
                found = listed(config, filter=filter, before=start, limit=size)
                return [item async for item in found]

            with wrap_read_errors(_thread(config)):
                page = [self.unseal(item) for item in await self.run_operation("read", read)]
            for item in page:
                if item is not None:
                    yield item
            if not ordered or size is None or len(page) < size or page[-1] is None:
                return
            before, remaining = page[-1].config, None if remaining is None else remaining - size

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Load the writes to each delta channel since the channel's last snapshot."""
        read = super().aget_delta_channel_history
        configurable = config["configurable"]
        position = (
            str(configurable["thread_id"]),
            configurable.get("checkpoint_ns", ""),
            configurable.get("checkpoint_id") or "",
        )
        with wrap_read_errors(_thread(config)):
            found = await load_deltas_since_snapshot(self.persistence, position, channels)
            if found is not None:
                return found
            return await self.run_operation("read", lambda: read(config=config, channels=channels))

    async def thread_ids(
        self,
        *,
        limit: int | None = None,
        before: tuple[str, str] | None = None,
        older_than: str | None = None,
        prefix: str = "",
        interrupted_only: bool = False,
    ) -> list[tuple[str, str]]:
        """Return the IDs of threads with their latest checkpoint IDs, most recently saved first.

        Args:
            limit: Maximum number of results.
            before: Last entry of the previous page.
            older_than: Return only threads whose latest checkpoint precedes this checkpoint ID.
            prefix: Return only threads whose ID starts with this prefix.
            interrupted_only: Return only threads whose latest checkpoint has an interrupt.
        """
        # Checkpoint IDs start with the time.
        conditions, values = [_IS_INTERRUPTED if interrupted_only else "1 = 1"], list[Any]()
        if before is not None:
            conditions.append("(latest, thread_id) < (?, ?)")
            values += before[::-1]
        if older_than is not None:
            conditions.append("latest < ?")
            values.append(older_than)
        _, found = await self._rows.run(
            "SELECT thread_id, latest FROM (SELECT thread_id, MAX(checkpoint_id) AS latest"
            " FROM checkpoints WHERE checkpoint_ns = '' AND substr(thread_id, 1, ?) = ?"
            f" GROUP BY thread_id) AS known WHERE {' AND '.join(conditions)}"
            " ORDER BY latest DESC, thread_id DESC LIMIT ?",
            (len(prefix), prefix, *values, 2**62 if limit is None else limit),
        )
        return [(str(thread), str(latest)) for thread, latest in found]

    async def is_interrupted(self, thread_id: str) -> bool:
        """Return True if the latest checkpoint of a thread contains an interrupt.

        Args:
            thread_id: ID of the thread.
        """
        _, found = await self._rows.run(
            "SELECT 1 FROM (SELECT CAST(? AS TEXT) AS thread_id, (SELECT MAX(checkpoint_id)"
            " FROM checkpoints WHERE checkpoint_ns = '' AND thread_id = ?) AS latest) AS known"
            f" WHERE {_IS_INTERRUPTED}",
            (thread_id, thread_id),
        )
        return bool(found)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete the checkpoint history of threads, or the threads themselves.

        Args:
            thread_ids: IDs of the threads.
            strategy: ``keep_latest`` keeps the latest checkpoint of each namespace. ``delete``
                deletes the threads.
        """
        for thread in thread_ids:
            if strategy == "delete":
                await self.adelete_thread(thread)
            else:
                await History(self.persistence, thread).prune(checkpoints=1)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with its checkpoint history and records.

        Args:
            source_thread_id: ID of the thread to copy.
            target_thread_id: ID of the copy. It must not exist yet.

        Raises:
            PersistenceError: The source does not exist, the target exists, or the target ID is
                invalid.
            ThreadBusyError: A run or a concurrent copy uses the target.
        """
        await History(self.persistence, source_thread_id).copy(target_thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that runs stored, without losing values of later checkpoints.

        Args:
            run_ids: Run IDs, as in ``run_id`` of the checkpoint metadata.
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
