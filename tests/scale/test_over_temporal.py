"""Whole turns over Temporal: what it is told, what it may lose, and what it may be away for."""

from __future__ import annotations

import asyncio
import base64
import re
import subprocess
import sys
from pathlib import Path

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client as Temporal

from capgraph.base.errors import PersistenceError, ValidationError
from capgraph.base.ports import Caller
from capgraph.scale import Schedule
from capgraph.scale.schedules import Schedules
from tests.faults.databases import Server as Database
from tests.scale import toys
from tests.scale.crew import FILL, LEASE, READ, VALVE, Crew
from tests.support.sweeps import LONG
from tests.support.temporal_server import Server

pytestmark = [pytest.mark.service, pytest.mark.may_block]
ROOT = Path(__file__).parents[2]
SECRET = "The code of the safe is Sesame. "


@pytest.fixture
def crew(
    server: Database, temporal_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Crew:
    made = Crew(tmp_path, server, "temporal", temporal_server.address)
    monkeypatch.setattr(toys, "LOG", made.log)
    monkeypatch.setattr(toys, "GATE", made.gate)
    made.log.touch()
    return made


async def _forget(client: Temporal, thread: str) -> None:
    execution = WorkflowExecution(workflow_id=f"capgraph/{thread}")
    await client.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(namespace="default", workflow_execution=execution)
    )


async def _listed(client: Temporal, mark: str) -> list[str]:
    """Return ids of the schedules that Temporal lists; it lists them a moment after it has them."""
    return [one.id async for one in await client.list_schedules() if mark in one.id]


async def test_temporal_stores_no_thread_content(crew: Crew) -> None:
    thread, timed = crew.named("t"), crew.named("s")
    plan = {"steps": [{**READ["steps"][0], "task_objective": SECRET * 10_000}]}
    temporal = await Temporal.connect(str(crew.temporal))
    async with crew.client() as client, crew.worker():
        schedules = Schedules(client.graph.checkpointer)
        daily = Schedule(crew.mark, "0 7 * * *", SECRET, timed)
        await schedules.add(daily, client.engine)
        await client.submit(thread, plan=plan, caller=Caller("Ann KeyValueStore"))
        await crew.until(lambda: _listed(temporal, crew.mark))
        lost, *others = await _listed(temporal, crew.mark)
        assert not others
        await temporal.get_schedule_handle(lost).trigger()
        await crew.until(lambda: client.log.thread_runs(timed))
        await crew.over(client, thread, timed)
        # Workers see to it that there is one, whatever became of Temporal's own data.
        await temporal.get_schedule_handle(lost).delete()
        await crew.until(lambda: _listed(temporal, lost))
        assert await schedules.list_all() == [daily]
        assert await schedules.remove(crew.mark, client.engine)
        assert not await schedules.remove(crew.mark, client.engine)
    seen = []
    async for workflow in temporal.list_workflows():
        if crew.mark in workflow.id:
            handle = temporal.get_workflow_handle(workflow.id, run_id=workflow.run_id)
            seen.append((await handle.fetch_history()).to_json())
    assert len(seen) >= 3
    for history in seen:
        # Payloads stand in it as base64.
        told = history + "".join(
            base64.b64decode(data).decode() for data in re.findall(r'"data": ?"([^"]+)"', history)
        )
        assert '"thread"' in told or crew.mark in told
        assert "safe" not in told
        assert "KeyValueStore" not in told
    assert max(map(len, seen)) < 65_536


async def test_temporal_histories_can_be_deleted(crew: Crew) -> None:
    asks, waits, runs = crew.named("a"), crew.named("w"), crew.named("r")
    temporal = await Temporal.connect(str(crew.temporal))
    async with crew.client() as client:
        async with crew.worker():
            await client.submit(asks, plan=VALVE)
            question = await crew.asked(client, asks)
            await client.submit(runs, plan=FILL)
            await crew.until(lambda: any(line.startswith("fill") for line in crew.notes()))
            for thread in (asks, runs):
                await _forget(temporal, thread)
            await asyncio.sleep(1.5 * LEASE)  # the server has said that nobody needs this turn
            crew.gate.touch()
            assert await client.answer(asks, question, "approve")
            assert await crew.over(client, asks, runs) == ["completed", "completed"]
        await client.submit(waits, plan=READ)
        await _forget(temporal, waits)
        async with crew.worker():
            assert await crew.over(client, waits) == ["completed"]
    assert [line.split()[0] for line in crew.notes()].count("fill") == 1
    assert [line.split()[0] for line in crew.notes()].count("opened") == 1


@pytest.mark.skipif(not LONG, reason="takes long (LONG_TESTS=1)")
@pytest.mark.parametrize("alone", [True, False], ids=["temporal", "both"])
async def test_temporal_outage_is_survived(
    crew: Crew, temporal_server: Server, server: Database, alone: bool
) -> None:
    runs, later = crew.named("r"), crew.named("l")
    async with crew.client() as client, crew.worker():
        await client.submit(runs, plan=FILL)
        await crew.until(lambda: any(line.startswith("fill") for line in crew.notes()))
        temporal_server.stop()
        asked = asyncio.create_task(client.submit(later, plan=READ))
        await asyncio.sleep(1)
        if not alone:
            server.stop()
        try:
            await asyncio.sleep(30)
            crew.gate.touch()
        finally:
            if not alone:
                server.start()
            temporal_server.start()
        await asked
        assert await crew.over(client, runs, later) == ["completed", "completed"]
    assert [line.split()[0] for line in crew.notes()].count("fill") == 1


@pytest.mark.skipif(not LONG, reason="takes long (LONG_TESTS=1)")
async def test_unavailable_server_prints_nothing_on_stdout(
    crew: Crew, temporal_server: Server
) -> None:
    with crew:
        worker = crew.start()
        async with crew.client() as client:
            await client.submit(crew.named("t"), plan=FILL)
        await crew.until(lambda: any(line.startswith("fill") for line in crew.notes()))
        temporal_server.stop()
        try:
            await crew.until(lambda: "retried" in crew.errors())
        finally:
            temporal_server.start()
        crew.gate.touch()
        assert crew.end(worker) == 143
        assert worker.stdout is not None
        assert worker.stdout.read() == ""


async def test_unavailable_engine_is_distinguished(crew: Crew) -> None:
    crew.temporal = "127.0.0.1:9"
    with pytest.raises(PersistenceError, match=r"'127\.0\.0\.1:9' is unavailable: Conn"):
        async with crew.client():
            pass


async def test_thread_id_rejected_by_temporal_is_refused(crew: Crew) -> None:
    thread = crew.named("long" * 1000)
    async with crew.client() as client:
        with pytest.raises(ValidationError, match="Temporal rejected the request"):
            await client.submit(thread, plan=READ)
        assert not await client.log.open_runs(thread)


def test_missing_engine_extra_names_the_package() -> None:
    program = """
import sys
sys.modules["temporalio"] = None
import asyncio
from capgraph import build_graph
from capgraph.scale import open_engine

async def main():
    async with open_engine("postgresql://localhost/x", graph=build_graph([]), engine="temporal"):
        pass

try:
    asyncio.run(main())
except ImportError as exc:
    print(exc)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert "pip install 'capgraph[temporal]'" in done.stdout, done.stderr
