"""Operations on a saver's threads: list, summarize, copy, and prune."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from capgraph.base.errors import PersistenceError, ThreadBusyError
from capgraph.base.ports import Caller
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
    """Summary of a thread.

    Attributes:
        thread_id: ID of the thread.
        status: Status of the last turn: ``completed``, ``partial``, ``failed``, ``stopped``, or
            ``cancelled``; ``waiting`` for a person, an event, or a time; ``unfinished`` if a run
            continues the turn or the process ended; in a list also ``unreadable``.
        updated_at: Time of the last checkpoint.
        turns: Number of turns.
        messages: Number of messages.
        first_message: Text of the first message of a person.
        last_message: Text of the newest message.
        task: Task of the last turn.
        done: Finished steps of the last turn.
        missing: Unfinished steps of the last turn.
        questions: Open questions to a person, by interrupt ID.
        waits: Events and times that steps wait for.
        reason: Reason why the last turn did not complete.
    """

    thread_id: str
    status: str
    updated_at: datetime | None = None
    turns: int = 0
    messages: int = 0
    first_message: str = ""
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
    """List the threads of a saver, most recently saved first.

    A thread that cannot be read is listed with the status ``unreadable``.

    Args:
        saver: An open saver.
        limit: Maximum number of threads to return.
        after: ID of the last thread on the previous page.

    Raises:
        PersistenceError: The thread ``after`` does not exist.
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
    """Yield the IDs of a saver's threads, most recently saved first.

    Args:
        saver: An open saver.
        limit: Maximum number of IDs to yield.
        after: ID of the last thread on the previous page.
        older_than: Omit threads saved more recently if the database can filter them.
        prefix: Yield only IDs that start with this prefix.
        interrupted_only: Omit threads without an interrupt if the database can filter them.

    Raises:
        PersistenceError: The thread ``after`` does not exist.
    """
    before: tuple[str, str] | None = None
    if after is not None:
        last = await saver.aget_tuple(thread_config(after))
        if last is None:
            raise PersistenceError(
                f"Thread {after!r} does not exist.", fix="List the threads from the start."
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
    """Return the summary of a thread, or ``None`` if the thread does not exist."""
    found = await saver.aget_tuple(thread_config(thread_id))
    if found is None:
        return None
    persistence = Persistence.of(saver)
    found = await load_full_checkpoint(persistence, found, keys=("messages",))
    values = plain_values(found)
    questions, waits = open_questions(found), open_waits(found)
    outcome = values.get("execution_outcome") or {}
    last_end = await read_record(saver, thread_id, RUN_END)
    unfinished = not outcome or has_next_node(values)
    status, reason = outcome.get("status", "unfinished"), outcome.get("reason")
    if questions:
        status, reason = "waiting", "A person was asked."
    elif waits:
        described = "; ".join(
            f"{wait['context_key']} waits {describe_wait(wait)}" for wait in waits
        )
        status, reason = "waiting", f"{described}."
    elif unfinished:
        status, reason = "unfinished", "The process ended during the turn."
        if await persistence.leases.is_held(thread_id):
            reason = "A run continues the turn."
        elif last_end.get("checkpoint") == found.checkpoint["id"]:
            status, reason = last_end["status"], last_end.get("reason")
    messages = values.get("messages") or []
    info = values.get("runtime_info") or {}
    done, missing = _steps(values)
    return ThreadSummary(
        thread_id=thread_id,
        status=status,
        updated_at=_saved_at(found),
        turns=int(info.get("turn", 0)),
        messages=len(messages),
        first_message=next((one.text for one in messages if isinstance(one, HumanMessage)), ""),
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
    """Return the messages of a thread, or an empty list if the thread does not exist."""
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
    """Return the unanswered questions to a person at a checkpoint, by interrupt ID."""
    asked = open_interrupts(checkpoint_tuple.pending_writes)
    return {item.id: item.value for item in asked if not is_wait_interrupt(item.value)}


@validate_arguments
async def waiting_questions(
    saver: BaseCheckpointSaver[Any], *, limit: int = 50
) -> dict[str, list[Any]]:
    """Return the unanswered questions of each thread, most recently saved thread first.

    Args:
        saver: An open saver.
        limit: Maximum number of threads.
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
            get_logger("stores", "threads").warning("Thread %s is omitted: %s", thread, exc)
            continue
        if saved is not None and (questions := open_questions(saved)):
            found[thread] = list(questions.values())
    return found


@validate_arguments
async def list_suspended_threads(
    saver: BaseCheckpointSaver[Any], *, now: float | None = None
) -> list[SuspendedThread]:
    """List the suspended threads, ordered by the time at which they are due to resume.

    To resume the threads that are due, a server calls :func:`capgraph.graph.wake`.

    Args:
        saver: An open saver.
        now: Return only threads that are due at this time. ``None`` means all threads.

    >>> import asyncio
    >>> from langgraph.checkpoint.memory import InMemorySaver
    >>> asyncio.run(list_suspended_threads(InMemorySaver(), now=time.time()))
    []
    """
    found = await Persistence.of(saver).waits.all()
    return [thread for thread in found if now is None or thread.wake_at <= now]


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
    """Delete threads or parts of their history.

    Running threads are skipped unless they are named in ``thread_ids``.

    Args:
        saver: An open saver.
        thread_ids: IDs of the threads to prune. ``None`` means all.
        policy: ``keep_latest`` deletes the history of each thread. ``keep`` deletes the history
            before the last turns or checkpoints. ``delete`` deletes threads. ``older_than``
            deletes threads that have not been saved for that long, and usage records of that
            age if all threads are pruned. Only ``delete`` deletes threads that are waiting.
        older_than: Minimum age, for ``older_than``.
        keep_turns: Number of turns to keep, for ``keep``.
        keep_checkpoints: Number of checkpoints to keep, for ``keep``.
        limit: Maximum number of threads to examine. ``None`` means all.

    Returns:
        IDs of the pruned threads.

    Raises:
        ConfigurationError: The policy is unknown, or an argument has the wrong type.
        ValueError: An argument that the policy requires is missing, or an unrelated argument is
            set.
        ThreadBusyError: A named thread is running.
        PersistenceError: The saver cannot delete history.
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
        if older_than is not None and not await _is_older_than(saver, thread, older_than):
            return False
        await saver.adelete_thread(thread)
        return True

    # Listed before deleting, because paging depends on existing threads.
    selected = thread_ids
    if selected is None:
        listed = iter_thread_ids(saver, limit=limit, older_than=older_than)
        selected = [thread_id async for thread_id in listed]
        await _drop_usage(persistence, older_than)
    pruned, leases = [], persistence.leases
    for thread in selected:
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
    policy: str, age: timedelta | None, limits: tuple[int | None, ...], limit: int | None
) -> None:
    numbers = [number for number in limits if number is not None]
    if (policy == "older_than") != (age is not None):
        raise ValueError(
            f"policy={policy!r} with older_than={age!r} is invalid. Fix: pass older_than only with"
            " policy='older_than', where it is required."
        )
    if (policy == "keep") != bool(numbers):
        raise ValueError(
            f"policy={policy!r} with {len(numbers)} numbers to keep is invalid. Fix: pass keep_turns or"
            " keep_checkpoints only with policy='keep', where one is required."
        )
    if min(*numbers, 1 if limit is None else limit, 1) < 1 or (age or timedelta()) < timedelta():
        raise ValueError(
            "A number of turns, checkpoints, or threads is below 1, or the age is negative. Fix:"
            " pass positive numbers."
        )


async def _drop_usage(persistence: Persistence, older_than: timedelta | None) -> None:
    if older_than is not None and persistence.tables is not None:
        await delete_usage(persistence.tables, older_than=older_than)


async def _is_older_than(saver: BaseCheckpointSaver[Any], thread: str, age: timedelta) -> bool:
    found = await saver.aget_tuple(thread_config(thread))
    moment = _saved_at(found) if found is not None else None
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
    caller: Caller | None = None,
) -> RunnableConfig:
    """Create a new thread from the history of an existing thread.

    The fork continues from the saved state of the original. Finished steps do not run again,
    and a person must confirm a ``once`` step that has started. Approvals, answers, and open
    questions are not copied, so a run of the fork asks again. A stop request for the original
    also applies to the fork. Idempotency keys contain the thread ID and therefore differ in the
    fork.

    Args:
        saver: An open SQLite or PostgreSQL saver.
        thread_id: ID of the thread to copy.
        new_thread_id: ID of the fork. It must not exist yet.
        checkpoint_id: Checkpoint to fork from; ``None`` for the latest.
        caller: User who creates the fork. An unfinished turn continues as this caller instead
            of the caller who started the turn. ``None`` for an anonymous caller.

    Returns:
        The configuration for running the fork.

    Raises:
        PersistenceError: The thread or checkpoint does not exist, or the new ID is taken.
        ThreadBusyError: A different run or copy operation is using the new ID.
    """
    history = History(Persistence.of(saver), thread_id)
    source = thread_config(thread_id, checkpoint_id=checkpoint_id)
    if await saver.aget_tuple(source) is None:
        raise PersistenceError(
            f"Thread {thread_id!r} does not exist"
            + (f" or has no checkpoint {checkpoint_id!r}." if checkpoint_id else "."),
            fix="Call list_threads to see the threads.",
        )
    await history.copy(new_thread_id, up_to=checkpoint_id, caller=caller)
    return {"configurable": {"thread_id": new_thread_id}}


