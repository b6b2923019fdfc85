"""Breakers and rate limits that processes share by PostgreSQL or Redis."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest

from capgraph import build_graph, capability_node
from capgraph.base.ports import Attempt
from capgraph.behaviors import (
    AsyncCircuitBreaker,
    CircuitBreaker,
    CircuitBreakerBehavior,
    CircuitOpenError,
    RateLimitBehavior,
    RateLimiter,
)
from capgraph.stores import open_saver
from tests.support.redis_server import redis_server
from tests.unit.behaviors.test_rate_limit import ManualClock

pytestmark = [pytest.mark.service, pytest.mark.sampled(0.5)]


@pytest.fixture(params=["postgres", "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "postgres":
        yield request.getfixturevalue("server").database()
        return
    with redis_server() as url:
        yield url


def _some(url: str, results: Any, together: Any) -> None:
    async def run() -> list[bool]:
        # So slow that nothing comes back while the test runs.
        limiter = RateLimiter(rpm=0.001, burst=40, store=url)
        together.wait(120)
        return await asyncio.gather(*(limiter.try_acquire("k") for _ in range(50)))

    results.put(sum(asyncio.run(run())))


def test_200_calls_in_four_processes_are_never_over(store: str) -> None:
    context = multiprocessing.get_context("spawn")
    results, together = context.Queue(), context.Barrier(4)
    workers = [context.Process(target=_some, args=(store, results, together)) for _ in range(4)]
    for worker in workers:
        worker.start()
    granted = [results.get(timeout=200) for _ in workers]
    for worker in workers:
        worker.join()
    assert sum(granted) == 40


async def test_a_breaker_is_one_for_all(store: str) -> None:
    one = AsyncCircuitBreaker("mail", 1, 1000, store=store)
    await one.record_failure()
    assert await AsyncCircuitBreaker("mail", 1, 1000, store=store).is_open()
    other = await asyncio.to_thread(CircuitBreaker("mail", 1, 1000, store=store).is_open)
    assert other
    await one.reset()
    assert await one.state() == "closed"


async def test_what_is_out_of_reach_is_read_from_the_store(store: str) -> None:
    breaker = CircuitBreakerBehavior(failure_threshold=1, recovery_timeout=1000, store=store)

    async def fail(_: Attempt) -> None:
        raise OSError("down")

    with pytest.raises(OSError):
        await breaker.wrap_step(Attempt("plan", kind="model"), fail)
    with pytest.raises(CircuitOpenError):
        await breaker.wrap_step(Attempt("plan", kind="model"), fail)
    assert list(await breaker.unavailable_capabilities(["model plan", "other"])) == ["model plan"]


async def test_a_wait_that_is_given_up_frees_its_place(store: str) -> None:
    clock = ManualClock()
    limiter = RateLimiter(rpm=60, burst=1, store=store, clock=clock)
    await limiter.acquire("k")
    waiting = asyncio.create_task(limiter.acquire("k"))
    while not clock.slept:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    clock.seconds += 1
    assert await limiter.try_acquire("k")


async def test_they_lie_in_the_database_of_the_saver(server: Any) -> None:
    url = server.database()
    calls: list[int] = []

    @capability_node
    async def read() -> dict[str, Any]:
        """Read how full the tank is."""
        calls.append(1)
        raise RuntimeError("broken")

    async def turn(saver: Any, thread: str) -> str:
        items = [
            CircuitBreakerBehavior(failure_threshold=1, recovery_timeout=1000, store="saver"),
            RateLimitBehavior(calls_per_second=100, store="saver"),
        ]
        graph = build_graph([read], behaviors=items, checkpointer=saver)
        plan = {"steps": [{"context_key": "k", "capability": "read"}]}
        given: Any = {"messages": [("user", "How full?")], "planning_execution_plan": plan}
        out = await graph.ainvoke(given, {"configurable": {"thread_id": thread}})
        return str(out["messages"][-1].content)

    async with open_saver(url) as one, open_saver(url) as two:
        assert "broken" in await turn(one, "1")
        assert "unavailable until" in await turn(two, "2")
    assert len(calls) == 1
