"""Snapshots of agents, in a state store, in a LangGraph store or beside a saver's threads.

In a store each snapshot is an entry of its own, and so is its place in each index: nothing is read
in order to be written, so saves at the same time lose nothing, and all of it expires together.
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
from capgraph.stores.history import load_full_checkpoint
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import RECORD_PREFIX, record_from_checkpoint, write_record
from capgraph.stores.state_store import BaseStateStore

_KEY = "saved"
_PAGE = 1000


@validate_arguments
@dataclass
class Checkpoint(DictSerializable):
    """What an agent had come to at one moment.

    Attributes:
        checkpoint_id: Names it; of two, the one that was saved later has the greater name.
        agent_id: Whose it is.
        state: What the agent keeps of itself.
        timestamp: When it was saved.
        metadata: What else is known of it.
        execution_id: The run that it belongs to; of a saver, the thread.
    """

    checkpoint_id: str
    agent_id: str
    state: dict[str, Any]
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))
    metadata: dict[str, Any] = field(default_factory=dict)
    execution_id: str | None = None


class CheckpointManager:
    """Saves snapshots of agents and finds them again.

    With a saver, the snapshots of an execution are the checkpoints of the thread of that name: what
    a compiled agent saves there by itself. It resumes from those, so nothing is kept twice.

    Args:
        store: A state store, a LangGraph store or a saver.
        default_ttl: For how many seconds snapshots are kept; for ever when not given.
        clock: Tells the time to expiry in a LangGraph store, in tests.

    Attributes:
        saver: The saver to compile an agent with; ``None`` with a store.

    Raises:
        ConfigurationError: The store is none of these, or a saver is to forget by itself.

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
            self._kept: _InStore | _InSaver = _InStore(store)
        elif isinstance(store, BaseStore):
            time = SystemClock() if clock is None else as_clock(clock)
            self._kept = _InStore(_OfLangGraph(store, time))
        else:
            self._kept = _InSaver(store)

    @validate_arguments
    async def save(
        self,
        agent_id: str,
        state: dict[str, Any],
        execution_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        ttl: float | None = None,
    ) -> str:
        """Save a snapshot.

        Args:
            agent_id: Whose it is.
            state: Plain data.
            execution_id: The run that it belongs to.
            metadata: What else is to be known of it; plain data.
            ttl: For how many seconds it is kept, in place of ``default_ttl``.

        Returns:
            The name of the snapshot.

        Raises:
            ValidationError: The state or the metadata are no plain data; names the place.
            ConfigurationError: A saver is to forget by itself.
        """
        to_json_text(state, "state")
        to_json_text(metadata or {}, "metadata")
        found = Checkpoint(
            str(uuid6()), agent_id, state, metadata=metadata or {}, execution_id=execution_id
        )
        return await self._kept.put(found, self._ttl if ttl is None else ttl)

    @validate_arguments
    async def load(self, checkpoint_id: str) -> Checkpoint | None:
        """Return a snapshot; ``None`` when there is none, or its time is over."""
        return await self._kept.get(checkpoint_id)

    @validate_arguments
    async def list(self, agent_id: str) -> builtins.list[Checkpoint]:
        """Return the snapshots of an agent, the oldest first.

        Of a saver, also those of graphs that ran with ``agent_id`` in the metadata of their
        configuration.
        """
        return await self._kept.of("agent", agent_id)

    @validate_arguments
    async def list_by_execution(self, execution_id: str) -> builtins.list[Checkpoint]:
        """Return the snapshots of a run, the oldest first."""
        return await self._kept.of("execution", execution_id)

    @validate_arguments
    async def load_latest_for_execution(self, execution_id: str) -> Checkpoint | None:
        """Return the newest snapshot of a run, without loading the others.

        Of a thread in which a graph ran, the graph's own newest checkpoint.
        """
        return await self._kept.latest(execution_id)

    @validate_arguments
    async def delete(self, checkpoint_id: str, agent_id: str) -> None:
        """Take a snapshot away, from all indices; nothing happens when there is none.

        Raises:
            ValidationError: It is another agent's.
            PersistenceError: It is part of a thread's history.
        """
        found = await self.load(checkpoint_id)
        if found is None:
            return
        if found.agent_id != agent_id:
            raise ValidationError(
                f"The checkpoint {checkpoint_id!r} is not of agent {agent_id!r}.",
                fix=f"Name its agent, {found.agent_id!r}.",
            )
        await self._kept.drop(found)


class _InStore:
    """Snapshots in entries of a store: one with the data, and one in each index."""

    def __init__(self, store: BaseStateStore | _OfLangGraph) -> None:
        self._store = store

    async def put(self, checkpoint: Checkpoint, ttl: float | None) -> str:
        name = checkpoint.checkpoint_id
        await self._store.set(_place("data") + name, checkpoint.to_dict(), ttl)
        for place in _indices(checkpoint):
            await self._store.set(place + name, {}, ttl)
        return name

    async def get(self, checkpoint_id: str) -> Checkpoint | None:
        found = await self._store.get(_place("data") + checkpoint_id)
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
        for place in (*_indices(checkpoint), _place("data")):
            await self._store.delete(place + checkpoint.checkpoint_id)

    async def _names(self, *place: str) -> list[str]:
        prefix = _place(*place)
        return sorted(key.removeprefix(prefix) for key in await self._store.entries(prefix))


