"""Threads of a saver: listed, described, copied and pruned."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from capgraph.base.errors import PersistenceError, ThreadBusyError
from capgraph.configs.logger import get_logger
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.langgraph_compat import checkpoint_id_at, has_next_node, open_interrupts, plain_values
from capgraph.planning.waits import describe_wait, is_wait_interrupt
from capgraph.stores.base_saver import BaseSaver
from capgraph.stores.history import History, load_full_checkpoint
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import RUN_END, read_record, thread_config
from capgraph.stores.waits import SuspendedThread, open_waits
from capgraph.telemetry.usage_recorder import delete_usage

_PAGE = 200


@dataclass(frozen=True, slots=True)
class ThreadSummary:
    """What a thread has come to.

    Attributes:
        thread_id: The thread.
        status: ``completed``, ``partial``, ``failed``, ``stopped`` or ``cancelled`` for its last
            turn, ``waiting`` for a person, an event or a moment, ``unfinished`` (the process ended in
            the middle), or, in a list, ``unreadable``.
        updated_at: When it was saved last.
        turns: How many turns it has had.
        messages: How many messages it holds.
        last_message: The newest message.
        task: The task of the last turn.
        done: Finished steps of the last turn.
        missing: Its other steps.
        questions: What a person is asked: interrupt id to question.
        waits: What its steps wait for, without a person being asked.
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
    waits: tuple[Mapping[str, Any], ...] = ()
    reason: str | None = None


@validate_arguments
async def list_threads(
    saver: BaseCheckpointSaver[Any], *, limit: int | None = None, after: str | None = None
) -> list[ThreadSummary]:
    """Describe the threads of a saver, the one that was saved last first.

    One that cannot be read hides no other; its status is ``unreadable``.

    Args:
        saver: An open saver.
        limit: At most so many.
        after: The thread that the last page ended with.

    Raises:
        PersistenceError: There is no thread ``after``.
    """
    found = []
    async for thread in iter_thread_ids(saver, limit=limit, after=after):
        try:
            summary = await thread_summary(saver, thread)
        except PersistenceError as exc:
            if not exc.is_unreadable:
                raise
            summary = ThreadSummary(thread, "unreadable", reason=str(exc))
        if summary is not None:
            found.append(summary)
    return found


async def iter_thread_ids(
    saver: BaseCheckpointSaver[Any],
    *,
    limit: int | None = None,
    after: str | None = None,
    older_than: timedelta | None = None,
    prefix: str = "",
    interrupted_only: bool = False,
) -> AsyncIterator[str]:
    """Name the threads of a saver, the one that was saved last first.

    Args:
        saver: An open saver.
        limit: At most so many.
        after: The thread that the last page ended with.
        older_than: Leave out, where the database can, those that were saved later than so long ago.
        prefix: Only those whose name begins so.
        interrupted_only: Leave out, where the database can, those that were not interrupted.

    Raises:
        PersistenceError: There is no thread ``after``.
    """
    before: tuple[str, str] | None = None
    if after is not None:
        last = await saver.aget_tuple(thread_config(after))
        if last is None:
            raise PersistenceError(
                f"There is no thread {after!r}.", fix="List the threads from the start."
            )
        before = (after, last.checkpoint["id"])
    count = 0
    while page := await _page(saver, before, older_than, prefix, interrupted_only):
        for thread, _ in page:
            if limit is not None and count >= limit:
                return
            count += 1
            yield thread
        before = page[-1]


@validate_arguments
async def thread_summary(saver: BaseCheckpointSaver[Any], thread_id: str) -> ThreadSummary | None:
    """Describe one thread; ``None`` when the saver does not know it."""
    found = await saver.aget_tuple(thread_config(thread_id))
    if found is None:
        return None
    found = await load_full_checkpoint(Persistence.of(saver), found, keys=("messages",))
    values = plain_values(found)
    questions, waits = open_questions(found), open_waits(found)
    outcome = values.get("execution_outcome") or {}
    last_end = await read_record(saver, thread_id, RUN_END)
    unfinished = not outcome or has_next_node(values)
    status, reason = outcome.get("status", "unfinished"), outcome.get("reason")
    if questions:
        status, reason = "waiting", "A person is asked."
    elif waits:
        told = "; ".join(f"{wait['context_key']} waits {describe_wait(wait)}" for wait in waits)
        status, reason = "waiting", f"{told}."
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
        waits=tuple(waits),
        reason=reason,
    )


