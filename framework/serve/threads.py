"""Threads as a user sees them: each has a room of names of his own in the saver."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from capgraph.base.errors import ValidationError
from capgraph.base.ports import Caller
from capgraph.helpers.plain_data import to_plain
from capgraph.serve.problems import NotFoundError
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import NEVER_PRUNED, read_record, thread_config, write_record
from capgraph.stores.threads import fork_thread, iter_thread_ids, thread_summary

if TYPE_CHECKING:
    from langchain_core.messages import AnyMessage
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver

    from capgraph.stores.run_log import RunLog
    from capgraph.stores.threads import ThreadSummary

_TITLE_RECORD = "about"
_MAX_ID = 200
_MAX_TITLE = 200
_MAX_PAGE_SIZE = 100
_NEW_STATUS = "new"


class Threads:
    """The threads of a saver, user by user.

    Args:
        graph: A graph of ``build_graph`` with a saver.
        log: The runs of the threads.
        is_shared: Whether the one user, ``local``, sees the database's threads as they are; otherwise
            everybody has names of his own.
    """

    def __init__(self, graph: Any, log: RunLog, *, is_shared: bool) -> None:
        self._graph = graph
        self._saver: BaseCheckpointSaver[Any] = graph.checkpointer
        self._persistence: Persistence = graph.persistence
        self._log = log
        self._is_shared = is_shared

    def owner_prefix(self, caller: Caller) -> str:
        """Return with what the saver's names of a user's threads begin.

        >>> from langgraph.checkpoint.memory import InMemorySaver
        >>> from types import SimpleNamespace
        >>> graph = SimpleNamespace(checkpointer=InMemorySaver(), persistence=None)
        >>> threads = Threads(graph, None, is_shared=False)
        >>> threads.owner_prefix(Caller("a/b", tenant="c@d"))
        '@a%2Fb@c%40d/'
        """
        if self._is_shared:
            return ""
        # Neither separator is left in what stands between them.
        parts = [part for part in (caller.user_id, caller.tenant) if part is not None]
        return "".join(f"@{quote(part, safe='')}" for part in parts) + "/"

    def prefix_of(self, storage_id: str) -> str:
        """Return with what the names of the threads of this one's user begin; empty for nobody's."""
        return (
            ""
            if self._is_shared or not storage_id.startswith("@")
            else storage_id.partition("/")[0] + "/"
        )

    def is_in_tenant(self, caller: Caller, storage_id: str) -> bool:
        """Tell whether a thread is of the tenant of a caller."""
        _, _, tenant = self.prefix_of(storage_id).strip("/").removeprefix("@").partition("@")
        return tenant == quote(caller.tenant or "", safe="")

    def storage_id(self, caller: Caller, thread_id: str) -> str:
        """Return the saver's name of a user's thread.

        Raises:
            ValidationError: The name cannot be used.
        """
        if not thread_id.strip() or len(thread_id) > _MAX_ID or not thread_id.isprintable():
            raise ValidationError(
                f"The thread id {thread_id[:80]!r} cannot be used.",
                fix=f"Use 1 to {_MAX_ID} printable characters.",
            )
        return self.owner_prefix(caller) + thread_id

    def public_id(self, caller: Caller, storage_id: str) -> str:
        """Return a user's name of a thread of the saver."""
        return storage_id.removeprefix(self.owner_prefix(caller))

    async def resolve(self, caller: Caller, thread_id: str) -> str:
        """Return the saver's name of a thread that is there.

        Raises:
            NotFoundError: It is not, or is somebody else's.
        """
        missing = NotFoundError("There is no such thread.", fix="List your threads.")
        try:
            kept = self.storage_id(caller, thread_id)
        except ValidationError:
            raise missing from None
        if await self._saver.aget_tuple(thread_config(kept)) is None:
            raise missing
        return kept

    async def list_recent(self, caller: Caller, limit: int) -> list[str]:
        """Return the saver's names of the threads of a user that were saved last."""
        named = iter_thread_ids(self._saver, limit=limit, prefix=self.owner_prefix(caller))
        return [kept async for kept in named]

    async def create(
        self,
        caller: Caller,
        title: str = "",
        *,
        thread_id: str | None = None,
        contexts: Mapping[str, Any] | None = None,
    ) -> str:
        """Make an empty thread.

        Args:
            caller: Whose.
            title: What it is called.
            thread_id: Its name, where it has to be a certain one.
            contexts: Context data that stands there before the first turn, by type and key.
        """
        thread_id = thread_id or uuid.uuid4().hex
        kept = self.storage_id(caller, thread_id)
        given = {"capability_context_data": contexts} if contexts else {}
        # Written as a node that ends a turn, so that nothing is left to run.
        await self._graph.aupdate_state(
            thread_config(kept),
            {"execution_outcome": {"status": _NEW_STATUS}, **given},
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
        """Describe a user's threads, the one that was saved last first.

        Args:
            caller: Whose.
            query: Words of which each is in the title, the task, the last message or the name.
            outcome: How the last turn ended.
            limit: At most so many.
            after: What the last page gave for the next one.

        Returns:
            A page, and what asks for the next one.
        """
        limit = min(max(limit, 1), _MAX_PAGE_SIZE)
        kept_after = None if after is None else await self.resolve(caller, after)
        words = query.casefold().split()
        found: list[dict[str, Any]] = []
        async for kept in iter_thread_ids(
            self._saver, after=kept_after, prefix=self.owner_prefix(caller)
        ):
            item = await self._describe(caller, kept)
            if item is None or (outcome and item["outcome"] != outcome):
                continue
            searched = " ".join(
                str(item[name] or "") for name in ("thread_id", "title", "task", "last_message")
            ).casefold()
            if not all(word in searched for word in words):
                continue
            if len(found) == limit:
                return found, str(found[-1]["thread_id"])
            found.append(item)
        return found, None

    async def get(self, caller: Caller, thread_id: str) -> dict[str, Any]:
        """Describe one thread, with its conversation and its plan.

        Raises:
            NotFoundError: There is none.
        """
        from capgraph.graph.turn_runner import load_thread_values, step_states

        kept = await self.resolve(caller, thread_id)
        item = await self._describe(caller, kept)
        values = await load_thread_values(self._graph, kept)
        plan = values.get("planning_execution_plan") or {}
        return {
            **(item or {}),
            "messages": [_message_fields(one) for one in values.get("messages") or []],
            "plan": {"steps": list(plan.get("steps") or [])} if plan else None,
            "steps": step_states(values),
            "results": to_json_safe(values.get("execution_step_results") or {}),
            "runs": [
                {"run_id": run.run_id, "status": run.status, "opened": run.created_at}
                for run in await self._log.thread_runs(kept)
            ],
        }

    async def rename(self, caller: Caller, thread_id: str, title: str) -> dict[str, Any]:
        """Give a thread a title.

        Raises:
            NotFoundError: There is no such thread.
            ValidationError: It is no title.
        """
        kept = await self.resolve(caller, thread_id)
        if not isinstance(title, str) or len(title) > _MAX_TITLE:
            raise ValidationError(
                f"The title {str(title)[:80]!r} cannot be used.",
                fix=f"Give text of at most {_MAX_TITLE} characters.",
            )
        await write_record(
            self._saver, kept, _TITLE_RECORD, {"title": title}, parent_checkpoint_id=NEVER_PRUNED
        )
        return await self._describe(caller, kept) or {}

    async def delete(self, caller: Caller, thread_id: str) -> None:
        """Drop a thread with its runs.

        Raises:
            NotFoundError: There is no such thread.
            ThreadBusyError: It is being run.
        """
        kept = await self.resolve(caller, thread_id)
        leases = self._persistence.leases
        lease = await leases.acquire(kept)
        try:
            await self._saver.adelete_thread(kept)
            await self._log.drop_thread(kept)
            if (due := await self._persistence.waits.get(kept)) is not None:
                await self._persistence.waits.drop(due)
        finally:
            await leases.release(lease)

    async def fork(self, caller: Caller, thread_id: str, checkpoint_id: str | None = None) -> str:
        """Begin a new thread with the past of another one.

        Raises:
            NotFoundError: There is no such thread or checkpoint.
            PersistenceError: The saver keeps no histories to copy.
        """
        kept = await self.resolve(caller, thread_id)
        await self._checkpoint_config(kept, checkpoint_id)
        fresh = uuid.uuid4().hex
        await fork_thread(
            self._saver, kept, self.storage_id(caller, fresh), checkpoint_id=checkpoint_id
        )
        return fresh

    async def history(
        self, caller: Caller, thread_id: str, *, limit: int = 50, after: str | None = None
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Describe the checkpoints of a thread, the latest first.

        Raises:
            NotFoundError: There is no such thread.
        """
        kept = await self.resolve(caller, thread_id)
        limit = min(max(limit, 1), _MAX_PAGE_SIZE)
        before = None if after is None else thread_config(kept, checkpoint_id=after)
        found = [
            {
                "checkpoint_id": one.config["configurable"]["checkpoint_id"],
                "created_at": one.created_at,
                "next": list(one.next),
                "source": (one.metadata or {}).get("source"),
                "step": (one.metadata or {}).get("step"),
                "turn": (one.values.get("runtime_info") or {}).get("turn", 0),
                "messages": len(one.values.get("messages") or []),
                "questions": len(one.interrupts),
            }
            async for one in self._graph.aget_state_history(
                thread_config(kept), before=before, limit=limit + 1
            )
        ]
        more = found[limit - 1]["checkpoint_id"] if len(found) > limit else None
        return found[:limit], more

    async def state(
        self, caller: Caller, thread_id: str, checkpoint_id: str | None = None
    ) -> dict[str, Any]:
        """Return what a thread holds, now or at one of its checkpoints, as plain data.

        Where a file lies concerns nobody who asks: it is had by reference.

        Raises:
            NotFoundError: There is no such thread or checkpoint.
        """
        from capgraph.graph.turn_runner import load_contexts

        kept = await self.resolve(caller, thread_id)
        snapshot = await self._graph.aget_state(await self._checkpoint_config(kept, checkpoint_id))
        values = dict(snapshot.values)
        messages = [_message_fields(one) for one in values.pop("messages", None) or []]
        types = self._graph.services.registry.context_types
        made = {
            path: PurePath(path).name or path
            for kind, entries in (values.get("capability_context_data") or {}).items()
            for key, entry in entries.items()
            for context in load_contexts(types, kind, key, entry)
            for path in context.get_files()
        }
        found: dict[str, Any] = _replace_text({"messages": messages, **to_json_safe(values)}, made)
        return found

    async def _checkpoint_config(
        self, storage_id: str, checkpoint_id: str | None
    ) -> RunnableConfig:
        """Find a thread as it is, or as it was at one of its checkpoints."""
        config = thread_config(storage_id, checkpoint_id=checkpoint_id)
        if checkpoint_id is not None and await self._saver.aget_tuple(config) is None:
            raise NotFoundError("There is no such checkpoint.", fix="List the history.")
        return config

    async def _describe(self, caller: Caller, storage_id: str) -> dict[str, Any] | None:
        summary = await thread_summary(self._saver, storage_id)
        if summary is None:
            return None
        about = await read_record(self._saver, storage_id, _TITLE_RECORD)
        return self._summary_fields(caller, summary, about)

    def _summary_fields(
        self, caller: Caller, summary: ThreadSummary, record: Mapping[str, Any]
    ) -> dict[str, Any]:
        known = asdict(summary)
        known["thread_id"] = self.public_id(caller, summary.thread_id)
        known["outcome"] = known.pop("status")
        known["updated_at"] = summary.updated_at.isoformat() if summary.updated_at else None
        known["questions"] = len(summary.questions)
        known["last_message"] = summary.last_message[:500]
        known["title"] = record.get("title") or (summary.task or summary.last_message)[:80]
        return known


def _replace_text(value: Any, replacements: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for name, shown in replacements.items():
            value = value.replace(name, shown)
        return value
    if isinstance(value, dict):
        return {key: _replace_text(one, replacements) for key, one in value.items()}
    return [_replace_text(one, replacements) for one in value] if isinstance(value, list) else value


def to_json_safe(value: Any) -> Any:
    """Return plain data that every reader of JSON reads: what is no number is told in words.

    >>> to_json_safe([1.5, float("nan")])
    [1.5, 'NaN']
    """
    return json.loads(json.dumps(to_plain(value, lenient=True)), parse_constant=str)


def _message_fields(message: AnyMessage) -> dict[str, Any]:
    role = {"human": "user", "ai": "assistant"}.get(message.type, message.type)
    return {"id": message.id, "role": role, "content": str(message.text)}
