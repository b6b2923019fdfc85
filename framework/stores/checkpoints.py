"""Agent snapshots in a state store, a LangGraph store, or a saver.

In a store, each snapshot and each of its index entries is a separate key. Saving needs no
read-modify-write, so concurrent saves are safe, and all keys of a snapshot expire together.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6
from langgraph.store.base import BaseStore

from capgraph.base.errors import ConfigurationError, PersistenceError, ValidationError
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.helpers.clock import Clock, SystemClock, as_clock
from capgraph.helpers.dict_serialization import DictSerializable
from capgraph.helpers.plain_data import copy_plain, to_json_text
from capgraph.langgraph_compat import is_state_key, plain_values
from capgraph.stores.custom_store import ListableStore, as_listable_store
from capgraph.stores.history import load_full_checkpoint
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import RECORD_PREFIX, record_from_checkpoint, write_record
from capgraph.stores.state_store import BaseStateStore

_KEY = "saved"
_PAGE = 1000


@validate_arguments
@dataclass
class Checkpoint(DictSerializable):
    """Stored snapshot of an agent's state.

    Attributes:
        checkpoint_id: Unique ID. IDs sort by the time of saving.
        agent_id: ID of the agent.
        state: State of the agent.
        timestamp: Time of saving.
        metadata: Additional data.
        execution_id: ID of the execution; in a saver, the thread ID.
    """

    checkpoint_id: str
    agent_id: str
    state: dict[str, Any]
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))
    metadata: dict[str, Any] = field(default_factory=dict)
    execution_id: str | None = None


class CheckpointManager:
    """Manager that saves and loads snapshots of agents.

    With a saver, the snapshots of an execution are the checkpoints of the thread with that ID. A
    compiled agent saves these itself and resumes from them, so nothing is stored twice.

    Args:
        store: A state store, a LangGraph store, or a saver.
        default_ttl: Time to live of snapshots in seconds. ``None`` means no expiry.
        clock: Clock for expiry in a LangGraph store, for tests.

    Attributes:
        saver: Saver to compile an agent with; ``None`` if the manager uses a store.

    Raises:
        ConfigurationError: The store has an unsupported type, or a saver is combined with a TTL.

    >>> import asyncio
    >>> from capgraph.stores import InMemoryStateStore
    >>> async def main():
    ...     manager = CheckpointManager(InMemoryStateStore())
    ...     await manager.save("pilot", {"steps": ["taxi"]}, "flight 7")
    ...     await manager.save("pilot", {"steps": ["taxi", "climb"]}, "flight 7")
    ...     return (await manager.load_latest_for_execution("flight 7")).state
    >>> asyncio.run(main())
    {'steps': ['taxi', 'climb']}
    """

    @validate_arguments
    def __init__(
        self,
        store: BaseStateStore | BaseStore | BaseCheckpointSaver[Any],
        default_ttl: float | None = None,
        *,
        clock: Clock | Callable[[], float] | None = None,
    ) -> None:
        self.saver: BaseCheckpointSaver[Any] | None = (
            store if isinstance(store, BaseCheckpointSaver) else None
        )
        self._ttl = default_ttl
        if isinstance(store, BaseStateStore):
            self._backend: _StoreBackend | _SaverBackend = _StoreBackend(as_listable_store(store))
        elif isinstance(store, BaseStore):
            time = SystemClock() if clock is None else as_clock(clock)
            self._backend = _StoreBackend(_LangGraphStoreAdapter(store, time))
        else:
            self._backend = _SaverBackend(store)

    @validate_arguments
    async def save(
        self,
        agent_id: str,
        state: dict[str, Any],
        execution_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        ttl: float | None = None,
    ) -> str:
        """Save a snapshot of an agent's state and return the snapshot's ID.

        Args:
            agent_id: ID of the agent.
            state: State of the agent, as plain JSON data.
            execution_id: ID of the execution that the snapshot belongs to.
            metadata: Additional data, as plain JSON data.
            ttl: Time to live in seconds; overrides ``default_ttl``.

        Returns:
            The checkpoint ID.

        Raises:
            ValidationError: The state or the metadata is not plain data. The message names the
                path.
            ConfigurationError: A TTL is used with a saver.
        """
        to_json_text(state, "state")
        to_json_text(metadata or {}, "metadata")
        found = Checkpoint(
            str(uuid6()), agent_id, state, metadata=metadata or {}, execution_id=execution_id
        )
        return await self._backend.save(found, self._ttl if ttl is None else ttl)

    @validate_arguments
    async def load(self, checkpoint_id: str) -> Checkpoint | None:
        """Return a snapshot of an agent, or ``None`` if it does not exist or has expired."""
        return await self._backend.get(checkpoint_id)

    @validate_arguments
    async def list(self, agent_id: str) -> builtins.list[Checkpoint]:
        """Return the stored snapshots of an agent, oldest first.

        With a saver, the list includes graph checkpoints whose metadata contains this ``agent_id``.
        """
        return await self._backend.of("agent", agent_id)

    @validate_arguments
    async def list_by_execution(self, execution_id: str) -> builtins.list[Checkpoint]:
        """Return the stored snapshots of an execution, oldest first."""
        return await self._backend.of("execution", execution_id)

    @validate_arguments
    async def load_latest_for_execution(self, execution_id: str) -> Checkpoint | None:
        """Return the newest snapshot of an execution without loading the older ones.

        For a thread in which a graph ran, the newest snapshot is the graph's latest checkpoint.
        """
        return await self._backend.latest(execution_id)

    @validate_arguments
    async def delete(self, checkpoint_id: str, agent_id: str) -> None:
        """Delete a snapshot and remove it from all indexes.

        Deleting a missing snapshot has no effect.

        Raises:
            ValidationError: The snapshot belongs to a different agent.
            PersistenceError: The snapshot is part of a thread's history.
        """
        found = await self.load(checkpoint_id)
        if found is None:
            return
        if found.agent_id != agent_id:
            raise ValidationError(
                f"The checkpoint {checkpoint_id!r} belongs to a different agent than {agent_id!r}.",
                fix=f"Pass agent_id={found.agent_id!r}.",
            )
        await self._backend.drop(found)


class _StoreBackend:
    """Backend that keeps snapshots in a store, with a data entry and one entry per index."""

    def __init__(self, store: BaseStateStore | ListableStore | _LangGraphStoreAdapter) -> None:
        self._store = store

    async def save(self, checkpoint: Checkpoint, ttl: float | None) -> str:
        name = checkpoint.checkpoint_id
        await self._store.set(_key_prefix("data") + name, checkpoint.to_dict(), ttl)
        for prefix in _index_prefixes(checkpoint):
            await self._store.set(prefix + name, {}, ttl)
        return name

    async def get(self, checkpoint_id: str) -> Checkpoint | None:
        found = await self._store.get(_key_prefix("data") + checkpoint_id)
        return None if found is None else Checkpoint.from_dict(found)

    async def of(self, index: str, owner: str) -> list[Checkpoint]:
        names = await self._names(index, owner)
        return [found for name in names if (found := await self.get(name)) is not None]

    async def latest(self, execution_id: str) -> Checkpoint | None:
        for name in reversed(await self._names("execution", execution_id)):
            if (found := await self.get(name)) is not None:
                return found
        return None

    async def drop(self, checkpoint: Checkpoint) -> None:
        for prefix in (*_index_prefixes(checkpoint), _key_prefix("data")):
            await self._store.delete(prefix + checkpoint.checkpoint_id)

    async def _names(self, *parts: str) -> list[str]:
        prefix = _key_prefix(*parts)
        return sorted(key.removeprefix(prefix) for key in await self._store.entries(prefix))


def _key_prefix(*parts: str) -> str:
    return "/".join(("checkpoints", *(quote(part, safe="") for part in parts), ""))


def _index_prefixes(checkpoint: Checkpoint) -> list[str]:
    execution_id = checkpoint.execution_id
    prefixes = [_key_prefix("agent", checkpoint.agent_id)]
    return prefixes if execution_id is None else [*prefixes, _key_prefix("execution", execution_id)]


class _LangGraphStoreAdapter:
    """Adapter that lets a LangGraph store be used with string keys.

    LangGraph stores may return expired items, so each value is stored with its expiration time.
    """

    def __init__(self, store: BaseStore, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def set(self, key: str, value: Any, ttl: float | None) -> None:
        until = None if ttl is None else self._clock.now() + ttl
        options: dict[str, Any] = (
            {"ttl": ttl / 60} if ttl is not None and self._store.supports_ttl else {}
        )
        item = {"value": value, "until": until}
        await self._store.aput(*_split_key(key), item, index=False, **options)

    async def get(self, key: str) -> Any:
        found = await self._store.aget(*_split_key(key), refresh_ttl=False)
        # LangGraph's store in memory returns its own objects.
        return copy_plain(found.value["value"]) if found and self._is_current(found.value) else None

    async def entries(self, prefix: str) -> list[str]:
        (namespace, _), names, offset = _split_key(prefix), [], 0
        while True:
            page = await self._store.asearch(
                namespace, limit=_PAGE, offset=offset, refresh_ttl=False
            )
            names += [i.key for i in page if i.namespace == namespace and self._is_current(i.value)]
            offset += len(page)
            if len(page) < _PAGE:
                return names

    async def delete(self, key: str) -> None:
        await self._store.adelete(*_split_key(key))

    def _is_current(self, value: dict[str, Any]) -> bool:
        return value["until"] is None or bool(value["until"] > self._clock.now())


def _split_key(key: str) -> tuple[tuple[str, ...], str]:
    # LangGraph does not allow empty names or periods in namespaces.
    first, *parts, name = key.split("/")
    return ("capgraph", first, *(f"_{part}".replace(".", "%2E") for part in parts)), name


class _SaverBackend:
    """Backend that reads and writes snapshots in a LangGraph saver.

    Its snapshots are the checkpoints of graphs, and records of snapshots that were saved
    manually.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self._saver = saver

    async def save(self, checkpoint: Checkpoint, ttl: float | None) -> str:
        if ttl is not None:
            raise ConfigurationError(
                f"A snapshot in a saver cannot have ttl={ttl:g}, because savers do not expire "
                "checkpoints.",
                fix="Omit the TTL and delete old threads with prune_threads.",
            )
        execution_id, row = checkpoint.execution_id, checkpoint.checkpoint_id
        thread = f"agent:{checkpoint.agent_id}" if execution_id is None else execution_id
        checkpoint.checkpoint_id = f"{row}@{thread}"
        extra_metadata = {"agent_id": checkpoint.agent_id}
        await write_record(
            self._saver, thread, _KEY, checkpoint.to_dict(), record_id=row, **extra_metadata
        )
        return checkpoint.checkpoint_id

    async def get(self, checkpoint_id: str) -> Checkpoint | None:
        row, _, thread = checkpoint_id.partition("@")
        for namespace in ("", f"{RECORD_PREFIX}{_KEY}"):
            if thread and (found := await self._load_at(thread, namespace, checkpoint_id=row)):
                return found
        return None

    async def of(self, index: str, owner: str) -> list[Checkpoint]:
        if index == "agent":
            found = self._saver.alist(None, filter={"agent_id": owner})
        else:
            found = self._saver.alist({"configurable": {"thread_id": owner}})
        read = [await self._read(item) async for item in found]
        return sorted((c for c in read if c is not None), key=lambda c: c.checkpoint_id)

    async def latest(self, execution_id: str) -> Checkpoint | None:
        found = await self._load_at(execution_id, "") or await self._load_at(
            execution_id, RECORD_PREFIX + _KEY
        )
        if found is None:  # the newest one may have been deleted
            found = next(reversed(await self.of("execution", execution_id)), None)
        return found

    async def drop(self, checkpoint: Checkpoint) -> None:
        row, _, thread = checkpoint.checkpoint_id.partition("@")
        if await self._load_at(thread, "", checkpoint_id=row) is not None:
            raise PersistenceError(
                f"Cannot delete checkpoint {checkpoint.checkpoint_id!r}, because it is part of "
                "the history of a thread.",
                fix="Prune the history with prune_threads.",
            )
        # Savers cannot delete a single checkpoint, so its content is cleared.
        await write_record(self._saver, thread, _KEY, {}, record_id=row)

    async def _load_at(self, thread: str, namespace: str, **checkpoint: str) -> Checkpoint | None:
        configurable = {"thread_id": thread, "checkpoint_ns": namespace, **checkpoint}
        found = await self._saver.aget_tuple({"configurable": configurable})
        return None if found is None else await self._read(found)

    async def _read(self, checkpoint_tuple: CheckpointTuple) -> Checkpoint | None:
        configurable = checkpoint_tuple.config["configurable"]
        if configurable["checkpoint_ns"] == f"{RECORD_PREFIX}{_KEY}":
            record = record_from_checkpoint(self._saver, checkpoint_tuple)
            return Checkpoint.from_dict(record) if record else None
        if configurable["checkpoint_ns"]:
            return None  # a nested graph's checkpoint, or another record
        values = plain_values(
            await load_full_checkpoint(Persistence.of(self._saver), checkpoint_tuple)
        )
        return Checkpoint(
            f"{checkpoint_tuple.checkpoint['id']}@{configurable['thread_id']}",
            str(checkpoint_tuple.metadata.get("agent_id", "")),
            {n: v for n, v in values.items() if is_state_key(n)},
            datetime.fromisoformat(checkpoint_tuple.checkpoint["ts"]),
            dict(checkpoint_tuple.metadata),
            configurable["thread_id"],
        )
