"""Workers of a step, or of its turn, are killed, or frozen past a lease, at every instant of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

from capgraph import build_graph
from capgraph.scale import Client, open_engine
from capgraph.stores import Persistence
from tests.scale import step_worker
from tests.scale.step_worker import INSTANTS, TTL, TURNS_INSTANTS, capabilities, notes
from tests.support.remote_steps import plan, thread, until
from tests.support.sweeps import LONG, sample

ROOT = Path(__file__).parents[2]
ENGINES = ["postgres", "temporal"]
PLACES = [*product(["gpu"], INSTANTS), *product(["turns"], TURNS_INSTANTS)]
KILLS = list(product(ENGINES, ["once", "none", "idempotent"], PLACES)) * (7 if LONG else 1)
FREEZES = list(
    product(
        ENGINES,
        [
            *product(["gpu"], ["begin<", "begin>", "claim>", "effect<", "effect>", "result<"]),
            *product(["turns"], ["open<", "open>", "read>"]),
        ],
    )
)
STEPS = (("f", "grab"), ("m", "segment", {"inputs": [{"FRAME": "f"}]}))
_numbers = count()

pytestmark = [pytest.mark.service, pytest.mark.may_block, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def nursery() -> Iterator[subprocess.Popen[str]]:
    """The process of which workers are forked."""
    command = [sys.executable, "-m", "tests.scale.step_worker"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        yield process
        process.stdin.close()


@dataclass
class Scene:
    """What asks for a turn, and what starts workers of a queue."""

    client: Client
    start: Callable[..., int]

    async def ended(self, name: str) -> Any:
        """Wait for a thread, and answer as somebody does who looks whether the effect happened."""
        while True:
            await asyncio.sleep(0.05)
            found = await self.client.status(name)
            if found.status in ("queued", "running", "unfinished"):
                continue
            for question in found.questions:
                said: Any = "rerun"
                if notes("acted"):
                    said = {"decision": "done", "outputs": {"MASK": {"of": 7}}}
                await self.client.answer(name, question, {"m": said})
            if not found.questions:
                return (await self.client.graph.aget_state(thread(name))).values


@pytest.fixture
def make(
    request: pytest.FixtureRequest,
    server: Any,
    nursery: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    pids: list[int] = []

    @asynccontextmanager
    async def made(engine: str, effect: str) -> AsyncIterator[Scene]:
        url = server.database()
        where = request.getfixturevalue("temporal_server").address if engine == "temporal" else ""
        monkeypatch.setattr(step_worker, "LOG", tmp_path / "log")

        def start(queue: str, instant: str = "", how: str = "") -> int:
            said = {"url": url, "engine": engine, "address": where, "effect": effect}
            said |= {"log": str(tmp_path / "log"), "machine": f"m{next(_numbers)}"}
            said |= {"queue": queue, "instant": instant, "how": how}
            nursery.stdin.write(json.dumps(said) + "\n")
            nursery.stdin.flush()
            pids.append(int(nursery.stdout.readline()))
            return pids[-1]

        graph = build_graph(capabilities(effect), settings=step_worker.settings())
        options = {"engine": engine, "temporal": where}
        async with open_engine(url, graph=graph, **options) as client:
            yield Scene(client, start)

    yield made
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _is_reached(effect: str, instant: str) -> bool:
    """Tell whether a step passes an instant: only what acts once has a record of its end."""
    if effect == "once":
        return True
    return instant[:-1] not in ("effect", "written") and (effect, instant) != ("none", "claim>")


@pytest.mark.parametrize(("engine", "effect", "place"), sample(KILLS, 2))
async def test_killed_worker_repeats_no_step_and_no_effect(
    make: Any, engine: str, effect: str, place: tuple[str, str]
) -> None:
    queue, instant = place
    other = {"gpu": "turns", "turns": "gpu"}[queue]
    async with make(engine, effect) as scene, asyncio.timeout(200):
        scene.start(queue, instant, "SIGKILL")
        scene.start(other)
        name = f"t{next(_numbers)}"
        await scene.client.submit(name, plan=plan(*STEPS)["planning_execution_plan"])
        if _is_reached(effect, instant):
            await until(lambda: notes("SIGKILL"), 60)
        scene.start(queue)
        state = await scene.ended(name)
        assert state["capability_context_data"]["MASK"] == {"m": {"of": 7}}
        assert state["execution_outcome"]["status"] == "completed"
        if effect == "once" or queue == "turns" or instant in ("result>", "release<"):
            assert len(notes("acted")) == 1


@pytest.mark.parametrize(("engine", "place"), sample(FREEZES, 1))
async def test_frozen_worker_repeats_no_effect(
    make: Any, engine: str, place: tuple[str, str]
) -> None:
    queue, instant = place
    other = {"gpu": "turns", "turns": "gpu"}[queue]
    async with make(engine, "once") as scene, asyncio.timeout(200):
        frozen = scene.start(queue, instant, "SIGSTOP")
        scene.start(other)
        name = f"t{next(_numbers)}"
        await scene.client.submit(name, plan=plan(*STEPS)["planning_execution_plan"])
        await until(lambda: notes("SIGSTOP"), 60)
        scene.start(queue)
        state = await scene.ended(name)
        os.kill(frozen, signal.SIGCONT)
        await asyncio.sleep(TTL)
        assert state["execution_outcome"]["status"] == "completed"
        assert len(notes("acted")) == 1


@pytest.mark.parametrize("engine", sample(ENGINES, 1))
async def test_step_finishes_without_router_and_engine_data(make: Any, engine: str) -> None:
    async with make(engine, "once") as scene, asyncio.timeout(200):
        scene.start("turns", "order>", "SIGKILL")
        name = f"t{next(_numbers)}"
        await scene.client.submit(name, plan=plan(*STEPS)["planning_execution_plan"])
        await until(lambda: notes("SIGKILL"), 60)
        scene.start("gpu")
        rows = Persistence.of(scene.client.graph.checkpointer).tables
        assert rows is not None
        while not (await rows.run("SELECT 1 FROM capgraph_steps WHERE ended > 0"))[1]:
            await asyncio.sleep(0.05)
        await (_forget_at_temporal(scene, name) if engine == "temporal" else _forget_jobs(rows))
        scene.start("turns")
        state = await scene.ended(name)
        assert state["capability_context_data"]["MASK"] == {"m": {"of": 7}}
        assert state["execution_outcome"]["status"] == "completed"
        assert len(notes("acted")) == 1


async def _forget_jobs(rows: Any) -> None:
    await rows.run("TRUNCATE procrastinate_jobs CASCADE")


async def _forget_at_temporal(scene: Scene, name: str) -> None:
    from temporalio.api.common.v1 import WorkflowExecution
    from temporalio.api.workflowservice.v1 import (
        DeleteActivityExecutionRequest,
        DeleteWorkflowExecutionRequest,
    )

    engine: Any = scene.client.engine
    service, where = engine._client.workflow_service, {"namespace": "default"}
    turn = WorkflowExecution(workflow_id=f"capgraph/{name}")
    await service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(**where, workflow_execution=turn)
    )
    rows: Any = Persistence.of(scene.client.graph.checkpointer).tables
    for (step,) in (await rows.run("SELECT step_id FROM capgraph_steps"))[1]:
        await service.delete_activity_execution(
            DeleteActivityExecutionRequest(**where, activity_id=engine._id_prefix + step)
        )


@pytest.mark.parametrize("engine", sample(ENGINES, 1))
async def test_stop_reaches_a_remote_step(make: Any, engine: str) -> None:
    async with make(engine, "none") as scene, asyncio.timeout(100):
        scene.start("gpu", "work<", "hang")
        scene.start("turns")
        name = f"t{next(_numbers)}"
        await scene.client.submit(name, plan=plan(*STEPS)["planning_execution_plan"])
        await until(lambda: notes("hang"), 60)
        await scene.client.stop(name)
        await until(lambda: notes("let go"), 60)
        while (await scene.client.status(name)).status != "stopped":
            await asyncio.sleep(0.05)
        assert notes("acted") == []