@validate_arguments
async def thread_messages(saver: BaseCheckpointSaver[Any], thread_id: str) -> list[AnyMessage]:
    """Return the conversation of a thread; empty when the saver does not know it."""
    found = await saver.aget_tuple(thread_config(thread_id))
    if found is None:
        return []
    return (
        plain_values(
            await load_full_checkpoint(Persistence.of(saver), found, keys=("messages",))
        ).get("messages")
        or []
    )


def open_questions(checkpoint_tuple: CheckpointTuple) -> dict[str, Any]:
    """Return what a person is asked at a checkpoint: interrupt id to question."""
    asked = open_interrupts(checkpoint_tuple.pending_writes)
    return {item.id: item.value for item in asked if not is_wait_interrupt(item.value)}


@validate_arguments
async def waiting_questions(
    saver: BaseCheckpointSaver[Any], *, limit: int = 50
) -> dict[str, list[Any]]:
    """Return what people are asked: thread to its open questions, the one saved last first.

    Args:
        saver: An open saver.
        limit: At most so many threads.
    """
    found: dict[str, list[Any]] = {}
    async for thread in iter_thread_ids(saver, interrupted_only=True):
        if len(found) == limit:
            break
        try:
            saved = await saver.aget_tuple(thread_config(thread))
        except PersistenceError as exc:
            if not exc.is_unreadable:
                raise
            get_logger("stores", "threads").warning("%s is left out: %s", thread, exc)
            continue
        if saved is not None and (questions := open_questions(saved)):
            found[thread] = list(questions.values())
    return found


@validate_arguments
async def list_suspended_threads(
    saver: BaseCheckpointSaver[Any], *, now: float | None = None
) -> list[SuspendedThread]:
    """Return the threads that wait, the soonest first.

    Whoever serves threads wakes those whose moment has come (:func:`capgraph.graph.wake`).

    Args:
        saver: An open saver.
        now: Only those that are to be woken at this moment; all when not given.

    >>> import asyncio
    >>> from langgraph.checkpoint.memory import InMemorySaver
    >>> asyncio.run(list_suspended_threads(InMemorySaver(), now=time.time()))
    []
    """
    found = await Persistence.of(saver).waits.all()
    return [one for one in found if now is None or one.wake_at <= now]


@validate_arguments
async def prune_threads(
    saver: BaseCheckpointSaver[Any],
    thread_ids: Sequence[str] | None = None,
    *,
    policy: Literal["keep_latest", "older_than", "delete", "keep"] = "keep_latest",
    older_than: timedelta | None = None,
    keep_turns: int | None = None,
    keep_checkpoints: int | None = None,
    limit: int | None = None,
) -> list[str]:
    """Make a saver smaller.

    Of all threads, those that are being run are left alone.

    Args:
        saver: An open saver.
        thread_ids: Which threads; ``None`` for all.
        policy: ``keep_latest`` drops the history of each thread, ``keep`` that before the last
            turns or checkpoints, ``delete`` drops threads, ``older_than`` drops threads that were
            not saved for so long, and of all threads the record of what calls used that is older.
            A thread that waits is only dropped by ``delete``.
        older_than: The age, for ``older_than``.
        keep_turns: How many turns can still be gone back to, for ``keep``.
        keep_checkpoints: How many checkpoints can still be gone back to, for ``keep``.
        limit: Look at so many threads at most; when not given, at all.

    Returns:
        The threads that were pruned.

    Raises:
        ConfigurationError: There is no such policy, or an argument is of another type.
        ValueError: What the policy needs is missing, or something else is given.
        ThreadBusyError: A named thread is being run.
        PersistenceError: The saver cannot drop histories.
    """
    _check_pruning(policy, older_than, (keep_turns, keep_checkpoints), limit)
    if policy == "keep_latest":
        keep_checkpoints = 1

    persistence = Persistence.of(saver)

    async def prune(thread: str) -> bool:
        if policy in {"keep", "keep_latest"}:
            return await History(persistence, thread).prune(
                turns=keep_turns, checkpoints=keep_checkpoints
            )
        if older_than is not None and not await _is_old(saver, thread, older_than):
            return False
        await saver.adelete_thread(thread)
        return True

    # Named before anything is dropped: pages are found by what the last one ended with.
    chosen = thread_ids
    if chosen is None:
        named = iter_thread_ids(saver, limit=limit, older_than=older_than)
        chosen = [one async for one in named]
        await _drop_usage(persistence, older_than)
    pruned, leases = [], persistence.leases
    for thread in chosen:
        try:
            lease = await leases.acquire(thread)
        except ThreadBusyError:
            if thread_ids is not None:
                raise
            continue
        try:
            if await prune(thread):
                pruned.append(thread)
        finally:
            await leases.release(lease)
    return pruned


