"""Read access to recorded activity: effects, model usage, and the audit log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from capgraph.base.errors import PolicyError
from capgraph.base.ports import Caller
from capgraph.serve.problems import BadRequestError
from capgraph.state import TurnView
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import read_record, thread_config
from capgraph.stores.threads import iter_thread_ids
from capgraph.telemetry.audit_chain import Verification
from capgraph.telemetry.usage_recorder import usage_totals

if TYPE_CHECKING:
    from capgraph.serve.threads import Threads

_MAX_PAGE_SIZE = 200
_MAX_SCANNED_RECORDS = 20_000
"""Maximum number of audit records that are scanned for one page."""

Page = tuple[list[dict[str, Any]], str | None]


class ActivityReader:
    """Reader for recorded effects, model usage, and audit records.

    Users may read their own records. Admins may read all records of their tenant.

    Args:
        graph: Graph made by ``build_graph``, with a checkpointer.
        threads: The users' threads.
        admin_roles: Roles that see the records of every user in their tenant.
    """

    def __init__(self, graph: Any, threads: Threads, admin_roles: Collection[str]) -> None:
        self._graph, self._saver = graph, graph.checkpointer
        self._services = graph.services
        self._threads = threads
        self._admin_roles = frozenset(admin_roles)
        self._persistence: Persistence = graph.persistence
        self._tables = self._persistence.tables
        audit, self._audit = self._services.settings.audit, None
        if self._tables is not None:
            self._audit = self._persistence.audit_table(audit.signing_key, audit.name)
        self._verification: asyncio.Task[Verification] | None = None

    def _visible_prefix(self, caller: Caller) -> str:
        """Return the storage ID prefix of the threads whose records the caller may read."""
        return "" if caller.role in self._admin_roles else self._threads.owner_prefix(caller)

    def _can_see(self, caller: Caller, storage_id: str) -> bool:
        return storage_id.startswith(self._visible_prefix(caller)) and self._threads.is_in_tenant(
            caller, storage_id
        )

    async def list_effects(
        self, caller: Caller, *, thread_id: str | None, limit: int, after: str | None
    ) -> Page:
        """Return a page of recorded side effects with their approvers, latest thread first.

        Raises:
            NotFoundError: The thread does not exist.
        """
        limit = min(max(limit, 1), _MAX_PAGE_SIZE)
        effects: list[dict[str, Any]] = []
        if thread_id is not None:
            storage_id = await self._threads.resolve(caller, thread_id)
            return await self._thread_effects(caller, storage_id), None
        cursor = None if after is None else await self._resolve_cursor(caller, after)
        last_id = None
        async for storage_id in iter_thread_ids(
            self._saver, after=cursor, prefix=self._visible_prefix(caller)
        ):
            if not self._can_see(caller, storage_id):
                continue
            if len(effects) >= limit:
                return effects, last_id
            effects += await self._thread_effects(caller, storage_id)
            last_id = self._threads.public_id(caller, storage_id)
        return effects, None

    async def _resolve_cursor(self, caller: Caller, after: str) -> str:
        if self._visible_prefix(caller) == "" and self._can_see(caller, after):
            checkpoint = await self._saver.aget_tuple({"configurable": {"thread_id": after}})
            if checkpoint is not None:
                return after
        return await self._threads.resolve(caller, after)

    async def _thread_effects(self, caller: Caller, storage_id: str) -> list[dict[str, Any]]:
        names = await self._persistence.record_names(storage_id)
        approvers: dict[tuple[str, str, str | None], list[str]] = {}
        effects = []
        for name in names:
            turn, _, digest = name.rpartition("/agreed/")
            if turn and digest:
                for step, entry in (await read_record(self._saver, storage_id, name)).items():
                    approved_by = [vote["by"] for vote in entry.get("votes") or () if vote["by"]]
                    approvers.setdefault((turn, step, entry.get("used")), []).extend(approved_by)
        for name in names:
            *turn_parts, capability, _, _ = ["", "", "", *name.split("/")]
            if capability not in self._services.registry.capabilities:
                continue
            record = await read_record(self._saver, storage_id, name)
            claims: Mapping[str, str] = record.get("claims") or {}
            if not claims or record.get("status") == "claimed":
                continue
            turn = "/".join(turn_parts).lstrip("/")
            # An approval for a single step names the plan that used it.
            approved_by = [
                who
                for plan, step in claims.items()
                for used in (plan, None)
                for who in approvers.get((turn, step, used), ())
            ]
            effects.append(
                {
                    "effect": name,
                    "key": f"{storage_id}/{name}",
                    "capability": capability,
                    "thread_id": self._threads.public_id(caller, storage_id),
                    "turn": turn,
                    "step": list(claims.values())[-1],
                    "state": record.get("status"),
                    "approved_by": list(dict.fromkeys(approved_by)),
                }
            )
        return effects

    async def list_usage(self, caller: Caller, by: str, thread_id: str | None = None) -> Page:
        """Return the recorded model usage, grouped by ``model``, ``day``, ``user``, or ``step``.

        Args:
            caller: The caller.
            by: Name of the grouping. ``step`` groups the calls of a thread's last turn.
            thread_id: Restrict the result to this thread.

        Raises:
            BadRequestError: The grouping is unknown, or ``step`` has no thread.
            NotFoundError: The thread does not exist.
        """
        if by not in ("model", "day", "user", "step") or (by == "step" and thread_id is None):
            raise BadRequestError(
                f"The grouping by={by[:40]!r} is unknown or incomplete.",
                fix="Use model, day, or user; or step together with thread_id.",
            )
        filters: dict[str, str | None] = {}
        if thread_id is not None:
            filters["thread_id"] = await self._threads.resolve(caller, thread_id)
        elif self._visible_prefix(caller):
            filters |= {"user_id": caller.user_id, "tenant": caller.tenant or ""}
        elif self._threads.owner_prefix(caller):
            filters["tenant"] = caller.tenant or ""
        if self._tables is None:
            return [], None
        if by == "step":
            values = await self._graph.aget_state(thread_config(str(filters["thread_id"])))
            filters["turn_id"] = TurnView(dict(values.values)).turn_id
        await self._services.budget_policy.recorder.aflush()
        totals = await usage_totals(self._tables, group_by=by, **filters)
        return [{by: total.model, **asdict(total)} for total in totals], None

    async def list_audit_records(self, caller: Caller, *, limit: int, after: int) -> Page:
        """Return a page of audit records, oldest first."""
        limit = min(max(limit, 1), _MAX_PAGE_SIZE)
        records: list[dict[str, Any]] = []
        last = after
        if self._audit is None:
            return [], None
        while lines := await self._audit.aread_lines(last):
            for line in lines:
                record: dict[str, Any] = json.loads(line)
                thread = str(record["data"].get("thread_id") or "")
                if len(records) == limit or last - after > _MAX_SCANNED_RECORDS:
                    return records, str(last)
                last = record["seq"]
                if self._can_see(caller, thread):
                    public_fields = (
                        {"thread_id": self._threads.public_id(caller, thread)} if thread else {}
                    )
                    records.append({**record, "data": {**record["data"], **public_fields}})
        return records, None

    async def verify_audit(self, caller: Caller) -> dict[str, Any]:
        """Verify the integrity of the audit log and return the result.

        Concurrent requests share one verification. The result contains the number of records only
        for an admin without a tenant.

        Raises:
            PolicyError: The caller has none of the admin roles.
        """
        if self._visible_prefix(caller):
            raise PolicyError(
                "The audit log was not verified: the caller has no role of serve.admin_roles.",
                fix="Ask an administrator.",
            )
        if self._audit is None:
            return {"valid": True}
        if self._verification is None or self._verification.done():
            self._verification = asyncio.create_task(self._audit.averify())
        report = asdict(await asyncio.shield(self._verification))
        fields = ("valid", "records", "problem") if caller.tenant is None else ("valid",)
        return {name: report[name] for name in fields}
