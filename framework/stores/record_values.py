"""Atomic values stored as records of a saver, for databases that are unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint

from capgraph.base.errors import PersistenceError
from capgraph.helpers.clock import Clock
from capgraph.stores.atomic_values import (
    AtomicValueStore,
    ChangeFunction,
    UndoFunction,
    write_with_undo,
)
from capgraph.stores.cross_loop import CrossLoopLock
from capgraph.stores.records import RECORD_ID, RECORD_PREFIX, thread_config

T = TypeVar("T")

_VALUES = "capgraph_values"
_RECORDS_THREAD = "d791d89e-c7f5-5c51-b1b2-0b552e55fc19"
"""Thread ID of the records. It is a UUID because some servers accept nothing else."""
_RECORDS = CrossLoopLock()
"""Lock for all record changes in this process."""


class RecordValues(AtomicValueStore):
    """Atomic value store that keeps its values in a saver's records.

    Values with the same name prefix share one record. Changes are atomic only within this
    process.

    Args:
        saver: Open saver that stores the records.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self._saver = saver

    def change(self, name: str, change: ChangeFunction[T], clock: Clock) -> T:
        """Raise an error, because savers support only asynchronous changes.

        Raises:
            PersistenceError: Always.
        """
        raise PersistenceError(
            f"{type(self._saver).__name__} does not support synchronous changes.",
            fix="Use achange().",
        )

    async def achange(
        self,
        name: str,
        change: ChangeFunction[T],
        clock: Clock,
        undo: UndoFunction[T] | None = None,
    ) -> T:
        """Atomically change a stored value without blocking the event loop."""

        async def write(change: ChangeFunction[Any]) -> Any:
            async with _RECORDS:
                found, now = await self._read(name), clock.now()
                old = found.pop(name, None)
                value, ttl, result = change(old, now)
                if value is not None and ttl > 0:
                    found[name] = value
                if found.get(name) != old:
                    await self._write(name, found)
            return result

        return await write_with_undo(write, change, undo)

    async def aread(self, prefix: str, clock: Clock) -> tuple[dict[str, Any], float]:
        """Return all values whose names start with a prefix, with the current time."""
        found = await self._read(prefix)
        return {n: v for n, v in found.items() if n.startswith(prefix)}, clock.now()

    async def aclear(self, prefix: str) -> None:
        """Delete all values whose names start with a prefix."""
        async with _RECORDS:
            found = await self._read(prefix)
            await self._write(prefix, {n: v for n, v in found.items() if not n.startswith(prefix)})

    async def _read(self, name: str) -> dict[str, Any]:
        found = await self._saver.aget_tuple(
            thread_config(_RECORDS_THREAD, RECORD_PREFIX + _kind(name))
        )
        metadata: Mapping[str, Any] = found.metadata if found is not None else {}
        return dict(metadata.get(_VALUES) or {})

    async def _write(self, name: str, values: dict[str, Any]) -> None:
        config = thread_config(_RECORDS_THREAD, RECORD_PREFIX + _kind(name))
        # Metadata is replaced, while a saver may store every version of a channel.
        metadata: Any = {"source": "update", "step": 0, _VALUES: values}
        await self._saver.aput(config, {**empty_checkpoint(), "id": RECORD_ID}, metadata, {})


def _kind(name: str) -> str:
    return name.partition("/")[0]