def _check_pruning(
    policy: str, age: timedelta | None, keep: tuple[int | None, ...], limit: int | None
) -> None:
    kept = [number for number in keep if number is not None]
    if (policy == "older_than") != (age is not None):
        raise ValueError("Give older_than with the policy 'older_than', and only then.")
    if (policy == "keep") != bool(kept):
        raise ValueError(
            "Give keep_turns or keep_checkpoints with the policy 'keep', and only then."
        )
    if min(*kept, 1 if limit is None else limit, 1) < 1 or (age or timedelta()) < timedelta():
        raise ValueError("Count turns, checkpoints and threads from 1 on; an age is not negative.")


async def _drop_usage(persistence: Persistence, older_than: timedelta | None) -> None:
    if older_than is not None and persistence.tables is not None:
        await delete_usage(persistence.tables, older_than=older_than)


async def _is_old(saver: BaseCheckpointSaver[Any], thread: str, age: timedelta) -> bool:
    found = await saver.aget_tuple(thread_config(thread))
    moment = _moment(found) if found is not None else None
    if found is None or moment is None or open_interrupts(found.pending_writes):
        return False
    return time.time() - moment.timestamp() >= age.total_seconds()


@validate_arguments
async def fork_thread(
    saver: BaseCheckpointSaver[Any],
    thread_id: str,
    new_thread_id: str,
    *,
    checkpoint_id: str | None = None,
) -> RunnableConfig:
    """Begin a new thread with the past of another one.

    The copy goes on where the old thread stood: finished steps are not run again, a ``once`` step
    that had started is asked about, and open questions are open there too. Idempotency keys hold
    the thread's name, so those of the copy differ.

    Args:
        saver: An open saver of SQLite or PostgreSQL.
        thread_id: The thread to copy.
        new_thread_id: Name of the copy; it must be free.
        checkpoint_id: The moment of its history to copy; the latest when not given.

    Returns:
        The configuration that runs the copy.

    Raises:
        PersistenceError: There is no such thread or moment, or the name is taken.
        ThreadBusyError: A run or another copy uses the name.
    """
    history = History(Persistence.of(saver), thread_id)
    source = thread_config(thread_id, checkpoint_id=checkpoint_id)
    if await saver.aget_tuple(source) is None:
        raise PersistenceError(
            f"There is no thread {thread_id!r}"
            + (f" with a checkpoint {checkpoint_id!r}." if checkpoint_id else "."),
            fix="List the threads to see which there are.",
        )
    await history.copy(new_thread_id, up_to=checkpoint_id)
    return {"configurable": {"thread_id": new_thread_id}}


async def _page(
    saver: BaseCheckpointSaver[Any],
    before: tuple[str, str] | None,
    older_than: timedelta | None,
    prefix: str,
    asked: bool,
) -> list[tuple[str, str]]:
    if isinstance(saver, BaseSaver):
        bound = (
            None
            if older_than is None
            else checkpoint_id_at(time.time() - older_than.total_seconds())
        )
        return await saver.thread_ids(
            limit=_PAGE, before=before, older_than=bound, prefix=prefix, interrupted_only=asked
        )
    latest: dict[str, str] = {}
    async for item in saver.alist(None):
        place = item.config["configurable"]
        thread = str(place["thread_id"])
        if not place.get("checkpoint_ns") and thread.startswith(prefix):
            latest[thread] = max(latest.get(thread, ""), item.checkpoint["id"])
    found = sorted(latest.items(), key=lambda one: (one[1], one[0]), reverse=True)
    return [one for one in found if before is None or (one[1], one[0]) < (before[1], before[0])]


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