def _place(*parts: str) -> str:
    return "/".join(("checkpoints", *(quote(part, safe="") for part in parts), ""))


def _indices(checkpoint: Checkpoint) -> list[str]:
    run = checkpoint.execution_id
    places = [_place("agent", checkpoint.agent_id)]
    return places if run is None else [*places, _place("execution", run)]


class _OfLangGraph:
    """A store of LangGraph with keys that name places; it gives what has expired, so each says when."""

    def __init__(self, store: BaseStore, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def set(self, key: str, value: Any, ttl: float | None) -> None:
        until = None if ttl is None else self._clock.now() + ttl
        dropped: dict[str, Any] = (
            {"ttl": ttl / 60} if ttl is not None and self._store.supports_ttl else {}
        )
        kept = {"value": value, "until": until}
        await self._store.aput(*_namespaced(key), kept, index=False, **dropped)

    async def get(self, key: str) -> Any:
        found = await self._store.aget(*_namespaced(key), refresh_ttl=False)
        # LangGraph's store in memory gives what it holds itself.
        return copy_plain(found.value["value"]) if found and self._lasts(found.value) else None

    async def entries(self, prefix: str) -> list[str]:
        (namespace, _), names, offset = _namespaced(prefix), [], 0
        while True:
            page = await self._store.asearch(
                namespace, limit=_PAGE, offset=offset, refresh_ttl=False
            )
            names += [i.key for i in page if i.namespace == namespace and self._lasts(i.value)]
            offset += len(page)
            if len(page) < _PAGE:
                return names

    async def delete(self, key: str) -> None:
        await self._store.adelete(*_namespaced(key))

    def _lasts(self, value: dict[str, Any]) -> bool:
        return value["until"] is None or bool(value["until"] > self._clock.now())


def _namespaced(key: str) -> tuple[tuple[str, ...], str]:
    # LangGraph takes no empty names, and none with a full stop.
    first, *parts, name = key.split("/")
    return ("capgraph", first, *(f"_{part}".replace(".", "%2E") for part in parts)), name


class _InSaver:
    """Snapshots as checkpoints of threads: a graph's own, and those saved by hand beside them."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self._saver = saver

    async def put(self, checkpoint: Checkpoint, ttl: float | None) -> str:
        if ttl is not None:
            raise ConfigurationError(
                f"A saver does not forget by itself after {ttl:g} seconds.",
                fix="Leave the time out, and drop threads by prune_threads.",
            )
        run, row = checkpoint.execution_id, checkpoint.checkpoint_id
        thread = f"agent:{checkpoint.agent_id}" if run is None else run
        checkpoint.checkpoint_id = f"{row}@{thread}"
        told = {"agent_id": checkpoint.agent_id}
        await write_record(self._saver, thread, _KEY, checkpoint.to_dict(), record_id=row, **told)
        return checkpoint.checkpoint_id

    async def get(self, checkpoint_id: str) -> Checkpoint | None:
        row, _, thread = checkpoint_id.partition("@")
        for namespace in ("", f"{RECORD_PREFIX}{_KEY}"):
            if thread and (found := await self._at(thread, namespace, checkpoint_id=row)):
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
        found = await self._at(execution_id, "") or await self._at(
            execution_id, RECORD_PREFIX + _KEY
        )
        if found is None:  # the newest may be one that was taken away
            found = next(reversed(await self.of("execution", execution_id)), None)
        return found

    async def drop(self, checkpoint: Checkpoint) -> None:
        row, _, thread = checkpoint.checkpoint_id.partition("@")
        if await self._at(thread, "", checkpoint_id=row) is not None:
            raise PersistenceError(
                f"The checkpoint {checkpoint.checkpoint_id!r} is part of the history of its thread.",
                fix="Cut the history by prune_threads.",
            )
        # No saver can drop a single one; this leaves nothing of it but its place.
        await write_record(self._saver, thread, _KEY, {}, record_id=row)

    async def _at(self, thread: str, namespace: str, **named: str) -> Checkpoint | None:
        place = {"thread_id": thread, "checkpoint_ns": namespace, **named}
        found = await self._saver.aget_tuple({"configurable": place})
        return None if found is None else await self._read(found)

    async def _read(self, found: CheckpointTuple) -> Checkpoint | None:
        place = found.config["configurable"]
        if place["checkpoint_ns"] == f"{RECORD_PREFIX}{_KEY}":
            record = record_from_checkpoint(self._saver, found)
            return Checkpoint.from_dict(record) if record else None
        if place["checkpoint_ns"]:
            return None  # of a graph inside a step, or a record of another kind
        values = plain_values(await load_full_checkpoint(Persistence.of(self._saver), found))
        return Checkpoint(
            f"{found.checkpoint['id']}@{place['thread_id']}",
            str(found.metadata.get("agent_id", "")),
            {n: v for n, v in values.items() if is_state_key(n)},
            datetime.fromisoformat(found.checkpoint["ts"]),
            dict(found.metadata),
            place["thread_id"],
        )
