"""A process that is frozen past its lease, and one that only blocks its event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from capgraph import BaseCapability, CapabilityContext, build_graph, capability_node
from capgraph.base.errors import PersistenceError, ThreadBusyError
from capgraph.configs.settings import load_settings
from capgraph.stores import Persistence, open_saver
from capgraph.stores.database import parse_url
from tests.faults import scene
from tests.faults.databases import sqlite_url
from tests.support.sweeps import LONG

ROOT = Path(__file__).parents[2]
TTL = 1.5
CONFIG: dict[str, Any] = {"configurable": {"thread_id": "t"}}

pytestmark = [pytest.mark.may_block, pytest.mark.timeout(600)]


class Slip(CapabilityContext):
    by: int


@capability_node
class Before(BaseCapability):
    """Stands in the middle of a turn until it may go on."""

    name = "before"
    description = "Before"
    provides = ["SLIP"]

    async def execute(self) -> Slip:
        scene.append("before", str(os.getpid()))
        while not scene.lines("go"):
            await asyncio.sleep(0.01)
        return Slip(by=os.getpid())


@capability_node
class Block(BaseCapability):
    """Does not let the event loop go for three leases."""

    name = "block"
    description = "Block"
    provides = ["SLIP"]

    async def execute(self) -> Slip:
        import time

        scene.append("before", str(os.getpid()))
        end = time.monotonic() + 3 * TTL
        while time.monotonic() < end:
            time.sleep(0.01)  # what a careless capability does
        return Slip(by=os.getpid())


class _Act(BaseCapability):
    requires = ["SLIP"]

    async def execute(self) -> dict[str, Any]:
        scene.append("acted", f"{self.name} {os.getpid()}")
        return {}


@capability_node
class Once(_Act):
    """Acts once."""

    name = "once"
    description = "Once"
    effect = "once"


@capability_node
class Keyed(_Act):
    """Acts on what knows its keys."""

    name = "keyed"
    description = "Keyed"
    effect = "idempotent"


@capability_node
class Part(_Act):
    """Acts in a part of it."""

    name = "part"
    description = "Part"

    async def execute(self) -> dict[str, Any]:
        await self.once("part", super().execute)
        return {}


def make_graph(saver: Any) -> Any:
    """Build the agent that both sides run."""
    settings = load_settings(scale={"lease_seconds": TTL})
    capabilities = [Slip, Before, Block, Once, Keyed, Part]
    return build_graph(capabilities, checkpointer=saver, settings=settings)


def given(first: str) -> dict[str, Any]:
    """Return a turn that acts after its first step."""

    def step(key: str) -> dict[str, Any]:
        slip = [] if key == first else [{"SLIP": first}]
        return {"context_key": key, "capability": key, "inputs": slip}

    plan = {"steps": [step(key) for key in (first, "once", "keyed", "part")]}
    return {"messages": [("user", "Act")], "planning_execution_plan": plan}


async def run(url: str, first: str) -> None:
    """Run the turn in a process of its own."""
    async with open_saver(url) as saver:
        await make_graph(saver).ainvoke(given(first), CONFIG)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.service)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "threads.db")
    made: str = request.getfixturevalue("server").database()
    return made


def start(url: str, folder: Path, first: str, machine: str) -> subprocess.Popen[bytes]:
    program = (
        "import asyncio, sys; from pathlib import Path; from tests.faults import scene, test_frozen;"
        " scene.FOLDER = Path(sys.argv[2]); asyncio.run(test_frozen.run(sys.argv[1], sys.argv[3]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CAPGRAPH_MACHINE": machine}
    command = [sys.executable, "-c", program, url, str(folder), first]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)


async def inside(process: subprocess.Popen[bytes], folder: Path) -> None:
    while not scene.lines("before"):
        assert process.poll() is None, (folder / "log").read_text()
        await asyncio.sleep(0.02)


async def freeze(process: subprocess.Popen[bytes], url: str) -> None:
    """Stop a process outside of its commits: a SQLite file stays locked by one that is in the middle."""
    while True:
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.05)
        if not url.startswith("sqlite"):
            return
        path = parse_url(url).target
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as probe:
            try:
                probe.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError:
                process.send_signal(signal.SIGCONT)
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("machine", ["", "another"])
async def test_who_is_frozen_past_the_lease_has_lost_it_and_begins_no_effect(
    url: str, tmp_path: Path, machine: str
) -> None:
    if not LONG and url.startswith("sqlite") == bool(machine):
        pytest.skip("LONG_TESTS=1 tries both databases on one machine and on two")
    process = start(url, tmp_path, "before", machine)
    try:
        await inside(process, tmp_path)
        await freeze(process, url)
        scene.append("go", "now")
        async with open_saver(url) as saver:
            graph = make_graph(saver)
            while True:
                try:
                    out = await graph.ainvoke(None, CONFIG)
                    break
                except ThreadBusyError:
                    await asyncio.sleep(0.1)
            assert out["execution_outcome"]["status"] == "completed"
            process.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(process.wait) == 1
            assert "Another process has taken over" in (tmp_path / "log").read_text()
            assert (await graph.aget_state(CONFIG)).values == out, "nothing was written over it"
    finally:
        process.kill()
        process.wait()
    mine = os.getpid()
    assert sorted(scene.lines("acted")) == [f"{n} {mine}" for n in ("keyed", "once", "part")]


async def test_who_blocks_its_loop_keeps_its_lease(url: str, tmp_path: Path) -> None:
    process, asked = start(url, tmp_path, "block", "another"), 0
    try:
        await inside(process, tmp_path)
        async with open_saver(url) as saver:
            leases = Persistence.of(saver).leases
            make_graph(saver)
            while not scene.lines("acted"):
                try:
                    lease = await leases.acquire("t")
                except ThreadBusyError:
                    asked += 1
                    await asyncio.sleep(0.1)
                else:  # the process may have finished since its last line was read
                    assert len(scene.lines("acted")) == 3, "the blocked process lost its lease"
                    await leases.release(lease)
        assert await asyncio.to_thread(process.wait) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()
    assert asked > 5
    assert len(scene.lines("acted")) == 3


async def test_who_slept_past_the_lease_keeps_what_nobody_took(url: str) -> None:
    """A laptop that is opened again goes on with its own run."""
    async with open_saver(url) as saver, open_saver(url) as other:
        leases = _asleep(saver)
        lease = await leases.acquire("t")
        await asyncio.sleep(0.4)
        before = lease.confirmed_at
        await leases.confirm("t", force_query=False)
        assert lease.confirmed_at > before, "it was asked for"
        now = lease.confirmed_at
        await leases.confirm("t", force_query=False)
        assert lease.confirmed_at == now, "and is known for as long as it lasts"
        await asyncio.sleep(0.4)
        await _elsewhere(other).acquire("t")
        with pytest.raises(PersistenceError, match="has taken over"):
            await leases.confirm("t", force_query=True)


async def _left_alone(leases: Any, taker: Any, thread: str) -> None:
    """Have a late holder beat again while another process looks at its lease."""
    asking = asyncio.create_task(taker.acquire(thread))
    await asyncio.sleep(0.3)
    while not asking.done():
        await leases.confirm(thread)
        await asyncio.sleep(0.05)
    with pytest.raises(ThreadBusyError):
        await asking


async def test_whoever_is_late_and_beats_again_is_left_alone(url: str) -> None:
    async with open_saver(url) as saver, open_saver(url) as other:
        leases = _asleep(saver)
        await leases.acquire("t")
        await asyncio.sleep(0.4)
        await _left_alone(leases, _elsewhere(other, beat=0.6), "t")


async def test_what_a_silent_process_held_is_taken_after_one_look(url: str) -> None:
    """A machine that is gone may have held hundreds of threads."""
    async with open_saver(url) as saver, open_saver(url) as other:
        leases = _asleep(saver)
        for name in "abcdefgh":
            await leases.acquire(name)
        await asyncio.sleep(0.4)
        taker = _elsewhere(other, beat=1.0)
        await taker.acquire("a")
        taker.heartbeat_seconds = 3600.0  # another look would take for ever
        async with asyncio.timeout(60):
            for name in "bcdefgh":
                await taker.acquire(name)


async def test_whoever_was_silent_once_and_beats_by_a_clock_that_was_set_back_is_left_alone(
    url: str,
) -> None:
    async with open_saver(url) as saver, open_saver(url) as other:
        leases = _asleep(saver)
        for name in "ab":
            await leases.acquire(name)
        await asyncio.sleep(0.4)
        taker = _elsewhere(other, beat=0.6)
        await taker.acquire("a")
        await Persistence.of(saver).tables.run(
            "UPDATE capgraph_leases SET beat = beat - 1000 WHERE thread_id = ?", ("b",)
        )
        await _left_alone(leases, taker, "b")


async def test_locks_of_a_process_frozen_in_a_pipeline_go_with_its_lease(url: str) -> None:
    if url.startswith("sqlite"):
        pytest.skip("it has no pipelines")
    config = {"configurable": {**CONFIG["configurable"], "checkpoint_ns": "", "checkpoint_id": "1"}}
    saver: Any
    async with open_saver(url) as saver, open_saver(url) as other:
        assert other is not None
        await _asleep(saver).acquire("t")
        async with saver.conn.connection() as frozen:
            pipeline = frozen.pipeline()
            await pipeline.__aenter__()
            await frozen.execute(
                "INSERT INTO checkpoint_writes (thread_id, checkpoint_id, task_id, idx, channel,"
                " blob) VALUES ('t', '1', 'task', 0, 'x', '')"
            )
            frozen.pgconn.send_flush_request()
            frozen.pgconn.flush()
            await asyncio.sleep(0.4)
            await _elsewhere(other).acquire("t")
            async with asyncio.timeout(60):
                await other.aput_writes(config, [("x", 2)], "task")
            with pytest.raises(psycopg.OperationalError):
                await pipeline.__aexit__(None, None, None)


def _asleep(saver: Any) -> Any:
    leases = Persistence.of(saver).leases
    leases.ttl_seconds, leases.heartbeat_seconds = 0.3, 0.1
    leases._start_heartbeats = lambda: None  # type: ignore[method-assign]
    return leases


def _elsewhere(saver: Any, beat: float = 0.1) -> Any:
    leases = _asleep(saver)
    leases.heartbeat_seconds = beat

    async def identity() -> tuple[str, str]:
        return "elsewhere", "1"

    leases.identity = identity  # type: ignore[method-assign]
    return leases
