"""Threads per user: each user's thread IDs are prefixed in the saver, so users cannot collide."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from capgraph.base.errors import ValidationError
from capgraph.base.ports import Caller
from capgraph.engine.graph_input import check_contexts
from capgraph.helpers.plain_data import to_plain
from capgraph.serve.problems import NotFoundError
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import NEVER_PRUNED, read_record, thread_config, write_record
from capgraph.stores.threads import (
    fork_thread,
    iter_thread_ids,
    thread_messages,
    thread_summary,
)
from capgraph.telemetry.usage_recorder import usage_totals

if TYPE_CHECKING:
    from langchain_core.messages import AnyMessage
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver

    from capgraph.stores.run_log import RunLog
    from capgraph.stores.threads import ThreadSummary

_TITLE_RECORD = "about"
_MAX_ID = 200
_MAX_TITLE = 200
_MAX_DERIVED_TITLE = 80
"""Maximum length of a title that is derived from the first message."""
_MAX_PAGE_SIZE = 100
_NEW_STATUS = "new"


class Threads:
    """Access to the checkpointed threads of a graph on behalf of users.

    A *thread ID* is what a user sees. A *storage ID* is the thread ID with the user's prefix,
    as stored by the saver (LangGraph checkpointer).

    Args:
        graph: Graph made by ``build_graph``, with a checkpointer.
        log: Log of the threads' runs.
        is_shared: True if the only user is ``local``, who sees thread IDs without a prefix.
    """

    def __init__(self, graph: Any, log: RunLog, *, is_shared: bool) -> None:
        self._graph = graph
        self._saver: BaseCheckpointSaver[Any] = graph.checkpointer
        self._persistence: Persistence = graph.persistence
        self._log = log
        self._is_shared = is_shared

    def owner_prefix(self, caller: Caller) -> str:
        """Return the prefix of all storage IDs that belong to a user's threads.

        >>> from langgraph.checkpoint.memory import InMemorySaver
        >>> from types import SimpleNamespace
        >>> graph = SimpleNamespace(checkpointer=InMemorySaver(), persistence=None)
        >>> threads = Threads(graph, None, is_shared=False)
        >>> threads.owner_prefix(Caller("a/b", tenant="c@d"))
        '@a%2Fb@c%40d/'
        """
        if self._is_shared:
            return ""
        # quote() escapes both separators, so a prefix cannot be forged.
        parts = [part for part in (caller.user_id, caller.tenant) if part is not None]
        return "".join(f"@{quote(part, safe='')}" for part in parts) + "/"

    def prefix_of(self, storage_id: str) -> str:
        """Return the owner prefix of a storage ID, or an empty string for an unowned thread."""
        return (
            ""
            if self._is_shared or not storage_id.startswith("@")
            else storage_id.partition("/")[0] + "/"
        )

    def owner_name(self, storage_id: str) -> str:
        """Return the ID of the user who owns a thread, or an empty string without an owner."""
        return unquote(self.prefix_of(storage_id).strip("/").removeprefix("@").partition("@")[0])

    def is_in_tenant(self, caller: Caller, storage_id: str) -> bool:
        """Return True if the owner of a thread belongs to the caller's tenant."""
        _, _, tenant = self.prefix_of(storage_id).strip("/").removeprefix("@").partition("@")
        return tenant == quote(caller.tenant or "", safe="")

    def storage_id(self, caller: Caller, thread_id: str) -> str:
        """Return the storage ID for a thread ID of the caller, whether or not the thread exists.

        Raises:
            ValidationError: The thread ID is empty, too long, or not printable.
        """
        if not thread_id.strip() or len(thread_id) > _MAX_ID or not thread_id.isprintable():
            raise ValidationError(
                f"Invalid thread id {thread_id[:80]!r}: it is empty, too long, or not printable.",
                fix=f"Use 1 to {_MAX_ID} printable characters.",
            )
        return self.owner_prefix(caller) + thread_id

    def public_id(self, caller: Caller, storage_id: str) -> str:
        """Return the thread ID that the caller sees for a storage ID."""
        return storage_id.removeprefix(self.owner_prefix(caller))

    async def resolve(self, caller: Caller, thread_id: str) -> str:
        """Return the storage ID of one of the caller's existing threads.

        Raises:
            NotFoundError: The thread does not exist or belongs to another user.
        """
        missing = NotFoundError("The thread does not exist.", fix="List your threads.")
        try:
            storage_id = self.storage_id(caller, thread_id)
        except ValidationError:
            raise missing from None
        if await self._saver.aget_tuple(thread_config(storage_id)) is None:
            raise missing
        return storage_id

    async def list_recent(self, caller: Caller, limit: int) -> list[str]:
        """Return the storage IDs of the caller's most recently saved threads."""
        named = iter_thread_ids(self._saver, limit=limit, prefix=self.owner_prefix(caller))
        return [storage_id async for storage_id in named]

    async def create(
        self,
        caller: Caller,
        title: str = "",
        *,
        thread_id: str | None = None,
        contexts: Mapping[str, Any] | None = None,
    ) -> str:
        """Create an empty conversation thread for a user and return its thread ID.

        Args:
            caller: Owner of the thread.
            title: Title of the thread.
            thread_id: ID of the thread; generated if omitted.
            contexts: Context data that a tool requires, by type and key. It passes the same check
                as the input of a turn.

        Raises:
            ValidationError: A context is invalid, or its type holds files.
        """
        if contexts:
            check_contexts(contexts, self._graph.services.registry, accepted_types=contexts)
        thread_id = thread_id or uuid.uuid4().hex
        storage_id = self.storage_id(caller, thread_id)
        initial_values = {"capability_context_data": contexts} if contexts else {}
        # Written as a terminal node, so that the thread has no pending task.
        await self._graph.aupdate_state(
            thread_config(storage_id),
            {"execution_outcome": {"status": _NEW_STATUS}, **initial_values},
            as_node="error",
        )
        if title:
            await self.rename(caller, thread_id, title)
        return thread_id

    async def list_page(
        self,
        caller: Caller,
        *,
        query: str = "",
        outcome: str = "",
        limit: int = 50,
        after: str | None = None,
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return a page of a user's threads, most recently saved first.

        Args:
            caller: Owner of the threads.
            query: Words that must all occur in the title, task, thread ID, or messages.
            outcome: Required outcome of the last turn; empty for any.
            limit: Maximum number of threads per page.
            after: Cursor that the previous page returned.

        Returns:
            The threads, and the cursor of the next page (``None`` on the last page).
        """
        limit = min(max(limit, 1), _MAX_PAGE_SIZE)
        after_id = None if after is None else await self.resolve(caller, after)
        words = query.casefold().split()
        items: list[dict[str, Any]] = []
        costs = await self._thread_costs(caller)
        async for storage_id in iter_thread_ids(
            self._saver, after=after_id, prefix=self.owner_prefix(caller)
        ):
            item = await self._describe(caller, storage_id)
            if item is None or (outcome and item["outcome"] != outcome):
                continue
            if words and not await self._matches(storage_id, item, words):
                continue
            if len(items) == limit:
                return items, str(items[-1]["thread_id"])
            items.append({**item, "cost_usd": costs.get(storage_id)})
        return items, None

    async def _matches(
        self, storage_id: str, item: Mapping[str, Any], words: Sequence[str]
    ) -> bool:
        messages = await thread_messages(self._saver, storage_id)
        texts = [str(item[name] or "") for name in ("thread_id", "title", "task")]
        searched = " ".join([*texts, *(one.text for one in messages)]).casefold()
        return all(word in searched for word in words)

    async def _thread_costs(self, caller: Caller) -> dict[str, float | None]:
        """Return the cost of each of the caller's threads in US dollars, by storage ID."""
        tables = self._persistence.tables
        if tables is None:
            return {}
        user_id = None if self._is_shared else caller.user_id
        totals = await usage_totals(
            tables, group_by="thread", user_id=user_id, tenant=caller.tenant or ""
        )
        return {total.model: total.cost_usd for total in totals}

    async def get(self, caller: Caller, thread_id: str) -> dict[str, Any]:
        """Return one of the caller's threads with its messages, plan, results, and runs.

        Raises:
            NotFoundError: The thread does not exist.
        """
        from capgraph.graph.turn_runner import load_thread_values, step_states

        storage_id = await self.resolve(caller, thread_id)
        item = await self._describe(caller, storage_id)
        values = await load_thread_values(self._graph, storage_id)
        plan = values.get("planning_execution_plan") or {}
        return {
            **(item or {}),
            "messages": [_message_fields(one) for one in values.get("messages") or []],
            "plan": {"steps": list(plan.get("steps") or [])} if plan else None,
            "steps": step_states(values),
            "results": to_json_safe(values.get("execution_step_results") or {}),
            "runs": [
                {"run_id": run.run_id, "status": run.status, "opened": run.created_at}
                for run in await self._log.thread_runs(storage_id)
            ],
        }

    async def rename(self, caller: Caller, thread_id: str, title: str) -> dict[str, Any]:
        """Set the title of a thread and return the thread's description.

        Raises:
            NotFoundError: The thread does not exist.
            ValidationError: The title is not text or is too long.
        """
        storage_id = await self.resolve(caller, thread_id)
        if not isinstance(title, str) or len(title) > _MAX_TITLE:
            raise ValidationError(
                f"Invalid title {str(title)[:80]!r}: it is not text or is too long.",
                fix=f"Use text of at most {_MAX_TITLE} characters.",
            )
        await write_record(
            self._saver,
            storage_id,
            _TITLE_RECORD,
            {"title": title},
            parent_checkpoint_id=NEVER_PRUNED,
        )
        return await self._describe(caller, storage_id) or {}

    async def delete(self, caller: Caller, thread_id: str) -> None:
        """Delete one of the caller's threads and all its runs.

        Raises:
            NotFoundError: The thread does not exist.
            ThreadBusyError: The thread has an active run.
        """
        storage_id = await self.resolve(caller, thread_id)
        leases = self._persistence.leases
        lease = await leases.acquire(storage_id)
        try:
            await self._saver.adelete_thread(storage_id)
            await self._log.drop_thread(storage_id)
            if (wait := await self._persistence.waits.get(storage_id)) is not None:
                await self._persistence.waits.drop(wait)
        finally:
            await leases.release(lease)

    async def fork(self, caller: Caller, thread_id: str, checkpoint_id: str | None = None) -> str:
        """Create a new thread from the history of an existing thread and return its ID.

        Raises:
            NotFoundError: The thread or the checkpoint does not exist.
            PersistenceError: The saver stores no history to copy.
        """
        storage_id = await self.resolve(caller, thread_id)
        await self._checkpoint_config(storage_id, checkpoint_id)
        new_id = uuid.uuid4().hex
        await fork_thread(
            self._saver,
            storage_id,
            self.storage_id(caller, new_id),
            checkpoint_id=checkpoint_id,
            caller=caller,
        )
        return new_id

    async def history(
        self, caller: Caller, thread_id: str, *, limit: int = 50, after: str | None = None
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return a page of a thread's checkpoints, latest first.

        Raises:
            NotFoundError: The thread does not exist.
        """
        storage_id = await self.resolve(caller, thread_id)
        limit = min(max(limit, 1), _MAX_PAGE_SIZE)
        before = None if after is None else thread_config(storage_id, checkpoint_id=after)
        checkpoints = [
            {
                "checkpoint_id": snapshot.config["configurable"]["checkpoint_id"],
                "created_at": snapshot.created_at,
                "next": list(snapshot.next),
                "source": (snapshot.metadata or {}).get("source"),
                "step": (snapshot.metadata or {}).get("step"),
                "turn": (snapshot.values.get("runtime_info") or {}).get("turn", 0),
                "messages": len(snapshot.values.get("messages") or []),
                "questions": len(snapshot.interrupts),
            }
            async for snapshot in self._graph.aget_state_history(
                thread_config(storage_id), before=before, limit=limit + 1
            )
        ]
        next_cursor = checkpoints[limit - 1]["checkpoint_id"] if len(checkpoints) > limit else None
        return checkpoints[:limit], next_cursor

    async def state(
        self, caller: Caller, thread_id: str, checkpoint_id: str | None = None
    ) -> dict[str, Any]:
        """Return a thread's state as plain data, either the current state or that of a checkpoint.

        File paths are replaced by file names, because clients must not see paths on the server.

        Raises:
            NotFoundError: The thread or the checkpoint does not exist.
        """
        storage_id = await self.resolve(caller, thread_id)
        snapshot = await self._graph.aget_state(
            await self._checkpoint_config(storage_id, checkpoint_id)
        )
        values = dict(snapshot.values)
        messages = [_message_fields(one) for one in values.pop("messages", None) or []]
        contexts = [
            (kind, key, entry)
            for kind, entries in (values.get("capability_context_data") or {}).items()
            for key, entry in entries.items()
        ]
        state: dict[str, Any] = self.hide_paths(
            contexts, {"messages": messages, **to_json_safe(values)}
        )
        return state

    def hide_paths(self, contexts: Iterable[tuple[str, str, Any]], data: Any) -> Any:
        """Return plain data in which server paths from context data are replaced by file names.

        Args:
            contexts: Type, key, and entry of the context data.
            data: Plain data.
        """
        from capgraph.graph.turn_runner import load_contexts

        types = self._graph.services.registry.context_types
        file_names = {
            path: PurePath(path).name or path
            for kind, key, entry in contexts
            for context in load_contexts(types, kind, key, entry)
            for path in context.get_files()
        }
        return _replace_text(data, file_names)

    async def _checkpoint_config(
        self, storage_id: str, checkpoint_id: str | None
    ) -> RunnableConfig:
        """Return the LangGraph config for a thread's checkpoint, by default the latest one."""
        config = thread_config(storage_id, checkpoint_id=checkpoint_id)
        if checkpoint_id is not None and await self._saver.aget_tuple(config) is None:
            raise NotFoundError("The checkpoint does not exist.", fix="List the thread's history.")
        return config

    async def _describe(self, caller: Caller, storage_id: str) -> dict[str, Any] | None:
        summary = await thread_summary(self._saver, storage_id)
        if summary is None:
            return None
        record = await read_record(self._saver, storage_id, _TITLE_RECORD)
        fields = self._summary_fields(caller, summary, record)
        if summary.status == "unfinished" and await self._log.open_runs(storage_id):
            fields["outcome"] = "running"
        return fields

    def _summary_fields(
        self, caller: Caller, summary: ThreadSummary, record: Mapping[str, Any]
    ) -> dict[str, Any]:
        fields = asdict(summary)
        fields["thread_id"] = self.public_id(caller, summary.thread_id)
        fields["outcome"] = fields.pop("status")
        fields["updated_at"] = summary.updated_at.isoformat() if summary.updated_at else None
        fields["questions"] = len(summary.questions)
        fields["last_message"] = summary.last_message[:500]
        # A title that does not change with each turn is found again.
        text = fields.pop("first_message") or summary.task or summary.last_message
        line = " ".join(text.split())
        line = (
            line
            if len(line) <= _MAX_DERIVED_TITLE
            else f"{line[: _MAX_DERIVED_TITLE - 1].rstrip()}…"
        )
        fields["title"] = record.get("title") or line
        return fields


def _replace_text(value: Any, replacements: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for text, replacement in replacements.items():
            value = value.replace(text, replacement)
        return value
    if isinstance(value, dict):
        return {key: _replace_text(one, replacements) for key, one in value.items()}
    return [_replace_text(one, replacements) for one in value] if isinstance(value, list) else value


def to_json_safe(value: Any) -> Any:
    """Convert a value to plain data that is valid JSON. NaN and infinities become strings.

    >>> to_json_safe([1.5, float("nan")])
    [1.5, 'NaN']
    """
    return json.loads(json.dumps(to_plain(value, lenient=True)), parse_constant=str)


def _message_fields(message: AnyMessage) -> dict[str, Any]:
    role = {"human": "user", "ai": "assistant"}.get(message.type, message.type)
    return {"id": message.id, "role": role, "content": str(message.text)}
