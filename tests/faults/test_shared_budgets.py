"""Budgets and usage that processes share by PostgreSQL, and what a killed process leaves of them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from capgraph import BaseCapability, CapabilityContext, build_graph, capability_node
from capgraph.governance import Budget, BudgetExceededError
from capgraph.helpers.clock import SystemClock
from capgraph.stores import Persistence, open_saver
from capgraph.stores.atomic_values import TableValues
from capgraph.telemetry import ModelPricing, PriceTable
from capgraph.telemetry.usage_recorder import average_capability_usage, usage_totals
from capgraph.testing import ScriptedModel
from tests.support.redis_server import redis_server
from tests.support.sweeps import SEED, examples

pytestmark = [pytest.mark.may_block, pytest.mark.timeout(900), pytest.mark.sampled(0.34)]
_SERVER = pytest.param("postgresql", marks=pytest.mark.service)


@pytest.fixture(params=["sqlite", _SERVER])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shared.db"
    found: str = request.getfixturevalue("server").database()
    return found


def _spend(url: str, calls: int, results: Any) -> None:
    async def one(budget: Budget) -> int:
        try:
            call = await budget.reserve("all", requests=1, tokens=10)
        except BudgetExceededError:
            return 0
        await call.settle(requests=1, tokens=7)
        return 1

    async def main() -> int:
        budget = Budget(requests=120, tokens=1000, per="tenant", store=url)
        return sum(await asyncio.gather(*(one(budget) for _ in range(calls))))

    results.put(asyncio.run(main()))


@pytest.fixture(params=["sqlite", _SERVER, pytest.param("redis", marks=pytest.mark.service)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "redis":
        with redis_server() as url:
            yield url
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/shared.db"
    else:
        yield request.getfixturevalue("server").database()


def _die(url: str) -> None:
    asyncio.run(Budget(steps=2, per="user", store=url).reserve("ann", steps=2, resume_key="one"))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.row("T13")
async def test_what_a_killed_process_had_reserved_comes_back_whatever_it_was_for(url: str) -> None:
    worker = multiprocessing.get_context("spawn").Process(target=_die, args=(url,))
    worker.start()
    worker.join()
    budget = Budget(steps=2, per="user", store=url)
    assert await budget.remaining("ann") == {"steps": 0}
    await budget.reserve("ann", steps=1, resume_key="two")
    other = Budget(steps=2, per="user", store=url)
    await other.reserve("ann", steps=1, resume_key="three")
    with pytest.raises(BudgetExceededError):  # of those that live nothing is taken
        await other.reserve("ann", steps=1, resume_key="four")


@pytest.mark.row("T30")
def test_200_calls_in_four_processes_are_never_over(store: str) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [context.Process(target=_spend, args=(store, 50, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    made = sum(results.get(timeout=200) for _ in workers)
    for worker in workers:
        worker.join()
    assert 0 < made <= 120
    left = asyncio.run(
        Budget(requests=120, tokens=1000, per="tenant", store=store).remaining("all")
    )
    assert left == {"requests": 120 - made, "tokens": 1000 - 7 * made}


class Part(CapabilityContext):
    text: str


@capability_node
class Write(BaseCapability):
    name = "write"
    description = "Writes a part"
    provides = [Part]

    async def execute(self) -> Part:
        text = ""
        for _ in range(2):
            text += str((await self.chat_model().ainvoke("Write on.")).text)
            await asyncio.sleep(0.01)
        return Part(text=text)


STEPS = 5
PLAN = {"steps": [{"context_key": f"k{n}", "capability": "write"} for n in range(STEPS)]}
CONFIG: Any = {"configurable": {"thread_id": "t", "user_id": "ada"}}


def _answer(call: Any) -> AIMessage:
    used: Any = {"input_tokens": 5, "output_tokens": 5, "total_tokens": 10}
    return AIMessage("word", usage_metadata=used, response_metadata={"model_name": "m"})


def _run(url: str) -> None:
    async def main() -> None:
        async with open_saver(url) as saver:
            graph = build_graph(
                [Write],
                model={"capability": ScriptedModel(responses=_answer, model_name="m")},
                checkpointer=saver,
                budget=Budget(steps=STEPS, per="thread"),
                prices=PriceTable({"m": ModelPricing(1, 1)}),
            )
            state = await graph.aget_state(CONFIG)
            given: Any = {"messages": [("user", "Write")], "planning_execution_plan": PLAN}
            begun = state.values.get("messages")
            if not begun or state.next:
                await graph.ainvoke(None if begun else given, CONFIG)
            assert graph.services is not None
            await asyncio.to_thread(graph.services.budget_policy.recorder.flush)

    asyncio.run(main())


async def _found(url: str) -> tuple[Any, Any, Any]:
    async with open_saver(url) as saver:
        rows = Persistence.of(saver).tables
        assert rows is not None
        await rows.run("SELECT 1")
        counted, _ = await TableValues(rows).aread("budget/", SystemClock())
        history = await average_capability_usage(rows, ["write", "other"])
        return counted, await usage_totals(rows, user_id="ada"), history


def test_a_run_that_is_killed_again_and_again_counts_its_steps_once(url: str) -> None:
    """The budget holds exactly the steps: one that counted twice would end the run."""
    chance = random.Random(SEED)
    context = multiprocessing.get_context("spawn")
    for _ in range(examples(2)):
        worker = context.Process(target=_run, args=(url,))
        worker.start()
        worker.join(timeout=chance.uniform(1.5, 4.0))
        if worker.is_alive() and worker.pid is not None:
            os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    last = context.Process(target=_run, args=(url,))
    last.start()
    last.join()
    assert last.exitcode == 0
    counted, totals, history = asyncio.run(_found(url))
    ((used, held),) = counted.values()
    assert (used["steps"], held) == (STEPS, {})
    calls, tokens, cost = history["write"]
    assert totals[0].calls >= calls > 0
    assert (tokens, cost) == (10 * calls, pytest.approx(10 * calls / 1e6))
