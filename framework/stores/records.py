"""Records of a thread, stored as checkpoints in separate namespaces.

Any saver can store them, with its own encryption, and they are deleted with the thread. The parent
of a record is the checkpoint that it depends on. When the history up to a checkpoint is deleted,
the records that depend on it are deleted too.
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
"""Prefix of the namespaces of records."""
RUN_END = "end"
"""Name of the record with the reason why a run ended before its turn."""
NEVER_PRUNED = "ffffffff-ffff-6fff-bfff-ffffffffffff"
"""Parent ID that sorts after all checkpoints. A record with this parent is never pruned."""
PAST_LEASE = "past_lease"
"""Metadata key of writes that are allowed without a lease, because they record what already
happened.
"""
_CHANNEL = "journal"
RECORD_ID = "00000000-0000-6000-8000-000000000001"
"""Checkpoint ID of a record. It is constant so that the order of records does not depend on the
clock.
"""


async def read_record(saver: BaseCheckpointSaver[Any], thread_id: str, key: str) -> dict[str, Any]:
    """Read the latest version of a thread's record. Returns an empty dictionary if missing.

    Raises:
        PersistenceError: The record cannot be read.
    """
    return record_from_checkpoint(
        saver, await saver.aget_tuple(thread_config(thread_id, RECORD_PREFIX + key))
    )


def record_from_checkpoint(
    saver: BaseCheckpointSaver[Any], checkpoint_tuple: CheckpointTuple | None
) -> dict[str, Any]:
    """Decode the record that a checkpoint stores.

    Returns an empty dictionary if there is none.

    Raises:
        PersistenceError: The record cannot be read.
    """
    record: Any = (
        checkpoint_tuple.checkpoint["channel_values"].get(_CHANNEL) if checkpoint_tuple else None
    )
    if checkpoint_tuple is not None and isinstance(record, str):
        thread = checkpoint_tuple.config["configurable"]["thread_id"]
        record = deserialize_text(saver.serde, record, f"of thread {thread!r}")
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
    """Store a record in a thread. The record is durable when this function returns.

    Args:
        saver: An open saver.
        thread_id: ID of the thread.
        key: Name of the record within the thread.
        record: Content of the record, as plain data.
        parent_checkpoint_id: ID of the checkpoint with which the record is pruned. Defaults to
            an ID for the current time.
        record_id: Checkpoint ID of the record, for names that have several records.
        **extra_metadata: Additional metadata for the record's checkpoint.

    Raises:
        PersistenceError: The record cannot be stored.
    """
    checkpoint: Checkpoint = empty_checkpoint()
    version = uuid.uuid4().hex
    now, checkpoint["id"] = checkpoint["id"], record_id
    # Text is stored in the row itself. PostgreSQL would keep every version of other values.
    checkpoint["channel_values"] = {_CHANNEL: serialize_to_text(saver.serde, record)}
    checkpoint["channel_versions"] = {_CHANNEL: version}
    place = thread_config(thread_id, RECORD_PREFIX + key, parent_checkpoint_id or now)
    metadata: Any = {"source": "update", "step": 0, **extra_metadata}
    await saver.aput(place, checkpoint, metadata, {_CHANNEL: version})


def thread_config(
    thread_id: str, namespace: str = "", checkpoint_id: str | None = None
) -> RunnableConfig:
    """Create the saver configuration that selects a thread or one of its checkpoints.

    >>> thread_config("t")
    {'configurable': {'thread_id': 't', 'checkpoint_ns': ''}}
    """
    at = {} if checkpoint_id is None else {"checkpoint_id": checkpoint_id}
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, **at}}
