"""Read access to the agent's status: budgets, limits, findings, graph, workers, and evaluations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capgraph.base.ports import Caller
from capgraph.helpers.clock import use_clock

if TYPE_CHECKING:
    from capgraph.configs.settings import ServeSettings
    from capgraph.serve.threads import Threads

_MAX_EVALUATIONS = 50
_MAX_EXAMPLES = 6
_MAX_FILE_BYTES = 5_000_000


class StatusReader:
    """Reader for the agent's status, such as budgets, limits, and workers.

    Data that does not belong to the caller is visible only to admins.

    Args:
        graph: Graph made by ``build_graph``, with a checkpointer.
        threads: The users' threads.
        settings: Settings of the server.
    """

    def __init__(self, graph: Any, threads: Threads, settings: ServeSettings) -> None:
        self._graph, self._threads, self._settings = graph, threads, settings
        self._services, self._persistence = graph.services, graph.persistence
        self._findings: list[dict[str, Any]] | None = None

    def _is_admin(self, caller: Caller) -> bool:
        return caller.role in self._settings.admin_roles or self._threads.owner_prefix(caller) == ""

    async def list_budgets(self, caller: Caller, thread_id: str | None) -> list[dict[str, Any]]:
        """Return the caller's budgets with their remaining amounts.

        Budgets per turn or per step have no remaining amount between turns.

        Raises:
            NotFoundError: The thread does not exist.
        """
        storage_id = None if thread_id is None else await self._threads.resolve(caller, thread_id)
        subjects = {"user": caller.user_id, "tenant": caller.tenant, "thread": storage_id}
        values = self._persistence.values if self._persistence.tables is not None else None
        rows = []
        for configured in self._services.budget_policy.budgets:
            budget = configured.with_counters(values) if values is not None else configured
            subject = subjects.get(budget.per)
            with use_clock(self._services.clock):
                left = await budget.remaining(subject) if subject else {}
            rows += [
                {
                    "limit": name,
                    "per": budget.per,
                    "window": budget.window,
                    "name": budget.name,
                    "allows": value,
                    "left": left.get(name),
                }
                for name, value in budget.limits.items()
            ]
        return rows

    async def list_limits(self, caller: Caller) -> list[dict[str, Any]]:
        """Return the usage of this process's concurrency limits, and the open circuit breakers."""
        capacity = self._services.runner_config.capacity
        running, most = capacity.held_by_capability, self._services.limits.max_parallel
        visible = {one["name"] for one in self.list_capabilities(caller)}
        total = {"name": "steps", "used": capacity.running, "allows": most, "told": ""}
        slots = [
            {"name": name, "used": running.get(name, 0), "allows": spec.max_parallel, "told": ""}
            for name, spec in self._services.registry.capabilities.items()
            if name in visible and (spec.max_parallel or name in running)
        ]
        closed = [
            {"name": name, "used": None, "allows": None, "told": reason}
            for name, reason in (await self._services.runner.unavailable_capabilities()).items()
            if name in visible
        ]
        return [{"kind": "slots", **one} for one in (total, *slots)] + [
            {"kind": "breaker", **one} for one in closed
        ]

    def list_capabilities(self, caller: Caller) -> list[dict[str, Any]]:
        """Return descriptions of the capabilities that the caller may use."""
        permissions = self._services.permissions
        known = self._services.registry
        if permissions is not None:
            known = permissions.visible_registry(caller)
        return [
            {
                "name": spec.name,
                "description": spec.description,
                "provides": list(spec.provides),
                "requires": [need.label for need in spec.requires],
                "effect": spec.effect,
                "requires_approval": bool(spec.requires_approval),
                "permission": spec.permission.name.lower() if spec.permission else None,
                "parameters": spec.parameters.model_json_schema() if spec.parameters else None,
            }
            for spec in known.capabilities.values()
        ]

    def describe_agent(self, caller: Caller) -> dict[str, Any]:
        """Return the agent's name, description, and example requests.

        The examples come from the capabilities that the caller may use, beginning with the first
        example of each capability.
        """
        visible = self.list_capabilities(caller)
        declared = [self._services.registry.capabilities[one["name"]].cls for one in visible]
        by_place = zip_longest(*(cls.examples for cls in declared))
        examples = [text for texts in by_place for text in texts if text is not None]
        settings = self._services.settings
        return {
            "name": settings.name,
            "description": settings.description,
            "examples": list(dict.fromkeys(examples))[:_MAX_EXAMPLES],
        }

    def describe_graph(self) -> dict[str, Any]:
        """Return the nodes and edges of the graph as plain data."""
        drawn = self._graph.get_graph()
        edges = [
            {"from": edge.source, "to": edge.target, "conditional": edge.conditional}
            for edge in drawn.edges
        ]
        return {"nodes": list(drawn.nodes), "edges": edges}

    async def list_findings(self, caller: Caller) -> list[dict[str, Any]]:
        """Return the findings of ``capgraph check``, or an empty list for non-admin callers."""
        if not self._is_admin(caller):
            return []
        if self._findings is None:
            self._findings = await asyncio.to_thread(self._collect_findings)
        return self._findings

    def _collect_findings(self) -> list[dict[str, Any]]:
        from capgraph.graph.diagnostics import collect_findings

        services = self._services
        offline = services.chat_model("planning") is None
        saved = self._persistence.tables is not None
        found = collect_findings(
            services.registry,
            services.settings,
            offline=offline,
            has_saver=saved,
            permissions=services.permissions,
            schema=services.runner_config.schema,
        )
        return [asdict(one) for one in found]

    async def list_workers(self, caller: Caller) -> list[dict[str, Any]]:
        """Return the live workers of the database, or an empty list for non-admin callers."""
        rows = self._persistence.tables
        if rows is None or not self._is_admin(caller):
            return []
        from capgraph.scale import list_workers

        return [asdict(one) for one in await list_workers(rows)]

    async def list_evaluations(self, caller: Caller) -> list[dict[str, Any]]:
        """Return the stored results of ``capgraph eval``, latest first, or none for non-admins."""
        folder = self._settings.evaluations
        if folder is None or not self._is_admin(caller):
            return []
        return await asyncio.to_thread(_read_evaluations, folder)


def _read_evaluations(folder: str) -> list[dict[str, Any]]:
    known = [(path.stat(), path) for path in Path(folder).expanduser().glob("*.json")]
    files = sorted(((found.st_mtime, found.st_size, path) for found, path in known), reverse=True)
    evaluations: list[dict[str, Any]] = []
    for modified_at, size, path in files[:_MAX_EVALUATIONS]:
        metadata = {"name": path.stem, "at": datetime.fromtimestamp(modified_at, UTC).isoformat()}
        try:
            data: Any = json.loads(path.read_bytes()) if size <= _MAX_FILE_BYTES else None
            evaluations += [
                {**metadata, **_describe_evaluation(data, report)} for report in data["reports"]
            ]
        except (ValueError, KeyError, TypeError) as exc:
            evaluations.append({**metadata, "problem": f"not an evaluation: {type(exc).__name__}"})
    return evaluations


def _describe_evaluation(document: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    cases = [
        {name: case[name] for name in ("name", "passed", "problems")} for case in report["cases"]
    ]
    fields = {"dataset": document["dataset"], "ok": document["ok"], "label": report["label"]}
    return {**fields, "figures": report["figures"], "cases": cases}
