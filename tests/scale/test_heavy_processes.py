"""Workers of turns that are frozen past their lease, and turns that leave a lot behind."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from capgraph.stores import Persistence
from tests.scale.crew import FILL, LEASE, READ, Crew, step
from tests.support.sweeps import LONG

pytestmark = [pytest.mark.may_block, pytest.mark.service, pytest.mark.timeout(600)]

SEAL = {
    "steps": [
        *FILL["steps"],
        {"context_key": "s", "capability": "seal_tank", "inputs": [{"FILLED": "f"}]},
    ]
}


@pytest.mark.parametrize("machine", ["", "another"])
async def test_frozen_worker_loses_its_turn_and_starts_no_effect(crew: Crew, machine: str) -> None:
    if machine and not LONG:
        pytest.skip("LONG_TESTS=1 tries one machine and two")
    frozen = crew.start(CAPGRAPH_MACHINE=machine)
    async with crew.client() as client:
        thread = crew.named("t")
        await client.submit(thread, plan=SEAL)
        await crew.until(lambda: f"fill {frozen.pid}" in crew.notes())
        frozen.send_signal(signal.SIGSTOP)
        other = crew.start()
        await crew.until(lambda: f"fill {other.pid}" in crew.notes())
        crew.gate.touch()
        assert await crew.over(client, thread) == ["completed"]
        values = await _values(client, thread)
        frozen.send_signal(signal.SIGCONT)
        await crew.until(lambda: crew.notes().count("filled") == 2)
        await asyncio.sleep(LEASE / 2)
        sealed = [line for line in crew.notes() if line.startswith("sealed")]
        assert sealed == [f"sealed {other.pid}"]
        assert await _values(client, thread) == values
        # What was frozen works on.
        assert crew.end(other) == 143
        await client.submit(crew.named("o"), plan=READ)
        assert await crew.over(client, crew.named("o")) == ["completed"]


async def _values(client: Any, thread: str) -> Any:
    found = await client.graph.aget_state({"configurable": {"thread_id": thread}})
    return found.values


async def test_high_load_loses_no_job(crew: Crew) -> None:
    """A hundred megabytes in the long form."""
    frames, films = (10_000_000, 10) if LONG else (200_000, 4)
    steps = [step(f"m{number}", "film_tank") for number in range(films)]
    for one in steps:
        one["parameters"] = {"frames": frames}
    async with crew.client() as client:
        thread = crew.named("t")
        await client.submit(thread, plan={"steps": steps})
        if crew.engine == "postgres":
            rows = Persistence.of(client.graph.checkpointer).tables
            assert rows is not None
            _, jobs = await rows.run("SELECT octet_length(j::text) FROM procrastinate_jobs j")
            assert len(jobs) == 1
            assert jobs[0][0] < 1000
        crew.start()
        assert await crew.over(client, thread) == ["completed"]
        values = await _values(client, thread)
        found = values["capability_context_data"]["FILM"]
        assert [len(found[f"m{number}"]["frames"]) for number in range(films)] == [frames] * films
