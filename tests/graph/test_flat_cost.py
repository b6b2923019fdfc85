"""What a step costs does not grow with the length of the plan it belongs to."""

from __future__ import annotations

import time

from capgraph import build_graph
from tests.benchmarks import programs


async def test_a_step_of_a_long_plan_costs_what_a_step_of_a_short_one_costs() -> None:
    graph = build_graph(programs.chain_registry("value"))

    async def seconds_per_step(steps: int) -> float:
        given = {
            "messages": [("user", "work")],
            "planning_execution_plan": programs.chain_plan(steps),
        }
        started = time.process_time()
        out = await graph.ainvoke(given)
        assert out["execution_outcome"]["status"] == "completed"
        return (time.process_time() - started) / steps

    await seconds_per_step(40)
    short = min([await seconds_per_step(40) for _ in range(3)])
    long = min([await seconds_per_step(400) for _ in range(3)])
    # Work that grows with the plan (a copy of it for each step) would make this about ten.
    assert long < 3 * short
