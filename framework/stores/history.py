"""Checkpoints as a whole, and histories cut short.

What a thread keeps is saved write by write (``DeltaChannel``), so a checkpoint alone does not say
what it holds: its value follows from those before it. Whoever copies a checkpoint, or drops those
before it, has to make it whole first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from framework.base.errors import PersistenceError
from framework.langgraph_compat import as_whole, counts_deltas
from framework.state import AgentState, StateSchema
from framework.stores.records import END, PREFIX
from framework.stores.rows import Rows, rows_of

# Sorts after every checkpoint id, in whatever language a database sorts.
_LAST = "g"
_IS_RECORD = f"substr(checkpoint_ns, 1, {len(PREFIX)}) = '{PREFIX}'"


async def whole(
    saver: BaseCheckpointSaver[Any],
    found: CheckpointTuple,
    *,
    state_schema: type[Any] = AgentState,
    only: Sequence[str] | None = None,
) -> CheckpointTuple:
    """Return a checkpoint with everything that it holds.

    Args:
        saver: Where it is from.
        found: The checkpoint.
        state_schema: The state class that it was written with.
        only: The keys that matter; all when not given.

    Raises:
        PersistenceError: It has keys that grow and that the state class does not know.
    """
    channels = {
        name: key.reducer
        for name, key in StateSchema.of(state_schema).keys.items()
        if isinstance(key.reducer, DeltaChannel) and (only is None or name in only)
    }
    unknown = sorted(counts_deltas(found) - set(channels)) if only is None else []
    if unknown:
        raise PersistenceError(
            f"The state class {state_schema.__name__} does not say how {', '.join(unknown)} of"
            f" thread {found.config['configurable'].get('thread_id')!r} is put together.",
            fix="Give the state class that the graph was built with (state_schema=…).",
        )
    return await as_whole(saver, found, channels)


class KeepsHistory(BaseCheckpointSaver[Any]):
    """What a saver of ours does with whole threads: names, copies, cuts and drops them."""

    async def thread_ids(
        self, *, limit: int | None = None, before: tuple[str, str] | None = None
    ) -> list[tuple[str, str]]:
        """Name threads with their latest checkpoint, the one that was saved last first.

        Args:
            limit: At most so many.
            before: What the last page ended with.
        """
        rows = _rows(self)
        # Checkpoint ids begin with the time.
        after = "HAVING (MAX(checkpoint_id), thread_id) < (?, ?)" if before else ""
        page = "LIMIT ?" if limit is not None else ""
        _, found = await rows.run(
            "SELECT thread_id, MAX(checkpoint_id) AS latest FROM checkpoints"
            f" WHERE checkpoint_ns = '' GROUP BY thread_id {after}"
            f" ORDER BY latest DESC, thread_id DESC {page}",
            (*((before[1], before[0]) if before else ()), *((limit,) if page else ())),
        )
        return [(str(thread), str(latest)) for thread, latest in found]

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
                await History(self, thread).cut(None)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with its history and its records."""
        rows = _rows(self)
        for table, columns in rows.tables.items():
            await rows.run(
                f"INSERT INTO {table} (thread_id, {columns}) SELECT ?, {columns} FROM {table}"
                " WHERE thread_id = ?",
                (target_thread_id, source_thread_id),
            )

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Drop what runs have saved; what followed them keeps what it holds.

        Args:
            run_ids: Ids that were given to the runs (``run_id`` in their metadata).
        """
        rows = _rows(self)
        for run in run_ids:
            _, threads = await rows.run(
                f"SELECT DISTINCT thread_id FROM checkpoints WHERE {rows.metadata('run_id')} = ?",
                (run,),
            )
            for (thread,) in threads:
                await History(self, str(thread)).drop_run(run)


def _rows(saver: BaseCheckpointSaver[Any]) -> Rows:
    rows = rows_of(saver)
    if rows is None:
        raise NotImplementedError(f"The database of {type(saver).__name__} is not known.")
    return rows


class History:
    """The history of one thread, in a saver whose database is known.

    Args:
        saver: A saver of ``open_saver``, or a plain SQLite or PostgreSQL one.
        thread_id: The thread.
        state_schema: The state class that it was written with.

    Raises:
        NotImplementedError: The saver's database is not known.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any],
        thread_id: str,
        *,
        state_schema: type[Any] = AgentState,
    ) -> None:
        self._rows = _rows(saver)
        self._saver = saver
        self._thread = thread_id
        self._schema = state_schema

    async def oldest_to_keep(
        self, *, turns: int | None = None, checkpoints: int | None = None
    ) -> str | None:
        """Return the oldest checkpoint that is kept; ``None`` when all are."""
        cuts = [
            await self._newest("", checkpoints) if checkpoints is not None else None,
            await self._turn_begin(turns) if turns is not None else None,
        ]
        return max((cut for cut in cuts if cut is not None), default=None)

    async def cut(self, oldest: str | None) -> None:
        """Drop what was saved before a checkpoint, and the records of the turns that go with it.

        The latest checkpoint of a graph inside another one stays when its next run needs it.

        Args:
            oldest: The oldest checkpoint that is kept; ``None`` for the latest.
        """
        only_latest = oldest is None
        oldest = oldest or await self._newest("", 1)
        last_turn = await self._turn_begin(1)
        first_kept = "MIN(CASE WHEN checkpoint_id >= ? THEN checkpoint_id END)"
        _, namespaces = await self._rows.run(
            f"SELECT checkpoint_ns, {first_kept}, MAX(checkpoint_id) FROM checkpoints"
            f" WHERE thread_id = ? AND NOT {_IS_RECORD} GROUP BY checkpoint_ns",
            (oldest or "", self._thread),
        )
        for namespace, first, latest in namespaces:
            if (
                first is None
                and ":" in namespace.rpartition("|")[2]
                and await self._began(namespace, latest)
            ):
                # One call of a graph inside a step: over, and nothing comes back to it.
                await self._drop("checkpoint_ns = ?", namespace)
                continue
            keep = latest if only_latest or first is None else first
            await self._make_whole(namespace, keep)
            await self._drop("checkpoint_ns = ? AND checkpoint_id < ?", namespace, keep)
        if oldest is not None:
            # The last turn may go on, and then it must not repeat an effect: its records stay.
            bound = min(oldest, last_turn or oldest)
            ended = f"{PREFIX}{END}"
            await self._drop(
                f"{_IS_RECORD} AND checkpoint_ns <> ? AND parent_checkpoint_id < ?", ended, bound
            )

    async def drop_run(self, run: str) -> None:
        """Drop the checkpoints of a run."""
        is_run = f"{self._rows.metadata('run_id')} = ?"
        gone = f"SELECT checkpoint_id FROM checkpoints WHERE thread_id = ? AND {is_run}"
        _, following = await self._rows.run(
            "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = ?"
            f" AND parent_checkpoint_id IN ({gone}) AND checkpoint_id NOT IN ({gone})",
            (self._thread, self._thread, run, self._thread, run),
        )
        for namespace, checkpoint_id in following:
            await self._make_whole(namespace, checkpoint_id)
        await self._drop(is_run, run)

    async def record_namespaces(self, checkpoint_id: str) -> list[str]:
        """Name the namespaces of the records of the turn to which a checkpoint belongs."""
        begin = await self._turn_begin(1, up_to=checkpoint_id)
        _, ends = await self._rows.run(
            "SELECT MIN(checkpoint_id) FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ''"
            f" AND {self._rows.metadata('source')} = 'input' AND checkpoint_id > ?",
            (self._thread, checkpoint_id),
        )
        _, found = await self._rows.run(
            "SELECT DISTINCT checkpoint_ns FROM checkpoints WHERE thread_id = ?"
            f" AND {_IS_RECORD} AND parent_checkpoint_id >= ? AND parent_checkpoint_id < ?",
            (self._thread, begin or "", ends[0][0] or _LAST),
        )
        return [str(row[0]) for row in found]

    async def _read(self, namespace: str, checkpoint_id: str) -> CheckpointTuple | None:
        place = {"checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}
        return await self._saver.aget_tuple({"configurable": {"thread_id": self._thread, **place}})

    async def _make_whole(self, namespace: str, checkpoint_id: str) -> None:
        found = await self._read(namespace, checkpoint_id)
        if found is None:
            return
        if counts_deltas(found):
            found = await whole(self._saver, found, state_schema=self._schema)
        checkpoint = found.checkpoint
        # Without a checkpoint's id: nothing stands before it any more.
        place: Any = {"thread_id": self._thread, "checkpoint_ns": namespace}
        await self._saver.aput(
            {"configurable": place}, checkpoint, found.metadata, checkpoint["channel_versions"]
        )
        await self._rows.run(
            "UPDATE checkpoints SET parent_checkpoint_id = NULL WHERE thread_id = ?"
            " AND checkpoint_ns = ? AND checkpoint_id = ?",
            (self._thread, namespace, checkpoint_id),
        )

    async def _began(self, namespace: str, checkpoint_id: str) -> bool:
        found = await self._read(namespace, checkpoint_id)
        return found is not None and bool((found.metadata.get("parents") or {}).get(""))

    async def _drop(self, where: str, *values: Any) -> None:
        # Writes go by the checkpoints that go: those of a run under way may be there before
        # their checkpoint is.
        _, writes, *blobs = self._rows.tables
        place = "checkpoint_ns, checkpoint_id"
        gone = f"SELECT {place} FROM checkpoints WHERE thread_id = ? AND {where}"
        await self._rows.run(
            f"DELETE FROM {writes} WHERE thread_id = ? AND ({place}) IN ({gone})",
            (self._thread, self._thread, *values),
        )
        await self._rows.run(
            f"DELETE FROM checkpoints WHERE thread_id = ? AND {where}", (self._thread, *values)
        )
        for table in blobs:
            await self._rows.run(
                f"DELETE FROM {table} b WHERE thread_id = ? AND NOT EXISTS (SELECT 1"
                " FROM checkpoints c WHERE c.thread_id = b.thread_id"
                " AND c.checkpoint_ns = b.checkpoint_ns"
                " AND c.checkpoint -> 'channel_versions' ->> b.channel = b.version)",
                (self._thread,),
            )

    async def _turn_begin(self, number: int, up_to: str = _LAST) -> str | None:
        # A turn begins where an input is taken.
        return await self._newest(f" AND {self._rows.metadata('source')} = 'input'", number, up_to)

    async def _newest(self, condition: str, number: int, up_to: str = _LAST) -> str | None:
        _, found = await self._rows.run(
            "SELECT checkpoint_id FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ''"
            f" AND checkpoint_id <= ?{condition} ORDER BY checkpoint_id DESC LIMIT 1 OFFSET ?",
            (self._thread, up_to, number - 1),
        )
        return str(found[0][0]) if found else None
