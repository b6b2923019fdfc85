"""Signals: external events that resume the steps that wait for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.graph.state import CompiledStateGraph

from capgraph.base.errors import (
    ConfigurationError,
    PersistenceError,
    PolicyError,
    ThreadBusyError,
    ValidationError,
)
from capgraph.base.ports import Caller
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.langgraph_compat import find_saver, merged_config, plain_values
from capgraph.pipeline.run_config import caller_from_configurable, configurable_for
from capgraph.planning.waits import MAX_EVENT_KEY_LENGTH, is_event_key
from capgraph.stores.persistence import Persistence
from capgraph.stores.waits import SuspendedThread, open_waits, store_signal

_MAX_ATTEMPTS = 20
_DELAY_SECONDS = 0.1


@validate_arguments
async def signal(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    thread: str,
    key: str | Any,
    value: Any = None,
    *,
    config: RunnableConfig | None = None,
    run: bool = True,
    early: bool = False,
) -> bool:
    """Send an external event to a thread and resume the step that is waiting for the event.

    If no step is waiting yet, the event is stored until a step receives it. Sending the same
    event again has no effect while the event is stored, or after a step of the current turn
    received it.

    Args:
        graph: Graph that ``build_graph`` returned, with a saver.
        thread: ID of the thread.
        key: Key of the event, as in the step's ``wait_for``.
        value: Payload, as plain JSON. The step's parameters refer to it as ``{"$from": "signal"}``.
        config: Configuration that identifies the sender, as for a run. None means that the
            application sends the event. The turn always continues as the caller who started it.
        run: True to run the thread in this process until its turn ends or waits again. Otherwise,
            or if another process holds the thread's lease, that process must call :func:`wake`.
        early: True to store the event even if the thread does not exist yet.

    Returns:
        True if a step waited for the event.

    Raises:
        ValidationError: The key or the payload is invalid.
        PersistenceError: The thread does not exist.
        PolicyError: The sender belongs to another tenant, or may not use the waiting capability.

    >>> from capgraph import build_graph, signal
    >>> from langgraph.checkpoint.memory import InMemorySaver
    >>> async def main():
    ...     graph = build_graph([], checkpointer=InMemorySaver())
    ...     config = {"configurable": {"thread_id": "1"}}
    ...     await graph.ainvoke({"messages": [("user", "Sing")]}, config)
    ...     return await signal(graph, "1", "paid", {"amount": 3})
    >>> asyncio.run(main())
    False
    """
    persistence = _require_persistence(graph)
    saver, suspended = persistence.saver, persistence.waits
    _check_signal(key, value, graph)
    found = await (
        saver.aget_tuple(_create_config(thread)) if early else _load_checkpoint(saver, thread)
    )
    waits = open_waits(found) if found is not None else ()
    waiting = [wait for wait in waits if wait.get("for") == key]
    known = await suspended.get(thread)
    _check_sender(
        graph, caller_from_configurable((config or {}).get("configurable") or {}), known, waiting
    )
    values = plain_values(found) if found is not None else {}
    turn = str((values.get("control_turn") or {}).get("id") or "")
    await store_signal(saver, thread, key, value, turn)
    if not waiting:
        return False
    await suspended.wake_now(thread)
    if run:
        await wake(graph, thread)
    return True


@validate_arguments
async def wake(graph: CompiledStateGraph[Any, Any, Any, Any], thread: str) -> None:
    """Resume a suspended thread until its turn ends or waits again.

    The thread runs as the caller who started the turn. If no wait has ended, nothing happens.
    If another process is running the thread, that run receives the event. This function waits
    only for a run that is about to end.

    Args:
        graph: Graph that ``build_graph`` returned, with a saver.
        thread: ID of the thread, for example from :func:`capgraph.stores.list_suspended_threads`.

    Raises:
        PersistenceError: The thread does not exist.
    """
    persistence = _require_persistence(graph)
    saver, suspended = persistence.saver, persistence.waits
    await _load_checkpoint(saver, thread)
    known = await suspended.get(thread)
    config = _create_config(thread, known.caller if known is not None else Caller())
    for left in reversed(range(_MAX_ATTEMPTS)):
        try:
            await graph.ainvoke(None, config)
            break
        except ThreadBusyError:
            if not left:
                return
            await asyncio.sleep(_DELAY_SECONDS)
    found = await saver.aget_tuple(_create_config(thread))
    if known is not None and (found is None or not open_waits(found)):
        await suspended.drop(known)


async def _load_checkpoint(saver: BaseCheckpointSaver[Any], thread: str) -> CheckpointTuple:
    found = await saver.aget_tuple(_create_config(thread))
    if found is None:
        raise PersistenceError(
            f"The thread {thread!r} does not exist.",
            fix="Use the ID of an existing thread.",
            facts={"thread_id": thread},
        )
    return found


def _require_persistence(graph: CompiledStateGraph[Any, Any, Any, Any]) -> Persistence:
    saver = find_saver(graph, merged_config(graph, None))
    if saver is None:
        raise ConfigurationError(
            "The graph has no saver: steps can wait only in stored threads.",
            fix="Pass a checkpointer to build_graph.",
        )
    return Persistence.of(saver)


def _check_signal(key: str, value: Any, graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
    if not is_event_key(key):
        raise ValidationError(
            f"The event key {key!r:.80} is invalid: it is empty, too long, or not printable.",
            fix=f"Use 1 to {MAX_EVENT_KEY_LENGTH} printable characters.",
        )
    try:
        size = len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as exc:
        raise ValidationError(
            f"The payload of the signal {key!r} is not JSON-serializable: {exc}.",
            fix="Send text, numbers, booleans, null, lists and objects.",
        ) from exc
    services = getattr(graph, "services", None)
    max_chars = services.limits.max_message_chars if services is not None else size
    if size > max_chars:
        raise ValidationError(
            f"The payload of the signal {key!r} has {size:,} characters; the limit is"
            f" {max_chars:,}.",
            fix="Store the data in a file and send its name, or raise limits.max_message_chars.",
            facts={"size": size, "limit": max_chars},
        )


def _check_sender(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    sender: Caller,
    due: SuspendedThread | None,
    waiting: Sequence[Mapping[str, Any]],
) -> None:
    """Check that the sender of a signal may resume the steps that wait for it."""
    if sender == Caller():
        return
    tenant = due.caller.tenant if due is not None else None
    if tenant is not None and sender.tenant != tenant:
        raise PolicyError(
            f"The thread belongs to another tenant: the sender has the tenant {sender.tenant!r}.",
            fix="Send the signal as a user of the thread's tenant.",
        )
    permissions = getattr(getattr(graph, "services", None), "permissions", None)
    for wait in waiting:
        if permissions is not None and not permissions.outcome(wait["capability"], sender).allowed:
            raise PolicyError(
                f"The sender does not have permission to use {wait['capability']!r}, the "
                "capability that waits for the signal.",
                fix="Send the signal as a caller who may use the capability.",
            )


def _create_config(thread: str, caller: Caller | None = None) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, **configurable_for(caller or Caller())}}
