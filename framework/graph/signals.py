"""Events from outside: kept for the thread, and what waits for them goes on."""

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

_TRIES = 20
_BETWEEN = 0.1


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
    """Tell a thread that an event came; the step that waits for it goes on.

    One that comes before a step waits for it is kept, until a turn takes it. One that is kept
    already, or that the turn under way has taken, changes nothing: send it as often as you like.

    Args:
        graph: A graph of ``build_graph`` with a saver.
        thread: Id of the thread.
        key: Key of the event, as ``wait_for`` of the step has it.
        value: What comes with it, as plain JSON; parameters of the step have it as
            ``{"$from": "signal"}``.
        config: Who sends it, as for a run; the program itself when not given. The turn goes on as
            whoever began it, whoever sends the signal.
        run: Whether the thread goes on here, until its turn ends or waits again. Otherwise, and
            where another process has the thread, whoever serves it wakes it (:func:`wake`).
        early: Whether it is kept for a thread that nobody has begun yet.

    Returns:
        Whether a step waited for it.

    Raises:
        ValidationError: Key or value cannot be used.
        PersistenceError: There is no such thread.
        PolicyError: The sender is of another tenant, or may not use what waits.

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
    persistence = _persistence(graph)
    saver, suspended = persistence.saver, persistence.waits
    _check(key, value, graph)
    found = await (saver.aget_tuple(_config(thread)) if early else _last(saver, thread))
    waits = open_waits(found) if found is not None else ()
    waiting = [wait for wait in waits if wait.get("for") == key]
    known = await suspended.get(thread)
    _admit(
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
    """Let a thread that waits go on, as whoever began its turn, until it ends or waits again.

    Does nothing where nothing has come. A run that another process has under way finds by itself
    what came; only one that is about to end is waited for.

    Args:
        graph: A graph of ``build_graph`` with a saver.
        thread: Id of the thread, such as one that :func:`capgraph.stores.due` names.

    Raises:
        PersistenceError: There is no such thread.
    """
    persistence = _persistence(graph)
    saver, suspended = persistence.saver, persistence.waits
    await _last(saver, thread)
    known = await suspended.get(thread)
    config = _config(thread, known.caller if known is not None else Caller())
    for left in reversed(range(_TRIES)):
        try:
            await graph.ainvoke(None, config)
            break
        except ThreadBusyError:
            if not left:
                return
            await asyncio.sleep(_BETWEEN)
    found = await saver.aget_tuple(_config(thread))
    if known is not None and (found is None or not open_waits(found)):
        await suspended.drop(known)


async def _last(saver: BaseCheckpointSaver[Any], thread: str) -> CheckpointTuple:
    found = await saver.aget_tuple(_config(thread))
    if found is None:
        raise PersistenceError(
            f"There is no thread {thread!r}.", fix="List the threads to see which there are."
        )
    return found


def _persistence(graph: CompiledStateGraph[Any, Any, Any, Any]) -> Persistence:
    saver = find_saver(graph, merged_config(graph, None))
    if saver is None:
        raise ConfigurationError(
            "The graph has no saver, so nothing of it waits.",
            fix="Give build_graph a checkpointer.",
        )
    return Persistence.of(saver)


def _check(key: str, value: Any, graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
    if not is_event_key(key):
        raise ValidationError(
            f"{key!r:.80} is no key of an event.",
            fix=f"Give 1 to {MAX_EVENT_KEY_LENGTH} printable characters.",
        )
    try:
        size = len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as exc:
        raise ValidationError(
            f"What comes with the signal {key!r} is not plain JSON: {exc}.",
            fix="Send text, numbers, true, false, null, lists and objects of these.",
        ) from exc
    services = getattr(graph, "services", None)
    most = services.limits.max_message_chars if services is not None else size
    if size > most:
        raise ValidationError(
            f"What comes with the signal {key!r} has {size:,} characters; at most {most:,} are read.",
            fix="Put long data into a file and send its name, or raise limits.max_message_chars.",
        )


def _admit(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    sender: Caller,
    known: SuspendedThread | None,
    waiting: Sequence[Mapping[str, Any]],
) -> None:
    """Make sure that whoever names himself may wake what waits."""
    if sender == Caller():
        return
    tenant = known.caller.tenant if known is not None else None
    if tenant is not None and sender.tenant != tenant:
        raise PolicyError(
            f"The thread is of another tenant than {sender.tenant!r}.",
            fix="Send the signal as its own tenant.",
        )
    permissions = getattr(getattr(graph, "services", None), "permissions", None)
    for wait in waiting:
        if permissions is not None and not permissions.outcome(wait["capability"], sender).allowed:
            raise PolicyError(
                f"The sender may not use {wait['capability']!r}, which waits for the signal.",
                fix="Send it as somebody who may.",
            )


def _config(thread: str, caller: Caller | None = None) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, **configurable_for(caller or Caller())}}
