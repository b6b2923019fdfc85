"""Durable records beside the checkpoints: attempts, waits and effects of single steps.

LangGraph saves a superstep when it ends. What must be on disk earlier (an effect that is about
to happen, a failed attempt and the moment of the next one) is written here, through the same
saver, each step under a checkpoint namespace of its own. It therefore survives whatever the
checkpoint of the running superstep does not, and goes when the thread is deleted.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, empty_checkpoint

from framework.base.errors import PersistenceError
from framework.stores.threads import JOURNAL

_CHANNEL = "journal"
# One row for each key: the order of records must not hang on the clock.
_ROW = "00000000-0000-6000-8000-000000000001"
_CHECKPOINT_SECONDS = 10.0


class Journal:
    """Reads and writes the records of one thread.

    Args:
        saver: The graph's checkpoint saver; ``None`` keeps no records.
        thread_id: The thread.
        checkpoint: Namespace and id of the checkpoint on which the running superstep builds;
            ``None`` when the run saves nothing before its end.
        confirm: Makes sure that this process still has the thread; called before an effect.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any] | None = None,
        thread_id: str | None = None,
        *,
        checkpoint: tuple[str, str] | None = None,
        confirm: Callable[[str | None], Awaitable[None]] | None = None,
    ) -> None:
        self._saver = saver
        self._thread_id = thread_id
        self._checkpoint = checkpoint
        self._confirm = confirm
        self._built_on_rock = checkpoint is None

    @property
    def thread_id(self) -> str | None:
        """The thread whose records these are."""
        return self._thread_id

    @property
    def durable(self) -> bool:
        """Whether records outlive the process."""
        return self._saver is not None and self._thread_id is not None

    @property
    def room(self) -> str:
        """Which graph of the thread these records belong to; empty for the outermost."""
        namespace = self._checkpoint[0] if self._checkpoint else ""
        # The identity of a task changes when its graph starts anew; its node's name does not.
        return "|".join(part.partition(":")[0] for part in namespace.split("|"))

    async def ready_for_effects(self, *, confirm: bool) -> None:
        """Wait until a restart would come back to the plan that is being run.

        LangGraph saves checkpoints in the background. An effect that happens before its plan is
        saved would be planned anew after a crash, perhaps in other words, and happen again.

        Args:
            confirm: Whether to make sure in the database that this process has the thread.

        Raises:
            PersistenceError: The checkpoint is not saved, or another process has the thread.
        """
        if not self.durable or self._saver is None:
            return
        if confirm and self._confirm is not None:
            await self._confirm(self._thread_id)
        if self._built_on_rock or self._checkpoint is None:
            return
        namespace, checkpoint_id = self._checkpoint
        config = self._at(namespace)
        config["configurable"]["checkpoint_id"] = checkpoint_id
        loop = asyncio.get_running_loop()
        end, delay = loop.time() + _CHECKPOINT_SECONDS, 0.002
        while await self._saver.aget_tuple(config) is None:
            if loop.time() > end:
                raise PersistenceError(
                    f"The plan of thread {self._thread_id!r} was not saved in"
                    f" {_CHECKPOINT_SECONDS:g} s, so no effect is begun.",
                    fix="Look at the database; then run the thread again.",
                )
            await asyncio.sleep(delay)
            delay = min(delay * 2, 0.1)
        self._built_on_rock = True

    async def read(self, key: str) -> dict[str, Any]:
        """Return the last record under a key; empty when there is none."""
        if self._saver is None or self._thread_id is None:
            return {}
        found = await self._saver.aget_tuple(self._at(f"{JOURNAL}{key}"))
        record: Any = found.checkpoint["channel_values"].get(_CHANNEL) if found else None
        return record if isinstance(record, dict) else {}

    async def write(self, key: str, record: dict[str, Any]) -> None:
        """Put a record under a key; it is durable when this returns."""
        if self._saver is None or self._thread_id is None:
            return
        checkpoint: Checkpoint = empty_checkpoint()
        version = uuid.uuid4().hex
        checkpoint["id"] = _ROW
        checkpoint["channel_values"] = {_CHANNEL: record}
        checkpoint["channel_versions"] = {_CHANNEL: version}
        await self._saver.aput(
            self._at(f"{JOURNAL}{key}"),
            checkpoint,
            {"source": "update", "step": 0},
            {_CHANNEL: version},
        )

    def _at(self, namespace: str) -> RunnableConfig:
        return {"configurable": {"thread_id": self._thread_id, "checkpoint_ns": namespace}}
