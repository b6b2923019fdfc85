"""Records beside the checkpoints of a thread, each under a checkpoint namespace of its own.

They need nothing of a saver but checkpoints, so every saver keeps them, with its own encryption,
and they go when the thread goes. A record names as its parent the checkpoint that it builds on:
when the history up to a checkpoint is dropped, the records that build on it go as well.
"""

from __future__ import annotations

import uuid
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointTuple,
    empty_checkpoint,
)

from capgraph.stores.reading import as_text, from_text

PREFIX = "capgraph-journal:"
"""Namespaces of records begin so."""
END = "end"
"""The record in which a run leaves word that it was cancelled or failed."""
NEVER = "ffffffff-ffff-6fff-bfff-ffffffffffff"
"""Sorts after every checkpoint: what builds on it is no part of history that is cut off."""
PAST_LEASE = "past_lease"
"""Stands in the metadata of what is written also by whoever has lost the thread: it happened."""
_CHANNEL = "journal"
# One row for each key: the order of records must not hang on the clock.
ROW = "00000000-0000-6000-8000-000000000001"
"""Id of the checkpoint that is a record."""


async def read_record(saver: BaseCheckpointSaver[Any], thread_id: str, key: str) -> dict[str, Any]:
    """Return the last record under a key; empty when there is none.

    Raises:
        PersistenceError: It cannot be read.
    """
    return record_of(saver, await saver.aget_tuple(thread_config(thread_id, PREFIX + key)))


def record_of(saver: BaseCheckpointSaver[Any], found: CheckpointTuple | None) -> dict[str, Any]:
    """Return the record that a checkpoint is; empty for none.

    Raises:
        PersistenceError: It cannot be read.
    """
    record: Any = found.checkpoint["channel_values"].get(_CHANNEL) if found else None
    if found is not None and isinstance(record, str):
        thread = found.config["configurable"]["thread_id"]
        record = from_text(saver.serde, record, f"of the thread {thread!r}")
    return record if isinstance(record, dict) else {}


async def write_record(
    saver: BaseCheckpointSaver[Any],
    thread_id: str,
    key: str,
    record: dict[str, Any],
    *,
    builds_on: str | None = None,
    row: str = ROW,
    **told: Any,
) -> None:
    """Put a record under a key; it is durable when this returns.

    Args:
        saver: An open saver.
        thread_id: The thread.
        key: Name of the record within the thread.
        record: Plain data.
        builds_on: The checkpoint with whose history it goes; now, when not given.
        row: The checkpoint that it is to be, where a key has several.
        **told: What the checkpoint's metadata are to say besides.

    Raises:
        PersistenceError: It cannot be kept.
    """
    checkpoint: Checkpoint = empty_checkpoint()
    version = uuid.uuid4().hex
    now, checkpoint["id"] = checkpoint["id"], row
    # As text it stands in the row itself: PostgreSQL would keep every version of anything else.
    checkpoint["channel_values"] = {_CHANNEL: as_text(saver.serde, record)}
    checkpoint["channel_versions"] = {_CHANNEL: version}
    place = thread_config(thread_id, PREFIX + key, builds_on or now)
    metadata: Any = {"source": "update", "step": 0, **told}
    await saver.aput(place, checkpoint, metadata, {_CHANNEL: version})


def thread_config(
    thread_id: str, namespace: str = "", checkpoint_id: str | None = None
) -> RunnableConfig:
    """Return the configuration by which a saver finds a thread, now or at one of its checkpoints.

    >>> thread_config("t")
    {'configurable': {'thread_id': 't', 'checkpoint_ns': ''}}
    """
    at = {} if checkpoint_id is None else {"checkpoint_id": checkpoint_id}
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, **at}}
