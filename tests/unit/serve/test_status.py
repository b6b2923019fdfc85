"""How an agent stands: budgets, limits, findings, the graph, evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from capgraph import capability_node
from capgraph.base import CapabilityError, ErrorSeverity
from capgraph.configs.settings import Settings
from capgraph.stores import Persistence, open_saver
from tests.support.served import READ, Level, OpenValve, asked, ended, read_level, served


async def items(client: Any, path: str) -> list[dict[str, Any]]:
    answer = await client.get(f"/api/{path}")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def test_budgets_show_the_remaining_amounts_of_the_user(tmp_path: Path) -> None:
    budgets = [
        {"steps": 10, "per": "user"},
        {"steps": 7, "per": "tenant", "window": "day"},
        {"steps": 5, "per": "thread"},
        {"tokens": 100, "per": "turn"},
    ]
    async with (
        open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver,
        served(saver=saver, settings=Settings(budgets=budgets)) as client,
    ):
        ann, bob = await client(), await client("bob")
        thread, run = await asked(ann, READ)
        assert await ended(ann, run) == "completed"
        told = {one["per"]: one for one in await items(ann, "budgets")}
        assert (told["user"]["allows"], told["user"]["left"]) == (10, 9)
        assert told["tenant"]["left"] is told["turn"]["left"] is told["thread"]["left"] is None
        (of_thread,) = [
            one for one in await items(ann, f"budgets?thread_id={thread}") if one["per"] == "thread"
        ]
        assert of_thread["left"] == 4
        assert (await items(bob, "budgets"))[0]["left"] == 10
        assert (await bob.get(f"/api/budgets?thread_id={thread}")).status_code == 404


async def test_only_admins_see_workers(tmp_path: Path) -> None:
    async with open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver, served(saver=saver) as client:
        ann, eve = await client(), await client("eve", "auditor")
        rows = Persistence.of(saver).tables
        assert rows is not None
        assert await items(eve, "workers") == []
        await rows.run(
            "INSERT INTO capgraph_workers (id, queues, running, gone) VALUES (?, ?, ?, ?)",
            ("one", '["turns"]', 2, 1e12),
        )
        assert await items(eve, "workers") == [{"id": "one", "queues": ["turns"], "running": 2}]
        assert await items(ann, "workers") == []


async def test_limits_list_slots_and_open_breakers() -> None:
    @capability_node(max_parallel=2)
    async def fetch() -> Level:
        """Fetch it from a place that is down."""
        raise CapabilityError("down", fix="wait", severity=ErrorSeverity.CRITICAL)

    settings = Settings(behaviors=[{"use": "circuit_breaker", "failure_threshold": 1}])
    async with served(fetch, OpenValve, settings=settings) as client:
        ann = await client()
        before = await items(ann, "limits")
        assert {(one["name"], one["allows"]) for one in before} >= {("fetch", 2)}
        assert [one["kind"] for one in before if one["kind"] == "breaker"] == []
        _, run = await asked(ann, {"steps": [{"context_key": "f", "capability": "fetch"}]})
        assert await ended(ann, run) == "failed"
        (closed,) = [one for one in await items(ann, "limits") if one["kind"] == "breaker"]
        assert closed["name"] == "fetch"
        assert "until" in closed["told"]


async def test_only_admins_see_findings_and_evaluations(tmp_path: Path) -> None:
    run = {"label": "a", "figures": {"passed": 0.5, "seconds": float("nan")}}
    cases = [{"name": "one", "passed": False, "problems": ["- step x"], "request": "secret"}]
    data = {"dataset": "d", "ok": False, "reports": [{**run, "cases": cases}]}
    (tmp_path / "first.json").write_text(json.dumps(data))
    (tmp_path / "odd.json").write_text("[")
    settings = Settings(serve={"evaluations": str(tmp_path)})
    async with served(read_level, OpenValve, settings=settings) as client:
        ann, eve = await client(), await client("eve", "auditor")
        assert await items(ann, "findings") == await items(ann, "evaluations") == []
        found = await items(eve, "findings")
        assert {one["level"] for one in found} >= {"ok", "warning"}
        odd, first = sorted(await items(eve, "evaluations"), key=lambda one: "figures" in one)
        assert odd["problem"].startswith("not an evaluation")
        assert first["figures"] == {"passed": 0.5, "seconds": "NaN"}
        assert first["cases"] == [{"name": "one", "passed": False, "problems": ["- step x"]}]
        agent = (await ann.get("/api/agent")).json()
        assert agent == {"name": "capgraph agent", "description": "", "examples": []}
        graph = (await ann.get("/api/graph")).json()
        assert {"classifier", "orchestrator", "router"} <= set(graph["nodes"])
        assert {"from", "to", "conditional"} == set(graph["edges"][0])
