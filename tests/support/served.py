"""A served graph in one process: capabilities of a tank, clients of several users, events of runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

import httpx
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel, Field

from capgraph import BaseCapability, CapabilityContext, build_graph, capability_node
from capgraph.base.ports import Caller
from capgraph.configs.settings import Settings
from capgraph.serve.app import create_app

PLAN: dict[str, Any] = {
    "steps": [
        {"context_key": "level", "capability": "read_level", "task_objective": "Look."},
        {
            "context_key": "open",
            "capability": "open_valve",
            "parameters": {"litres": 3.0},
            "inputs": [{"LEVEL": "level"}],
        },
    ]
}
READ: dict[str, Any] = {"steps": PLAN["steps"][:1]}


class Level(CapabilityContext):
    """How full the tank is."""

    litres: float

    def get_tables(self) -> dict[str, list[dict[str, Any]]]:
        return {"tanks": [{"tank": 1, "litres": self.litres}]}


class Source(CapabilityContext):
    """Files that somebody brought along."""

    files: list[str]


@capability_node
async def read_level() -> Level:
    """Read the level of the tank."""
    return Level(litres=7)


class Opening(BaseModel):
    litres: float = Field(2.0, gt=0, le=50)


@capability_node
class OpenValve(BaseCapability):
    name = "open_valve"
    description = "Open the valve of the tank."
    requires = ["LEVEL"]
    effect = "once"
    requires_approval = True
    Parameters = Opening
    opened: ClassVar[list[float]] = []

    async def execute(self) -> None:
        self.opened.append(self.parameters.litres)


class ByHeader:
    """Believes whoever names himself: for tests of what stands behind the shield."""

    async def caller(self, scope: Mapping[str, Any]) -> Caller | None:
        headers = dict(scope["headers"])
        name = headers.get(b"x-user", b"").decode()
        role = headers.get(b"x-role", b"").decode() or None
        tenant = headers.get(b"x-tenant", b"").decode() or None
        return Caller(name, role, tenant, authenticated=True) if name else None


@contextlib.asynccontextmanager
async def served(
    *capabilities: Any, saver: Any = None, serve: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[Any]:
    """Serve a graph; gives a function that makes the client of a user."""
    known = options.pop("registry", None) or capabilities or (read_level, OpenValve)
    settings = options.pop("settings", None) or Settings(serve=dict(serve or {}))
    auth = options.pop("auth", None) or ByHeader()
    graph = build_graph(known, checkpointer=saver or InMemorySaver(), settings=settings, **options)
    app = await asyncio.to_thread(create_app, graph, auth=auth)
    async with app.router.lifespan_context(app), contextlib.AsyncExitStack() as stack:

        async def client(user: str = "ann", role: str = "", tenant: str = "") -> httpx.AsyncClient:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            return await stack.enter_async_context(
                httpx.AsyncClient(
                    transport=transport,
                    base_url="http://127.0.0.1",
                    headers={"x-user": user, "x-role": role, "x-tenant": tenant},
                )
            )

        client.app = app  # type: ignore[attr-defined]
        client.graph = graph  # type: ignore[attr-defined]
        yield client


async def events_of(client: httpx.AsyncClient, run_id: str, after: int = 0) -> list[Any]:
    """Return the events of a run, whose ids have to count on without a gap."""
    headers = {"last-event-id": str(after)} if after else {}
    answer = await client.get(f"/api/runs/{run_id}/events", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in answer.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            assert int(lines["id"]) == after + len(found) + 1
            found.append(json.loads(lines["data"]))
    return found


async def asked(client: httpx.AsyncClient, plan: Any = None, **more: Any) -> tuple[str, str]:
    """Make a thread and run a plan in it; returns thread and run."""
    thread = (await client.post("/api/threads")).json()["thread_id"]
    body = {"plan": PLAN if plan is None else plan, **more}
    answer = await client.post(f"/api/threads/{thread}/runs", json=body)
    assert answer.status_code == 202, answer.text
    return thread, answer.json()["run_id"]


async def ended(client: httpx.AsyncClient, run_id: str) -> str:
    """Wait for the end of a run, and return its status."""
    await events_of(client, run_id)
    while (found := (await client.get(f"/api/runs/{run_id}")).json())["status"] in {
        "queued",
        "running",
    }:
        await asyncio.sleep(0.01)
    return str(found["status"])
