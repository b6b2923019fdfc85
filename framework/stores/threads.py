"""Threads of a saver: listed, described, copied and pruned."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from framework.base.errors import PersistenceError
from framework.langgraph_compat import is_between_nodes, open_interrupts
from framework.stores.records import END, PREFIX, read_record


@dataclass(frozen=True, slots=True)
class ThreadSummary:
    """What a thread has come to.

    Attributes:
        thread_id: The thread.
        status: ``completed``, ``partial``, ``failed``, ``stopped`` or ``cancelled`` for its last
            turn, ``waiting`` for a person, or ``unfinished``: the process ended in the middle.
        updated_at: When it was saved last.
        turns: How many turns it has had.
        messages: How many messages it holds.
        last_message: The newest message.
        task: The task of the last turn.
        done: Finished steps of the last turn.
        missing: Its other steps.
        questions: What a person is asked: interrupt id to question.
        reason: Why the last turn did not complete.
    """

    thread_id: str
    status: str
    updated_at: datetime | None = None
    turns: int = 0
    messages: int = 0
    last_message: str = ""
    task: str | None = None
    done: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    questions: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None


async def list_threads(
    saver: BaseCheckpointSaver[Any], *, limit: int | None = None
) -> list[ThreadSummary]:
    """Describe the threads of a saver, the one that was saved last first.

    Args:
        saver: An open saver.
        limit: At most so many.
    """
    found = []
    for thread in await _thread_ids(saver):
        summary = await thread_summary(saver, thread)
        if summary is not None:
            found.append(summary)
    oldest = datetime.min.replace(tzinfo=UTC)
    found.sort(key=lambda item: item.updated_at or oldest, reverse=True)
    return found[:limit]


async def thread_summary(saver: BaseCheckpointSaver[Any], thread_id: str) -> ThreadSummary | None:
    """Describe one thread; ``None`` when the saver does not know it."""
    found = await saver.aget_tuple(_config(thread_id))
    if found is None:
        return None
    values = found.checkpoint["channel_values"]
    questions = open_questions(found)
    outcome = values.get("execution_outcome") or {}
    last_end = await read_record(saver, thread_id, END)
    unfinished = not outcome or is_between_nodes(values)
    status, reason = outcome.get("status", "unfinished"), outcome.get("reason")
    if questions:
        status, reason = "waiting", "A person is asked."
    elif unfinished:
        status, reason = "unfinished", "The process ended in the middle of the turn."
        if last_end.get("checkpoint") == found.checkpoint["id"]:
            status, reason = last_end["status"], last_end.get("reason")
    messages = values.get("messages") or []
    info = values.get("runtime_info") or {}
    done, missing = _steps(values)
    return ThreadSummary(
        thread_id=thread_id,
        status=status,
        updated_at=_moment(found),
        turns=int(info.get("turn", 0)),
        messages=len(messages),
        last_message=str(getattr(messages[-1], "content", "")) if messages else "",
        task=values.get("task_current_task"),
        done=done,
        missing=missing,
        questions=questions,
        reason=reason,
    )


def open_questions(found: CheckpointTuple) -> dict[str, Any]:
    """Return what a person is asked at a checkpoint: interrupt id to question."""
    return {item.id: item.value for item in open_interrupts(found.pending_writes)}


async def prune_threads(
    saver: BaseCheckpointSaver[Any],
    thread_ids: Sequence[str] | None = None,
    *,
    policy: Literal["keep_latest", "older_than", "delete"] = "keep_latest",
    older_than: timedelta | None = None,
) -> list[str]:
    """Make a saver smaller.

    Args:
        saver: An open saver.
        thread_ids: Which threads; ``None`` for all.
        policy: ``keep_latest`` drops the history of each thread, ``delete`` drops threads,
            ``older_than`` drops threads that were not saved for so long. A thread that waits for
            a person is only dropped by ``delete``.
        older_than: The age, for ``older_than``.

    Returns:
        The threads that were pruned.

    Raises:
        ValueError: ``older_than`` is missing or not wanted.
        PersistenceError: The saver cannot drop histories.
    """
    if (policy == "older_than") != (older_than is not None):
        raise ValueError("Give older_than with the policy 'older_than', and only then.")
    chosen = list(thread_ids) if thread_ids is not None else await _thread_ids(saver)
    if policy == "keep_latest":
        try:
            await saver.aprune(chosen, strategy="keep_latest")
        except NotImplementedError as exc:
            raise PersistenceError(
                f"{type(saver).__name__} cannot drop the history of a thread.",
                fix="Use SQLite or PostgreSQL through open_saver, or delete threads.",
            ) from exc
        return chosen
    dropped = []
    for thread in chosen:
        if older_than is not None:
            summary = await thread_summary(saver, thread)
            moment = summary.updated_at if summary else None
            waiting = summary is not None and summary.status == "waiting"
            if (
                moment is None
                or waiting
                or time.time() - moment.timestamp() < older_than.total_seconds()
            ):
                continue
        await saver.adelete_thread(thread)
        dropped.append(thread)
    return dropped


async def fork_thread(
    saver: BaseCheckpointSaver[Any],
    thread_id: str,
    new_thread_id: str,
    *,
    checkpoint_id: str | None = None,
) -> RunnableConfig:
    """Begin a new thread with the state of another one.

    The copy goes on where the old thread stood: finished steps are not run again, a ``once`` step
    that had started is asked about, and open questions are open there too. Idempotency keys hold
    the thread's name, so those of the copy differ.

    Args:
        saver: An open saver.
        thread_id: The thread to copy.
        new_thread_id: Name of the copy; it must be free.
        checkpoint_id: The moment of its history to copy; the latest when not given.

    Returns:
        The configuration that runs the copy.

    Raises:
        PersistenceError: There is no such thread or moment, or the name is taken.
    """
    source = _config(thread_id)
    if checkpoint_id is not None:
        source["configurable"]["checkpoint_id"] = checkpoint_id
    found = await saver.aget_tuple(source)
    if found is None:
        raise PersistenceError(
            f"There is no thread {thread_id!r}"
            + (f" with a checkpoint {checkpoint_id!r}." if checkpoint_id else "."),
            fix="List the threads to see which there are.",
        )
    if await saver.aget_tuple(_config(new_thread_id)) is not None:
        raise PersistenceError(
            f"The thread {new_thread_id!r} exists already.", fix="Choose another name."
        )
    metadata: Any = {**found.metadata, "source": "fork", "forked_from": thread_id}
    checkpoint = found.checkpoint
    written = await saver.aput(
        _config(new_thread_id), checkpoint, metadata, checkpoint["channel_versions"]
    )
    for task, writes in _by_task(found).items():
        await saver.aput_writes(written, writes, task)
    # Read to the end before anything is written: SQLite lists and writes under one lock.
    for item in [x async for x in saver.alist({"configurable": {"thread_id": thread_id}})]:
        namespace = item.config["configurable"].get("checkpoint_ns", "")
        if namespace.startswith(PREFIX):
            await saver.aput(
                _config(new_thread_id, namespace),
                item.checkpoint,
                item.metadata,
                item.checkpoint["channel_versions"],
            )
    return {"configurable": {"thread_id": new_thread_id}}


def _by_task(found: CheckpointTuple) -> dict[str, list[tuple[str, Any]]]:
    grouped: dict[str, list[tuple[str, Any]]] = {}
    for task, channel, value in found.pending_writes or []:
        grouped.setdefault(task, []).append((channel, value))
    return grouped


async def _thread_ids(saver: BaseCheckpointSaver[Any]) -> list[str]:
    run = getattr(saver, "thread_ids", None)
    if run is not None:
        return list(await run())
    seen: dict[str, None] = {}
    async for item in saver.alist(None):
        seen.setdefault(str(item.config["configurable"]["thread_id"]))
    return list(seen)


def _steps(values: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    steps = (values.get("planning_execution_plan") or {}).get("steps") or []
    results = values.get("execution_step_results") or {}
    wanted = [s["context_key"] for s in steps if s.get("capability") not in {"respond", "clarify"}]
    done = tuple(key for key in wanted if (results.get(key) or {}).get("success"))
    return done, tuple(key for key in wanted if key not in done)


def _moment(found: CheckpointTuple) -> datetime | None:
    try:
        return datetime.fromisoformat(found.checkpoint["ts"])
    except (KeyError, ValueError):
        return None


def _config(thread_id: str, namespace: str = "") -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}}
