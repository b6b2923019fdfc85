"""Breakers and rate limits that processes share by PostgreSQL."""

from __future__ import annotations

import asyncio
import multiprocessing
from typing import Any

import pytest

from framework import build_graph, capability_node
from framework.behaviors import (
    AsyncCircuitBreaker,
    CircuitBreaker,
    CircuitBreakerBehavior,
    RateLimitBehavior,
    RateLimiter,
)
from framework.stores import open_saver

pytestmark = pytest.mark.service


def _some(url: str, results: Any) -> None:
    async def run() -> list[bool]:
        # So slow that nothing comes back while the test runs.
        limiter = RateLimiter(rpm=0.001, burst=40, store=url)
        return await asyncio.gather(*(limiter.try_acquire("k") for _ in range(50)))

    results.put(sum(asyncio.run(run())))


def test_200_calls_in_four_processes_are_never_over(server: Any) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    url = server.database()
    workers = [context.Process(target=_some, args=(url, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    granted = [results.get(timeout=200) for _ in workers]
    for worker in workers:
        worker.join()
    assert sum(granted) == 40


async def test_a_breaker_is_one_for_all(server: Any) -> None:
    url = server.database()
    one = AsyncCircuitBreaker("mail", 1, 1000, store=url)
    await one.record_failure()
    assert await AsyncCircuitBreaker("mail", 1, 1000, store=url).is_open()
    other = await asyncio.to_thread(CircuitBreaker("mail", 1, 1000, store=url).is_open)
    assert other
    await one.reset()
    assert await one.state() == "closed"


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
        assert "out of reach until" in await turn(two, "2")
    assert len(calls) == 1
