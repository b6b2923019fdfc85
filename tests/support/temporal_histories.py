"""Records what Temporal keeps of a thread and of a schedule, for the test that replays it.

``python -m tests.support.temporal_histories`` writes ``tests/unit/scale/histories``. A history that
is there stays when the workflow changes: workers of the new version have to go on with it.
"""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from temporalio.client import Client, ScheduleBackfill

from capgraph.scale.jobs import TurnJob
from capgraph.scale.temporal import TemporalEngine
from tests.support.scripted_orders import LEASE_SECONDS, Scripted
from tests.support.temporal_server import temporal

FOLDER = Path(__file__).parents[1] / "unit" / "scale" / "histories"


async def _main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with temporal() as server:
        engine = await TemporalEngine.open(server.address, lease_seconds=LEASE_SECONDS)
        client = await Client.connect(server.address)
        worker = Scripted("w", print)
        work = asyncio.create_task(
            engine.serve(
                worker,
                ["turns"],
                worker_id="w",
                concurrency=4,
                draining=worker.draining,
                ready=asyncio.Event(),
            )
        )
        await engine.submit(TurnJob("recorded", "hold"))
        for run in ("r2", "fail3", "r2"):
            await engine.submit(TurnJob("recorded", run))
        worker.go.set()
        await _keep(client, "thread", "capgraph/recorded")
        await engine.schedule("daily", "30 7 * * *")
        moment, minute = datetime(2026, 3, 4, 7, 30, tzinfo=UTC), timedelta(minutes=1)
        await client.get_schedule_handle("capgraph/daily").backfill(
            ScheduleBackfill(moment - minute, moment + minute)
        )
        while not worker.moments:
            await asyncio.sleep(0.1)
        await _keep(client, "schedule", f"capgraph/schedule/daily-{moment:%Y-%m-%dT%H:%M:%SZ}")
        worker.draining.set()
        await work


async def _keep(client: Client, name: str, workflow: str) -> None:
    handle = client.get_workflow_handle(workflow)
    await handle.result()
    history = json.dumps((await handle.fetch_history()).to_json_dict(), indent=1, sort_keys=True)
    # Who recorded it, and where, is no part of it.
    history = re.sub(r'"identity": "[^"]*"', '"identity": "w"', history)
    history = re.sub(r'"stackTrace": "(\\.|[^"\\])*"', '"stackTrace": ""', history)
    (FOLDER / f"{name}.json").write_text(history + "\n")


if __name__ == "__main__":
    asyncio.run(_main())
