"""The worker of a step is killed, or frozen past its lease, at every instant of the step."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Command

from framework import build_graph
from framework.scale.remote import Steps
from framework.stores import open_saver
from tests.faults.databases import postgres
from tests.scale import step_worker
from tests.scale.step_worker import INSTANTS, TTL, capabilities, notes, open_engine
from tests.support.remote_steps import plan, thread, until
from tests.support.sweeps import LONG, sample
from tests.support.temporal_server import temporal

ROOT = Path(__file__).parents[2]
ENGINES = ["postgres", "temporal"]
KILLS = list(product(ENGINES, ["once", "none", "idempotent"], INSTANTS)) * (9 if LONG else 1)
FREEZES = list(product(ENGINES, ["begin<", "begin>", "claim>", "effect<", "effect>"]))
STEPS = (("f", "grab"), ("m", "segment", {"inputs": [{"FRAME": "f"}]}))
_numbers = count()

pytestmark = [pytest.mark.service, pytest.mark.may_block, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def database() -> Iterator[Any]:
    with postgres() as started:
        yield started


@pytest.fixture(scope="module")
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with temporal() as started:
        yield started.address


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
    """A router in this process, and workers of the queue in others."""

    graph: Any
    start: Callable[..., int]


@pytest.fixture
def make(
    request: pytest.FixtureRequest,
    database: Any,
    nursery: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    pids: list[int] = []

    async def made(engine: str, effect: str) -> AsyncIterator[Scene]:
        url = database.database()
        where = request.getfixturevalue("address") if engine == "temporal" else ""
        monkeypatch.setattr(step_worker, "LOG", tmp_path / "log")

        def start(instant: str = "", how: str = "") -> int:
            said = {"url": url, "engine": engine, "address": where, "effect": effect}
            more = {"log": str(tmp_path / "log"), "machine": f"m{next(_numbers)}"}
            line = json.dumps({**said, **more, "instant": instant, "how": how})
            nursery.stdin.write(line + "\n")
            nursery.stdin.flush()
            pids.append(int(nursery.stdout.readline()))
            return pids[-1]

        async with open_saver(url) as saver:
            graph = build_graph(
                capabilities(effect), checkpointer=saver, settings=step_worker.settings()
            )
            opened = await open_engine(engine, url, where)
            Steps(graph, opened)
            yield Scene(graph, start)
            await opened.close()

    yield made
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def _ended(scene: Scene, turn: asyncio.Task[Any], name: str) -> Any:
    """Answer as somebody does who looks whether the effect happened."""
    out = await turn
    if out.get("__interrupt__"):
        said: Any = "rerun"
        if notes("acted"):
            said = {"decision": "done", "outputs": {"MASK": {"of": 7}}}
        out = await scene.graph.ainvoke(Command(resume={"m": said}), thread(name))
    return out


@pytest.mark.parametrize(("engine", "effect", "instant"), sample(KILLS, 5))
async def test_a_killed_worker_costs_no_step_and_repeats_no_effect(
    make: Any, engine: str, effect: str, instant: str
) -> None:
    async for scene in make(engine, effect):
        scene.start(instant, "SIGKILL")
        name = f"t{next(_numbers)}"
        turn = asyncio.create_task(scene.graph.ainvoke(plan(*STEPS), thread(name)))
        reached = effect == "once" or instant not in ("effect<", "effect>", "written<", "written>")
        reached = reached and not (effect == "none" and instant == "claim>")
        await until(lambda: notes("SIGKILL") or turn.done(), 60)  # noqa: B023 - awaited
        assert bool(notes("SIGKILL")) == reached
        scene.start()
        async with asyncio.timeout(120):
            out = await _ended(scene, turn, name)
        assert out["capability_context_data"]["MASK"] == {"m": {"of": 7}}
        assert out["execution_outcome"]["status"] == "completed"
        if effect == "once" or instant in ("result>", "release<"):
            assert len(notes("acted")) == 1


@pytest.mark.parametrize(("engine", "instant"), sample(FREEZES, 2))
async def test_a_worker_frozen_past_its_lease_begins_no_second_effect(
    make: Any, engine: str, instant: str
) -> None:
    async for scene in make(engine, "once"):
        frozen = scene.start(instant, "SIGSTOP")
        name = f"t{next(_numbers)}"
        turn = asyncio.create_task(scene.graph.ainvoke(plan(*STEPS), thread(name)))
        await until(lambda: notes("SIGSTOP"), 60)
        scene.start()
        async with asyncio.timeout(120):
            out = await _ended(scene, turn, name)
        os.kill(frozen, signal.SIGCONT)
        await asyncio.sleep(TTL)
        os.kill(frozen, signal.SIGTERM)
        assert out["execution_outcome"]["status"] == "completed"
        assert len(notes("acted")) == 1
