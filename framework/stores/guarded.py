"""What every saver of ours does around each operation of LangGraph's saver below it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from framework.stores.history import KeepsHistory
from framework.stores.reading import checked, readable

T = TypeVar("T")
PAGE = 100
"""So many checkpoints are read at once."""


class GuardedSaver(KeepsHistory):
    """Hands every operation to :meth:`guarded`, and checks what is read.

    It stands before LangGraph's own saver in the bases of a class.
    """

    @abstractmethod
    async def guarded(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Do an operation; what the database raises becomes an error of the project.

        Args:
            what: What is done to the database, for the message: ``read``, ``written``.
            call: Does it; rows are found by their keys, so doing it twice is doing it once.

        Raises:
            PersistenceError: The database refused, or is away.
        """

    def opened(self, found: CheckpointTuple | None) -> CheckpointTuple | None:
        """Return what was read in its own form."""
        return found

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read a checkpoint."""
        read = super().aget_tuple
        with readable(_thread(config)):
            found = await self.guarded("read", lambda: read(config))
            return checked(self.opened(found))

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
            size = left if not ordered else PAGE if left is None else min(left, PAGE)

            async def read(
                start: RunnableConfig | None = before, size: int | None = size
            ) -> list[CheckpointTuple]:
                found = listed(config, filter=filter, before=start, limit=size)
                return [item async for item in found]

            with readable(_thread(config)):
                page = [self.opened(item) for item in await self.guarded("read", read)]
            for item in page:
                if item is not None:
                    yield item
            if not ordered or size is None or len(page) < size or page[-1] is None:
                return
            before, left = page[-1].config, None if left is None else left - size

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Write a checkpoint."""
        write = super().aput
        return await self.guarded(
            "written", lambda: write(config, checkpoint, metadata, new_versions)
        )

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Write what a task gave."""
        write = super().aput_writes
        await self.guarded("written", lambda: write(config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread."""
        delete = super().adelete_thread
        await self.guarded("written", lambda: delete(thread_id))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Read what was written to channels since they were last saved as a whole."""
        read = super().aget_delta_channel_history
        with readable(_thread(config)):
            return await self.guarded("read", lambda: read(config=config, channels=channels))


def _thread(config: RunnableConfig | None) -> Any:
    return (config or {}).get("configurable", {}).get("thread_id")