async def _page(
    saver: BaseCheckpointSaver[Any],
    before: tuple[str, str] | None,
    older_than: timedelta | None,
    prefix: str,
    interrupted_only: bool,
) -> list[tuple[str, str]]:
    if isinstance(saver, BaseSaver):
        bound = (
            None
            if older_than is None
            else checkpoint_id_at(time.time() - older_than.total_seconds())
        )
        return await saver.thread_ids(
            limit=_PAGE,
            before=before,
            older_than=bound,
            prefix=prefix,
            interrupted_only=interrupted_only,
        )
    latest: dict[str, str] = {}
    async for item in saver.alist(None):
        configurable = item.config["configurable"]
        thread = str(configurable["thread_id"])
        if not configurable.get("checkpoint_ns") and thread.startswith(prefix):
            latest[thread] = max(latest.get(thread, ""), item.checkpoint["id"])
    found = sorted(latest.items(), key=lambda entry: (entry[1], entry[0]), reverse=True)
    return [
        entry for entry in found if before is None or (entry[1], entry[0]) < (before[1], before[0])
    ]


def _steps(values: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    steps = (values.get("planning_execution_plan") or {}).get("steps") or []
    results = values.get("execution_step_results") or {}
    keys = [s["context_key"] for s in steps if s.get("capability") not in {"respond", "clarify"}]
    done = tuple(key for key in keys if (results.get(key) or {}).get("success"))
    return done, tuple(key for key in keys if key not in done)


def _saved_at(checkpoint_tuple: CheckpointTuple) -> datetime | None:
    try:
        return datetime.fromisoformat(checkpoint_tuple.checkpoint["ts"])
    except (KeyError, ValueError):
        return None
