"""Steps are announced when they can run, in the plan's order, and results find their steps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import BaseCapability, capability_node
from capgraph.stores import open_saver
from tests.support.doors import Gauge, let_others_run, soon, status


class Line:
    """A capability whose steps wait for events, write down what ran and sum their inputs."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.done: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.changed = asyncio.Event()
        line = self

        @capability_node
        class Work(BaseCapability):
            name = "work"
            description = "Work"
            provides = ["GAUGE"]
            requires = [("GAUGE", "many")]

            async def execute(self) -> Gauge:
                key = self.step["context_key"]
                line.ran.append(key)
                if gate := line.gates.get(key):
                    await gate.wait()
                line.done.append(key)
                line.changed.set()
                before = "+".join(sorted(g.origin for g in self.inputs["GAUGE"]))
                return Gauge(value=len(before), origin=f"{key}({before})")

        @capability_node
        class Begin(Work):
            name = "begin"
            description = "Begin"
            requires = []

            async def execute(self) -> Gauge:
                key = self.step["context_key"]
                line.ran.append(key)
                if gate := line.gates.get(key):
                    await gate.wait()
                line.done.append(key)
                line.changed.set()
                return Gauge(value=0, origin=f"{key}()")

        self.capabilities = [Gauge, Work, Begin]

    def block(self, *keys: str) -> None:
        self.gates = {key: asyncio.Event() for key in keys}

    async def until(self, keys: set[str]) -> None:
        while not keys <= set(self.done):
            self.changed.clear()
            await soon(self.changed.wait())


def _plan(step: Any, needs: dict[str, list[str]]) -> list[dict[str, Any]]:
    return [
        step(key, "work", GAUGE=before) if before else step(key, "begin")
        for key, before in needs.items()
    ]


def _origin(key: str, needs: dict[str, list[str]]) -> str:
    """Say what a step must have been given, all the way down."""
    return f"{key}({'+'.join(sorted(_origin(n, needs) for n in needs[key]))})"


def _origins(out: dict[str, Any]) -> dict[str, str]:
    return {k: v["origin"] for k, v in out["capability_context_data"]["GAUGE"].items()}


async def test_a_ready_step_never_waits_for_an_unready_one_before_it(agent: Any, step: Any) -> None:
    """In the plan's order b stands before c; it can start only when c has run."""
    line = Line()
    line.block("a")
    needs: dict[str, list[str]] = {"a": [], "b": ["a"], "c": [], "d": ["c"], "e": ["d"]}
    it = agent(*line.capabilities, plans=[_plan(step, needs)])
    running = asyncio.ensure_future(it.ask())
    await line.until({"c", "d", "e"})
    assert "b" not in line.ran
    line.gates["a"].set()
    out = await soon(running)
    assert status(out) == "completed"
    assert _origins(out) == {key: _origin(key, needs) for key in needs}


async def test_the_far_end_of_a_chain_is_not_announced_at_once(agent: Any, step: Any) -> None:
    """800 steps one after the other; the stream names a step when it is about to run."""
    line = Line()
    line.block("s0")
    needs = {f"s{n}": [f"s{n - 1}"] if n else [] for n in range(800)}
    it = agent(*line.capabilities, plans=[_plan(step, needs)], checkpointer=InMemorySaver())
    announced: list[str] = []
    early = 0
    given = {"messages": [("user", "Do it")]}
    opened = asyncio.ensure_future(_open_when_begun(line, announced))
    # LangGraph hands parts over while a node runs only when "custom" is among the modes.
    modes = ["tasks", "custom"]
    async for part in it.graph.astream(given, it.config(), stream_mode=modes, version="v2"):
        data = part["data"]
        if part["type"] == "tasks" and data["name"] in {"work", "begin"} and "result" not in data:
            if not line.done:
                early += 1
            announced.append(data["id"])
    await opened
    assert len(announced) >= 800, "each step is announced some time"
    assert len(line.done) == 800
    assert early <= 20, f"{early} steps were announced before the first had run"


