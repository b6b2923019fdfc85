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

from capgraph.stores.serialization import deserialize_text, serialize_to_text

RECORD_PREFIX = "capgraph-journal:"
"""Namespaces of records begin so."""
RUN_END = "end"
"""The record in which a run leaves word that it was cancelled or failed."""
NEVER_PRUNED = "ffffffff-ffff-6fff-bfff-ffffffffffff"
"""Sorts after every checkpoint: what builds on it is no part of history that is cut off."""
PAST_LEASE = "past_lease"
"""Stands in the metadata of what is written also by whoever has lost the thread: it happened."""
_CHANNEL = "journal"
# One row for each key: the order of records must not hang on the clock.
RECORD_ID = "00000000-0000-6000-8000-000000000001"
"""Id of the checkpoint that is a record."""


async def read_record(saver: BaseCheckpointSaver[Any], thread_id: str, key: str) -> dict[str, Any]:
    """Return the last record under a key; empty when there is none.

    Raises:
        PersistenceError: It cannot be read.
    """
    return record_from_checkpoint(
        saver, await saver.aget_tuple(thread_config(thread_id, RECORD_PREFIX + key))
    )


def record_from_checkpoint(
    saver: BaseCheckpointSaver[Any], checkpoint_tuple: CheckpointTuple | None
) -> dict[str, Any]:
    """Return the record that a checkpoint is; empty for none.

    Raises:
        PersistenceError: It cannot be read.
    """
    record: Any = (
        checkpoint_tuple.checkpoint["channel_values"].get(_CHANNEL) if checkpoint_tuple else None
    )
    if checkpoint_tuple is not None and isinstance(record, str):
        thread = checkpoint_tuple.config["configurable"]["thread_id"]
        record = deserialize_text(saver.serde, record, f"of the thread {thread!r}")
    return record if isinstance(record, dict) else {}


async def write_record(
    saver: BaseCheckpointSaver[Any],
    thread_id: str,
    key: str,
    record: dict[str, Any],
    *,
    parent_checkpoint_id: str | None = None,
    record_id: str = RECORD_ID,
    **extra_metadata: Any,
) -> None:
    """Put a record under a key; it is durable when this returns.

    Args:
        saver: An open saver.
        thread_id: The thread.
        key: Name of the record within the thread.
        record: Plain data.
        parent_checkpoint_id: The checkpoint with whose history it goes; now, when not given.
        record_id: The checkpoint that it is to be, where a key has several.
        **extra_metadata: What the checkpoint's metadata are to say besides.

    Raises:
        PersistenceError: It cannot be kept.
    """
    checkpoint: Checkpoint = empty_checkpoint()
    version = uuid.uuid4().hex
    now, checkpoint["id"] = checkpoint["id"], record_id
    # As text it stands in the row itself: PostgreSQL would keep every version of anything else.
    checkpoint["channel_values"] = {_CHANNEL: serialize_to_text(saver.serde, record)}
    checkpoint["channel_versions"] = {_CHANNEL: version}
    place = thread_config(thread_id, RECORD_PREFIX + key, parent_checkpoint_id or now)
    metadata: Any = {"source": "update", "step": 0, **extra_metadata}
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
