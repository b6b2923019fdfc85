"""What is kept of who did what: effects, usage, the audit."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from capgraph.base.ports import Caller
from capgraph.serve.problems import BadRequestError
from capgraph.state import TurnView
from capgraph.stores.persistence import Persistence
from capgraph.stores.records import read_record, thread_config
from capgraph.stores.threads import iter_thread_ids
from capgraph.telemetry.usage_recorder import usage_totals

if TYPE_CHECKING:
    from capgraph.serve.threads import Threads

_MAX_PAGE_SIZE = 200
_MAX_SCANNED_RECORDS = 20_000
"""Records of the audit that are looked through for a page of somebody's own."""

Page = tuple[list[dict[str, Any]], str | None]


class ActivityReader:
    """Reads what is kept beside the threads; a user sees his own, who oversees all of his tenant's.

    Args:
        graph: A graph of ``build_graph`` with a saver.
        threads: The threads, user by user.
        admin_roles: Roles that see what is everybody's of their tenant.
    """

    def __init__(self, graph: Any, threads: Threads, admin_roles: Collection[str]) -> None:
        self._graph, self._saver = graph, graph.checkpointer
        self._services = graph.services
        self._threads = threads
        self._admin_roles = frozenset(admin_roles)
        self._persistence: Persistence = graph.persistence
        self._tables = self._persistence.tables
        key = self._services.settings.audit.signing_key
        self._audit = self._persistence.audit_table(key) if self._tables is not None else None

    def _visible_prefix(self, caller: Caller) -> str:
        """Return with what the names of the threads begin of which somebody may know."""
        return "" if caller.role in self._admin_roles else self._threads.owner_prefix(caller)

    def _can_see(self, caller: Caller, storage_id: str) -> bool:
        return storage_id.startswith(self._visible_prefix(caller)) and self._threads.is_in_tenant(
            caller, storage_id
        )

    async def list_effects(
        self, caller: Caller, *, thread_id: str | None, limit: int, after: str | None
    ) -> Page:
        """Return effects with how far they are and who agreed to them, by thread, the latest first.

        Raises:
            NotFoundError: There is no such thread.
        """
        limit = min(max(limit, 1), _MAX_PAGE_SIZE)
        found: list[dict[str, Any]] = []
        if thread_id is not None:
            kept = await self._threads.resolve(caller, thread_id)
            return await self._thread_effects(caller, kept), None
        place = None if after is None else await self._resolve_cursor(caller, after)
        last = None
        async for kept in iter_thread_ids(
            self._saver, after=place, prefix=self._visible_prefix(caller)
        ):
            if not self._can_see(caller, kept):
                continue
            if len(found) >= limit:
                return found, last
            found += await self._thread_effects(caller, kept)
            last = self._threads.public_id(caller, kept)
        return found, None

    async def _resolve_cursor(self, caller: Caller, after: str) -> str:
        if self._visible_prefix(caller) == "" and self._can_see(caller, after):
            known = await self._saver.aget_tuple({"configurable": {"thread_id": after}})
            if known is not None:
                return after
        return await self._threads.resolve(caller, after)

    async def _thread_effects(self, caller: Caller, storage_id: str) -> list[dict[str, Any]]:
        names = await self._persistence.record_names(storage_id)
        agreed: dict[tuple[str, str, str | None], list[str]] = {}
        found = []
        for name in names:
            turn, _, digest = name.rpartition("/agreed/")
            if turn and digest:
                for step, entry in (await read_record(self._saver, storage_id, name)).items():
                    by = [vote["by"] for vote in entry.get("votes") or () if vote["by"]]
                    agreed.setdefault((turn, step, entry.get("used")), []).extend(by)
        for name in names:
            *turn_parts, capability, _, _ = ["", "", "", *name.split("/")]
            if capability not in self._services.registry.capabilities:
                continue
            record = await read_record(self._saver, storage_id, name)
            claims: Mapping[str, str] = record.get("claims") or {}
            if not claims or record.get("status") == "claimed":
                continue
            turn = "/".join(turn_parts).lstrip("/")
            # An agreement says which plan's step used it up, where that matters.
            by = [
                who
                for plan, step in claims.items()
                for used in (plan, None)
                for who in agreed.get((turn, step, used), ())
            ]
            found.append(
                {
                    "effect": name,
                    "key": f"{storage_id}/{name}",
                    "capability": capability,
                    "thread_id": self._threads.public_id(caller, storage_id),
                    "turn": turn,
                    "step": list(claims.values())[-1],
                    "state": record.get("status"),
                    "approved_by": list(dict.fromkeys(by)),
                }
            )
        return found

    async def list_usage(self, caller: Caller, by: str, thread_id: str | None = None) -> Page:
        """Return what calls of models used, by ``model``, ``day`` or ``user``.

        Args:
            caller: Who asks.
            by: See above; ``step`` for those of a thread's last turn.
            thread_id: Only what was used in this thread.

        Raises:
            BadRequestError: It is kept by none of these.
            NotFoundError: There is no such thread.
        """
        if by not in ("model", "day", "user", "step") or (by == "step" and thread_id is None):
            raise BadRequestError(
                f"by is {by[:40]!r}.", fix="Use model, day or user; step with a thread_id."
            )
        chosen: dict[str, str | None] = {}
        if thread_id is not None:
            chosen["thread_id"] = await self._threads.resolve(caller, thread_id)
        elif self._visible_prefix(caller):
            chosen |= {"user_id": caller.user_id, "tenant": caller.tenant or ""}
        elif self._threads.owner_prefix(caller):
            chosen["tenant"] = caller.tenant or ""
        if self._tables is None:
            return [], None
        if by == "step":
            values = await self._graph.aget_state(thread_config(str(chosen["thread_id"])))
            chosen["turn_id"] = TurnView(dict(values.values)).turn_id
        await self._services.budget_policy.recorder.aflush()
        found = await usage_totals(self._tables, group_by=by, **chosen)
        return [{by: one.model, **asdict(one)} for one in found], None

    async def list_audit_records(self, caller: Caller, *, limit: int, after: int) -> Page:
        """Return records of the audit, the earliest first."""
        limit = min(max(limit, 1), _MAX_PAGE_SIZE)
        found: list[dict[str, Any]] = []
        last = after
        if self._audit is None:
            return [], None
        while lines := await self._audit.aread_lines(last):
            for line in lines:
                record: dict[str, Any] = json.loads(line)
                thread = str(record["data"].get("thread_id") or "")
                if len(found) == limit or last - after > _MAX_SCANNED_RECORDS:
                    return found, str(last)
                last = record["seq"]
                if self._can_see(caller, thread):
                    shown = {"thread_id": self._threads.public_id(caller, thread)} if thread else {}
                    found.append({**record, "data": {**record["data"], **shown}})
        return found, None

    async def verify_audit(self, caller: Caller) -> dict[str, Any]:
        """Check every record of the audit; how many there are is for whoever oversees them all."""
        if self._audit is None:
            return {"valid": True}
        found = asdict(await self._audit.averify())
        oversees = self._visible_prefix(caller) == "" and caller.tenant is None
        told = ("valid", "records", "problem") if oversees else ("valid",)
        return {name: found[name] for name in told}
