"""One process stops what another one runs, over SQLite and PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from capgraph.governance import clear_stop, list_stops, stop
from tests.faults.databases import sqlite_url
from tests.faults.scene import lines

ROOT = Path(__file__).parents[2]
STEPS = 400
PROGRAM = """
import asyncio, json, os, sys
from pathlib import Path
from pydantic import BaseModel
from capgraph.configs.settings import load_settings
from capgraph import BaseCapability, Registry, build_graph, capability_node
from capgraph.stores import open_saver
from tests.faults import scene

url, folder, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
scene.FOLDER = folder

@capability_node
class Act(BaseCapability):
    name = "act"
    description = "Act"
    effect = "once"
    max_parallel = 1

    class Parameters(BaseModel):
        number: int

    async def execute(self):
        scene.append("acted", str(self.parameters.number))
        print("acted", flush=True)
        sys.stdin.readline()
        return {}

async def main():
    plan = [{"context_key": f"s{n}", "capability": "act", "parameters": {"number": n}}
            for n in range(steps)]
    settings = load_settings(limits={"max_steps": steps + 1})
    async with open_saver(url) as saver:
        graph = build_graph([Act], checkpointer=saver, settings=settings)
        given = {"messages": [("user", "Act")], "planning_execution_plan": {"steps": plan}}
        out = await graph.ainvoke(given, {"configurable": {"thread_id": "t", "user_id": "ann"}})
    print(json.dumps(out["execution_outcome"]), flush=True)

asyncio.run(main())
"""

pytestmark = [pytest.mark.may_block, pytest.mark.timeout(900)]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.service)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "threads.db")
    made: str = request.getfixturevalue("server").database()
    return made


@pytest.mark.row("A6")
@pytest.mark.sampled(0.34)
@pytest.mark.parametrize("what", [{"thread": "t"}, {"user": "ann"}, {"all": True}], ids=str)
async def test_after_the_stop_no_effect_begins(
    url: str, tmp_path: Path, what: dict[str, Any]
) -> None:
    environment = {**os.environ, "LANGSMITH_TRACING": "false", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, url, str(tmp_path), str(STEPS)]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        for _ in range(3):  # each effect waits for a line, so the instant is known
            assert running.stdout.readline() == "acted\n"
            if _ < 2:
                running.stdin.write("\n")
                running.stdin.flush()
        await stop(url, **what, reason="enough")
        running.stdin.write("\n")
        running.stdin.close()
        outcome = json.loads(running.stdout.readline())
    assert running.returncode == 0
    assert outcome["status"] == "stopped"
    assert len(lines("acted")) == 3, "the effect that was under way was the last one"
    assert [found.reason for found in await list_stops(url)] == ["enough"]
    assert await clear_stop(url, **what)
