"""A process that is to stop lets running steps end, begins nothing, and loses nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl

from capgraph import CapabilityContext, Registry, build_graph, capability_node


class Part(CapabilityContext):
    number: int


async def test_a_drain_stops_a_long_plan_between_steps_and_resumes_it() -> None:
    ran: list[int] = []
    control = RunControl()

    @capability_node
    async def work(part: Part | None, number: int) -> Part:
        """Work on a part."""
        ran.append(number)
        if number == 1:
            control.request_drain()
        await asyncio.sleep(0)
        return Part(number=number)

    registry = Registry()
    registry.register(Part)
    registry.register(work)
    graph = build_graph(registry, checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    steps = [
        {
            "context_key": f"s{n}",
            "capability": "work",
            "parameters": {"number": n},
            "inputs": [{"PART": f"s{n - 1}"}] if n else [],
        }
        for n in range(5)
    ]
    with pytest.raises(GraphDrained):
        await graph.ainvoke(
            {"messages": [("user", "work")], "planning_execution_plan": {"steps": steps}},
            config,
            control=control,
        )
    assert ran == [0, 1]
    out = await graph.ainvoke(None, config)
    assert ran == [0, 1, 2, 3, 4]
    assert out["execution_outcome"]["status"] == "completed"