async def _open_when_begun(line: Line, announced: list[str]) -> None:
    while "s0" not in line.ran:
        await asyncio.sleep(0)
    seen = -1
    while seen != len(announced):  # until nothing more is announced
        seen = len(announced)
        await let_others_run(2000)
    line.gates["s0"].set()


async def test_independent_steps_are_all_announced(agent: Any, step: Any) -> None:
    """Lazy is not late: what can run begins at once, up to the limit."""
    line = Line()
    needs: dict[str, list[str]] = {f"s{n}": [] for n in range(8)}
    line.block(*needs)
    it = agent(*line.capabilities, plans=[_plan(step, needs)], limits={"max_parallel": 8})
    running = asyncio.ensure_future(it.ask())
    while len(line.ran) < 8:
        await soon(asyncio.sleep(0))
    for gate in line.gates.values():
        gate.set()
    assert status(await soon(running)) == "completed"


@asynccontextmanager
async def _saver(where: str, folder: Any) -> AsyncIterator[Any]:
    if where == "memory":
        yield InMemorySaver()
    else:
        async with open_saver(f"sqlite:///{folder}/threads.db") as saver:
            yield saver


async def _stopped_and_resumed(
    agent: Any, step: Any, saver: Any, needs: dict[str, list[str]], blocked: list[str]
) -> None:
    """Stop a run when all that can run has run, go on with another graph, and look at all."""
    line = Line()
    line.block(*blocked)

    def graph() -> Any:
        return agent(*line.capabilities, plans=[_plan(step, needs)], checkpointer=saver)

    held = set(blocked)
    while more := {k for k, before in needs.items() if held & set(before)} - held:
        held |= more
    finished = set(needs) - held
    running = asyncio.ensure_future(graph().ask())
    await line.until(finished)
    await let_others_run()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    before = list(line.ran)
    line.gates.clear()
    it = graph()
    out = await soon(it.graph.ainvoke(None, it.config()))
    assert status(out) == "completed"
    assert _origins(out) == {key: _origin(key, needs) for key in needs}
    again = line.ran[len(before) :]
    assert set(again) & finished == set(), "what had finished is not run again"
    assert sorted(again) == sorted(held)


@pytest.mark.may_block
@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_after_a_stop_results_go_to_their_steps(
    agent: Any, step: Any, where: str, tmp_path: Any
) -> None:
    """What ends first stands last in the plan; what stands first is not done."""
    needs: dict[str, list[str]] = {
        "a": [],
        "b": [],
        "a2": ["a"],
        "b2": ["b"],
        "c": [],
        "b3": ["b2", "c"],
        "a3": ["a2", "b2"],
        "b4": ["b3"],
    }
    async with _saver(where, tmp_path) as saver:
        await _stopped_and_resumed(agent, step, saver, needs, ["a"])


@pytest.mark.may_block
@pytest.mark.parametrize("seed", range(6))
async def test_after_a_stop_anywhere_results_go_to_their_steps(
    agent: Any, step: Any, seed: int
) -> None:
    pick = random.Random(seed)
    keys = [f"s{n}" for n in range(14)]
    needs = {
        key: sorted(pick.sample(keys[:n], pick.randint(0, min(n, 2)))) for n, key in enumerate(keys)
    }
    await _stopped_and_resumed(agent, step, InMemorySaver(), needs, pick.sample(keys, 3))


async def test_a_router_does_not_change_its_input(agent: Any, step: Any) -> None:
    line = Line()
    needs: dict[str, list[str]] = {"a": [], "b": ["a"]}
    it = agent(
        *line.capabilities,
        plans=[_plan(step, needs), _plan(step, {**needs, "c": ["b"]})],
        checkpointer=InMemorySaver(),
    )
    await it.ask()
    tasks = [
        part
        async for part in it.graph.astream(
            {"messages": [("user", "Do it")]}, it.config(), stream_mode="tasks"
        )
    ]
    [router] = [part["input"] for part in tasks if part["name"] == "router" and "input" in part]
    assert router["capability_context_data"].get("GAUGE", {}).keys() <= {"a", "b"}
