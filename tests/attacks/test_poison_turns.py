"""Turns that end every process that runs them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from capgraph import build_graph, capability_node
from capgraph.base import PersistenceError
from capgraph.configs.settings import Settings
from capgraph.graph.turn_runner import TurnRunner
from capgraph.scale.jobs import TurnJob
from capgraph.scale.run_executor import RunExecutor, advance
from capgraph.stores import open_saver, thread_summary
from capgraph.stores.run_log import LoggedRun

ROOT = Path(__file__).parents[2]
MAX_LOSSES = 2
PLAN = {"steps": [{"context_key": "a", "capability": "crash"}]}
SAFE_PLAN = {"steps": [{"context_key": "a", "capability": "read_level"}]}
JOB = TurnJob("t", "r")


@capability_node
def crash() -> str:
    """End the process."""
    os._exit(9)


@capability_node
def read_level() -> float:
    """Read the level of the tank."""
    return 2.5


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[Any, Any]]:
    settings = Settings(scale={"max_losses": MAX_LOSSES})
    async with open_saver(url) as saver:
        graph = build_graph([crash, read_level], settings=settings, checkpointer=saver)
        log = graph.persistence.open_run_log()
        try:
            yield graph, log
        finally:
            await log.flush()
            log.close()


async def run_in_process(url: str) -> dict[str, str]:
    async with opened(url) as (graph, log):
        return dict((await advance(graph, JOB, log=log)).statuses)


def start_process(url: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import asyncio\nfrom tests.attacks import test_poison_turns as it\n"
        f"print(asyncio.run(it.run_in_process({url!r})))"
    )
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


async def submit(url: str, run_id: str, plan: dict[str, Any]) -> None:
    async with opened(url) as (_, log):
        await log.create(LoggedRun(run_id, "t", "", request={"plan": plan, "caller": {}}))


def test_a_turn_that_ends_its_processes_fails_and_stays_for_inspection(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    asyncio.run(submit(url, "r", PLAN))
    assert [start_process(url).returncode for _ in range(MAX_LOSSES)] == [9, 9]
    survivor = start_process(url)
    assert survivor.stdout.strip() == "{'r': 'failed'}", survivor.stderr

    async def look() -> None:
        async with opened(url) as (graph, log):
            (run,) = await log.poison_runs(MAX_LOSSES)
            assert (run.run_id, run.thread_id) == ("r", "t")
            events = [event async for page in log.follow("r") for event in page]
            assert '"RUN_FINISHED"' in events[-1][1] or '"RUN_ERROR"' in events[-1][1]
            summary = await thread_summary(graph.checkpointer, "t")
            assert getattr(summary, "status", None) == "failed"
            await log.create(LoggedRun("next", "t", "", request={"plan": SAFE_PLAN, "caller": {}}))
            assert (await advance(graph, JOB, log=log)).statuses == {"next": "completed"}

    asyncio.run(look())


async def test_a_process_that_hands_a_turn_over_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_away(*_: Any) -> Any:
        raise PersistenceError("The database is away.", fix="Bring it back.")

    async with opened(f"sqlite:///{tmp_path / 't.db'}") as (graph, log):
        await log.create(LoggedRun("r", "t", "", request={"plan": SAFE_PLAN, "caller": {}}))
        with monkeypatch.context() as patch:
            patch.setattr(TurnRunner, "run", is_away)
            for _ in range(2 * MAX_LOSSES):
                with pytest.raises(PersistenceError):
                    await RunExecutor(graph, log).advance(JOB)
        assert (await advance(graph, JOB, log=log)).statuses == {"r": "completed"}
        assert await log.poison_runs(MAX_LOSSES) == []


def test_poison_turns_are_listed(tmp_path: Path, server: Any) -> None:
    url = server.database()
    (tmp_path / "agent.yml").write_text(f"scale: {{max_losses: {MAX_LOSSES}}}\n")
    asyncio.run(submit(url, "r", PLAN))
    for _ in range(MAX_LOSSES + 1):
        start_process(url)
    command = ["workers", "--poison", "--json", "--db", url, "--config", "agent.yml"]
    listed = subprocess.run(
        [sys.executable, "-m", "capgraph", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert listed.returncode == 0, listed.stderr
    (run,) = json.loads(listed.stdout)["runs"]
    assert (run["run"], run["thread"], run["losses"]) == ("r", "t", MAX_LOSSES)
