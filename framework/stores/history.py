"""Thread histories: complete checkpoints, copies, and pruning.

Growing state keys are stored as deltas (``DeltaChannel``), so the value of a key depends on earlier
checkpoints. Before those are deleted, the first remaining checkpoint must be made complete.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import (
    CheckpointTuple,
    DeltaChannelHistory,
    writes_sort_key,
)

from capgraph.base.errors import PersistenceError
from capgraph.base.ports import Caller
from capgraph.langgraph_compat import (
    DELTA_COUNTERS,
    INTERRUPT,
    RESUME,
    delta_channel_names,
    materialize_deltas,
    replay_channel,
)
from capgraph.state import AgentState, StateSchema
from capgraph.stores.history_cache import EMPTY_HISTORY
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import RECORD_PREFIX, RUN_END, thread_config

# Sorts after every checkpoint ID in any database collation.
_LAST = "g"
_IS_RECORD = f"substr(checkpoint_ns, 1, {len(RECORD_PREFIX)}) = '{RECORD_PREFIX}'"
_CHAIN = (
    "WITH RECURSIVE chain(id, parent, depth) AS ("
    " SELECT checkpoint_id, parent_checkpoint_id, 0 FROM checkpoints"
    " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
    " UNION ALL SELECT c.checkpoint_id, c.parent_checkpoint_id, depth + 1"
    " FROM chain {join} checkpoints c ON c.checkpoint_id = chain.parent"
    " WHERE c.thread_id = ? AND c.checkpoint_ns = ? AND depth < ?)"
)
# A range scan takes half as long as one lookup per checkpoint.
_WRITES_QUERY = (
    "SELECT checkpoint_id, channel, type, {value}, task_id, idx, task_path FROM {writes}"
    " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id"
    " BETWEEN (SELECT MIN(id) FROM chain) AND (SELECT MAX(id) FROM chain) AND channel IN"
)
_DEPTHS_QUERY = "SELECT id, '', '', NULL, '', depth, COALESCE(parent, '') FROM chain"
_TURN_KEY = "control_turn"
_PENDING_KEY = "execution_pending_approvals"
_CACHE_DISTANCE = 50
"""Number of checkpoints back to a snapshot beyond which the value is cached."""


async def load_full_checkpoint(
    persistence: Persistence,
    checkpoint_tuple: CheckpointTuple,
    *,
    keys: Sequence[str] | None = None,
) -> CheckpointTuple:
    """Load the full values of delta channels into a checkpoint.

    A delta channel stores only changes since its last snapshot, so its full value is computed
    from earlier checkpoints.

    Args:
        persistence: Persistence that the checkpoint was loaded from.
        checkpoint_tuple: Checkpoint to complete.
        keys: State keys to load. ``None`` means all.

    Raises:
        PersistenceError: A delta channel is unknown to all graphs of this saver.
    """
    own_channels = {
        name: key.reducer for name, key in StateSchema.from_class(AgentState).keys.items()
    }
    known = {**own_channels, **persistence.channels}
    channels = {
        name: channel
        for name, channel in known.items()
        if isinstance(channel, DeltaChannel) and (keys is None or name in keys)
    }
    unknown = sorted(delta_channel_names(checkpoint_tuple) - set(channels)) if keys is None else []
    if unknown:
        raise PersistenceError(
            f"Cannot restore {', '.join(unknown)} of thread "
            f"{checkpoint_tuple.config['configurable'].get('thread_id')!r} because no graph built "
            "with this saver defines these state channels.",
            fix="Build the graph that wrote the thread with this saver first.",
        )
    return await materialize_deltas(persistence.saver, checkpoint_tuple, channels)


async def load_deltas_since_snapshot(
    persistence: Persistence,
    position: tuple[str, str, str],
    channels: Sequence[str],
) -> Mapping[str, DeltaChannelHistory] | None:
    """Load the writes to delta channels since each channel's last snapshot or cached value.

    LangGraph's savers find the snapshot by searching all earlier checkpoints. This function
    reads the distance to the snapshot from counters in the newest checkpoint instead.

    Args:
        persistence: Persistence whose database is known.
        position: Thread ID, namespace, and checkpoint ID.
        channels: Names of the channels.

    Returns:
        ``None`` if the newest checkpoint has no counters.
    """
    thread, namespace, latest = position
    rows, cache = persistence.tables, persistence.history_cache
    assert rows is not None
    _, metadata_rows = await rows.run(
        f"SELECT {rows.metadata(DELTA_COUNTERS)} FROM checkpoints"
        " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
        position,
    )
    counters = json.loads((metadata_rows and metadata_rows[0][0]) or "{}")
    if not channels or any(name not in counters for name in channels):
        return None
    cached = cache.get("" if namespace else thread, EMPTY_HISTORY)
    steps = {
        name: counters[name][1] - cached.counters[name][1]
        for name in channels
        if name in cached.counters
    }
    back = max(steps.values(), default=-1)
    # A channel with a newer snapshot starts at that snapshot.
    near = {name for name in channels if back >= 0 and steps.get(name) == back}
    reach = {name: back if name in near else counters[name][1] for name in channels}
    snapshot_depths = [far for name, far in reach.items() if name not in near] or [-1]
    chain_values = (*position, thread, namespace, max(reach.values()))
    marks = f"({','.join('?' * len(channels))})"
    _, found = await rows.run(
        f"{_CHAIN} {_WRITES_QUERY} {marks} UNION ALL {_DEPTHS_QUERY}"
        f" UNION ALL SELECT saved.*, '', -1, '' FROM ({rows.snapshot_query}"
        " WHERE c.thread_id = ? AND c.checkpoint_ns = ?"
        f" AND (depth IN ({','.join('?' * len(snapshot_depths))}) OR parent IS NULL)) saved",
        (*chain_values, thread, namespace, *channels, thread, namespace, *snapshot_depths),
    )
    read = persistence.saver.serde.loads_typed
    depths = {row[0]: row[5] for row in found if not row[4] and row[5] >= 0}
    if (
        near and depths.get(cached.checkpoint_id) != back
    ):  # the cached checkpoint is on another branch
        cache.pop(thread, None)
        return await load_deltas_since_snapshot(persistence, position, channels)
    roots = {row[5] for row in found if not row[4] and row[5] >= 0 and not row[6]}
    writes = [(depths.get(row[0], 0), *row[1:]) for row in found if row[4]]
    seeds = _read_snapshots(found, depths, reach, read)
    for name in near:
        seeds.setdefault(back, {})[name] = cached.read(name, persistence.saver.serde)
    result: dict[str, DeltaChannelHistory] = {}
    for name in channels:
        far = min(reach[name], max(seeds))
        if name not in seeds[far] and far not in roots:
            return None  # the counters do not lead to a snapshot
        channel_writes = [row for row in writes if row[1] == name and 0 < row[0] <= far]
        # update_state and other durability modes count differently.
        updates = counters[name][0] - (cached.counters[name][0] if name in near else 0)
        if far == reach[name] and len({row[0] for row in channel_writes}) != updates:
            return None
        channel_writes.sort(key=lambda row: (-row[0], writes_sort_key(row[6], row[4], row[5])))
        result[name] = {
            "writes": [
                (task, name, read((kind, bytes(data))))
                for _, _, kind, data, task, *_ in channel_writes
            ]
        }
        if name in seeds[far]:
            result[name]["seed"] = seeds[far][name]
    known = persistence.channels
    newer = not namespace and cached.checkpoint_id < latest
    if (
        not newer
        or max(reach.values()) <= _CACHE_DISTANCE
        or any(known.get(n) is None for n in channels)
    ):
        return result
    values = {
        name: replay_channel(channel, history)
        for name, history in result.items()
        if (channel := known[name]) is not None
    }
    own_counters = {name: counters[name] for name in values}
    cache[thread] = cached.advance(latest, own_counters, values, persistence.saver.serde)
    return {name: {"seed": value, "writes": []} for name, value in values.items()}


def _read_snapshots(
    rows: Sequence[Any], depths: Mapping[str, int], channels: Collection[str], read: Any
) -> dict[int, dict[str, Any]]:
    """Deserialize the stored channel values, grouped by the depth of their checkpoint."""
    seeds: dict[int, dict[str, Any]] = {}
    for checkpoint, name, kind, data, task, number, _ in rows:
        if not task and number < 0:
            seed = seeds.setdefault(depths[checkpoint], {})
            if name == "":
                seed |= read((kind, data))["channel_values"]
            elif name in channels:
                seed[name] = read((kind, bytes(data)))
    return seeds


class History:
    """Checkpoint history of one thread, which can be copied and pruned.

    The history is available only if the saver's database is known.

    Args:
        persistence: Persistence of a SQLite or PostgreSQL saver.
        thread_id: ID of the thread.

    Raises:
        PersistenceError: The saver uses an unknown database.
    """

    def __init__(self, persistence: Persistence, thread_id: str) -> None:
        rows = persistence.tables
        if rows is None:
            raise PersistenceError(
                f"{type(persistence.saver).__name__} cannot copy or prune the history of a thread.",
                fix="Use a SQLite or PostgreSQL saver from open_saver, or delete threads.",
            )
        self._rows = rows
        self._persistence, self._saver = persistence, persistence.saver
        self._thread = thread_id

    async def copy(
        self, target: str, *, up_to: str | None = None, caller: Caller | None = None
    ) -> None:
        """Copy the thread and its records to a new thread ID.

        A stop request for the thread also applies to the copy. Open questions and their answers are
        not copied, so the copy asks again.

        Args:
            target: ID of the copy. The ID must not be in use.
            caller: Caller for whom an unfinished turn of the copy runs; anonymous by default.
            up_to: ID of the last checkpoint to copy. ``None`` means all. All records of its turn
                are copied, so that the copy does not repeat side effects that followed it.

        Raises:
            PersistenceError: The thread does not exist, ``target`` exists, or ``target`` is
                invalid.
            ThreadBusyError: A run or another copy uses ``target``.
        """
        if not isinstance(target, str) or not target.strip() or not target.isprintable():
            raise PersistenceError(
                f"The thread ID {target!r} of the copy is invalid: it must be printable text.",
                fix="Use printable characters.",
            )
        # The lease prevents writes to the target between the check and the copy.
        lease = await self._persistence.leases.acquire(target)
        try:
            await self._check_copy(target)
            await self._copy_rows(target, up_to)
            await History(self._persistence, target)._reassign_last_turn(caller or Caller())
            await self._persistence.stops.copy_thread(self._thread, target)
        finally:
            await self._persistence.leases.release(lease)

    async def _check_copy(self, target: str) -> None:
        if await History(self._persistence, target)._exists():
            raise PersistenceError(
                f"The thread {target!r} already exists: a copy of {self._thread!r} would mix the"
                " histories of both.",
                fix=f"Choose another ID for the copy, or delete the thread {target!r} first.",
            )
        if not await self._exists():
            raise PersistenceError(
                f"The thread {self._thread!r} does not exist.",
                fix="Call list_threads to see the threads of this saver.",
            )

    async def _exists(self) -> bool:
        # The first run of a thread may have stored writes but no checkpoint yet.
        found = [
            (
                await self._rows.run(
                    f"SELECT 1 FROM {table} WHERE thread_id = ? LIMIT 1", (self._thread,)
                )
            )[1]
            for table in self._rows.checkpoint_tables
        ]
        return any(found)

    async def _copy_rows(self, target: str, up_to: str | None) -> None:
        up_to_condition, last_id = "checkpoint_id <= ?", up_to or _LAST
        # A record has a constant ID; its parent is the checkpoint that it belongs to.
        filters: dict[str, tuple[str, tuple[str, ...]]] = {
            "checkpoints": (
                f" AND CASE WHEN {_IS_RECORD} THEN parent_checkpoint_id < ? ELSE {up_to_condition} END",
                (await self._turn_end(last_id), last_id),
            ),
            # A run from a given checkpoint repeats the tasks after it.
            self._rows.placeholders["writes"]: (
                " AND checkpoint_id < ? AND channel NOT IN (?, ?)",
                (last_id, INTERRUPT, RESUME),
            ),
        }
        for table, columns in self._rows.checkpoint_tables.items():
            where, values = filters.get(table, ("", ()))
            await self._rows.run(
                f"INSERT INTO {table} (thread_id, {columns}) SELECT ?, {columns} FROM {table}"
                f" WHERE thread_id = ?{where}",
                (target, self._thread, *values),
            )
        await History(self._persistence, target)._sweep()

    async def _reassign_last_turn(self, caller: Caller) -> None:
        """Assign the last turn to a user, and remove the approvals from its pending requests."""
        found = await self._saver.aget_tuple(thread_config(self._thread))
        if found is None or not found.checkpoint["channel_values"].get(_TURN_KEY):
            return
        checkpoint, next_version = found.checkpoint, self._saver.get_next_version
        values = checkpoint["channel_values"]
        changed = assigned_turn(values, caller)
        old_versions = checkpoint["channel_versions"]
        versions: Any = {name: next_version(old_versions[name], None) for name in changed}
        own: Any = {
            **checkpoint,
            "channel_values": {**values, **changed},
            "channel_versions": {**old_versions, **versions},
        }
        parent = found.parent_config or thread_config(self._thread)
        await self._saver.aput(parent, own, found.metadata, versions)

    async def oldest_checkpoint_id(
        self, *, turns: int | None = None, checkpoints: int | None = None
    ) -> str:
        """Return the ID of the oldest checkpoint to keep for a number of turns or checkpoints.

        Args:
            turns: Number of recent turns to keep.
            checkpoints: Number of recent checkpoints to keep.

        Returns:
            The later of the two IDs, or an empty string if the history is shorter than both.
        """
        return max(
            await self._nth_newest("", checkpoints) if checkpoints is not None else "",
            await self._turn_start(turns) if turns is not None else "",
        )

    async def prune(self, *, turns: int | None = None, checkpoints: int | None = None) -> bool:
        """Delete all history and records except for the most recent turns or checkpoints.

        The latest checkpoint of a nested graph is kept if the graph's next run needs it.

        Args:
            turns: Number of turns to keep.
            checkpoints: Number of checkpoints to keep.

        Returns:
            False if the history is too short to delete anything.
        """
        oldest = await self.oldest_checkpoint_id(turns=turns, checkpoints=checkpoints)
        if not oldest:
            return False
        # The last turn may be resumed and needs its records to not repeat an effect.
        effects_bound = min(oldest, await self._turn_start(1) or oldest)
        _, namespaces = await self._rows.run(
            "SELECT checkpoint_ns, MIN(CASE WHEN checkpoint_id >= ? THEN checkpoint_id END),"
            f" MAX(checkpoint_id) FROM checkpoints WHERE thread_id = ? AND NOT {_IS_RECORD}"
            " GROUP BY checkpoint_ns",
            (oldest, self._thread),
        )
        for namespace, first, latest in namespaces:
            in_step = ":" in namespace.rpartition("|")[2]
            if first is None and in_step and await self._has_parent(namespace, latest):
                # A finished call of a graph nested in a step is never resumed.
                await self._delete("checkpoint_ns = ?", namespace)
                continue
            first_kept = latest if first is None or checkpoints == 1 else first
            await self._make_complete(namespace, first_kept)
            await self._delete("checkpoint_ns = ? AND checkpoint_id < ?", namespace, first_kept)
        await self._delete(
            f"{_IS_RECORD} AND checkpoint_ns <> ? AND parent_checkpoint_id < ?",
            f"{RECORD_PREFIX}{RUN_END}",
            effects_bound,
        )
        await self._sweep()
        return True

    async def delete_run(self, run: str) -> None:
        """Delete the checkpoints that a run of this thread created."""
        is_run = f"{self._rows.metadata('run_id')} = ?"
        deleted = f"SELECT checkpoint_id FROM checkpoints WHERE thread_id = ? AND {is_run}"
        _, following = await self._rows.run(
            "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = ?"
            f" AND parent_checkpoint_id IN ({deleted}) AND checkpoint_id NOT IN ({deleted})",
            (self._thread, self._thread, run, self._thread, run),
        )
        for namespace, checkpoint_id in following:
            await self._make_complete(namespace, checkpoint_id)
        await self._delete(is_run, run)
        await self._sweep()

    async def _read(self, namespace: str, checkpoint_id: str) -> CheckpointTuple | None:
        configurable = {"checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}
        return await self._saver.aget_tuple(
            {"configurable": {"thread_id": self._thread, **configurable}}
        )

    async def _make_complete(self, namespace: str, checkpoint_id: str) -> None:
        found = await self._read(namespace, checkpoint_id)
        if found is None:
            return
        if delta_channel_names(found):
            found = await load_full_checkpoint(self._persistence, found)
        checkpoint = found.checkpoint
        # Without a checkpoint ID, the checkpoint has no parent.
        configurable: Any = {"thread_id": self._thread, "checkpoint_ns": namespace}
        await self._saver.aput(
            {"configurable": configurable},
            checkpoint,
            found.metadata,
            checkpoint["channel_versions"],
        )
        await self._rows.run(
            "UPDATE checkpoints SET parent_checkpoint_id = NULL WHERE thread_id = ?"
            " AND checkpoint_ns = ? AND checkpoint_id = ?",
            (self._thread, namespace, checkpoint_id),
        )

    async def _has_parent(self, namespace: str, checkpoint_id: str) -> bool:
        found = await self._read(namespace, checkpoint_id)
        return found is not None and bool((found.metadata.get("parents") or {}).get(""))

    async def _delete(self, where: str, *values: Any) -> None:
        # Writes are deleted by checkpoint, because an active run may store writes before
        # their checkpoint.
        key_columns = "checkpoint_ns, checkpoint_id"
        deleted = f"SELECT {key_columns} FROM checkpoints WHERE thread_id = ? AND {where}"
        await self._rows.run(
            f"DELETE FROM {{writes}} WHERE thread_id = ? AND ({key_columns}) IN ({deleted})",
            (self._thread, self._thread, *values),
        )
        await self._rows.run(
            f"DELETE FROM checkpoints WHERE thread_id = ? AND {where}", (self._thread, *values)
        )

    async def _sweep(self) -> None:
        if self._rows.sweep_statement:
            await self._rows.run(self._rows.sweep_statement, (self._thread, self._thread))

    async def _turn_start(self, number: int) -> str:
        # A turn starts at a checkpoint with an input.
        return await self._nth_newest(f" AND {self._rows.metadata('source')} = 'input'", number)

    async def _turn_end(self, checkpoint_id: str) -> str:
        _, found = await self._rows.run(
            "SELECT MIN(checkpoint_id) FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ''"
            f" AND {self._rows.metadata('source')} = 'input' AND checkpoint_id > ?",
            (self._thread, checkpoint_id),
        )
        return str(found[0][0] or _LAST)

    async def _nth_newest(self, condition: str, number: int) -> str:
        _, found = await self._rows.run(
            "SELECT checkpoint_id FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ''"
            f"{condition} ORDER BY checkpoint_id DESC LIMIT 1 OFFSET ?",
            (self._thread, number - 1),
        )
        return str(found[0][0]) if found else ""


def assigned_turn(values: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
    """Build the state update that assigns a turn to a user and removes the turn's approvals.

    Args:
        values: State of the turn.
        caller: User who becomes the caller of the turn.
    """
    named = {name: value for name, value in asdict(caller).items() if value}
    turn = {**values[_TURN_KEY], "caller": named}
    pending = values.get(_PENDING_KEY) or {}
    shown = {key: _remove_approvals(request) for key, request in pending.items()}
    return {_TURN_KEY: turn, **({_PENDING_KEY: shown} if shown else {})}


def _remove_approvals(request: Any) -> Any:
    if not isinstance(request, Mapping) or "agreed" not in (request.get("approvals") or {}):
        return request
    return {**request, "approvals": {**request["approvals"], "agreed": []}}
