"""Durable records beside the checkpoints: attempts, waits and effects of single steps.

LangGraph saves a superstep when it ends. What must be on disk earlier (an effect that is about
to happen, a failed attempt and the moment of the next one) is written here, through the same
saver, each step under a checkpoint namespace of its own. It therefore survives whatever the
checkpoint of the running superstep does not, and goes when the thread is deleted.
"""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, empty_checkpoint

_CHANNEL = "journal"
_NAMESPACE = "capgraph-journal:"


class Journal:
    """Reads and writes the records of one thread.

    Args:
        saver: The graph's checkpoint saver; ``None`` keeps no records.
        thread_id: The thread.
    """

    def __init__(
        self, saver: BaseCheckpointSaver[Any] | None = None, thread_id: str | None = None
    ) -> None:
        self._saver = saver
        self._thread_id = thread_id

    @property
    def thread_id(self) -> str | None:
        """The thread whose records these are."""
        return self._thread_id

    @property
    def durable(self) -> bool:
        """Whether records outlive the process."""
        return self._saver is not None and self._thread_id is not None

    def _config(self, key: str) -> RunnableConfig:
        return {
            "configurable": {"thread_id": self._thread_id, "checkpoint_ns": f"{_NAMESPACE}{key}"}
        }

    async def read(self, key: str) -> dict[str, Any]:
        """Return the last record under a key; empty when there is none."""
        if self._saver is None or self._thread_id is None:
            return {}
        found = await self._saver.aget_tuple(self._config(key))
        record: dict[str, Any] = (
            found.checkpoint["channel_values"].get(_CHANNEL, {}) if found else {}
        )
        return record

    async def write(self, key: str, record: dict[str, Any]) -> None:
        """Put a record under a key; it is durable when this returns."""
        if self._saver is None or self._thread_id is None:
            return
        checkpoint: Checkpoint = empty_checkpoint()
        version = self._saver.get_next_version(None, None)
        checkpoint["channel_values"] = {_CHANNEL: record}
        checkpoint["channel_versions"] = {_CHANNEL: version}
        await self._saver.aput(
            self._config(key), checkpoint, {"source": "update", "step": 0}, {_CHANNEL: version}
        )
