"""A process that is to stop lets running steps end, begins nothing, and loses nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl

from capgraph import CapabilityContext, ErrorSeverity, Registry, build_graph, capability_node
from capgraph.base import CapabilityError, FatalExecutionError
from capgraph.stores import thread_summary


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


@pytest.mark.parametrize("url", ["", "sqlite"])
async def test_the_summary_of_a_handed_over_thread_is_unfinished_until_the_turn_ends(
    url: str, saver: Any
) -> None:
    saver = saver if url else InMemorySaver()
    control, fails = RunControl(), [True]
    during: list[Any] = []

    @capability_node
    async def first() -> Part:
        """Make a part."""
        control.request_drain()
        return Part(number=1)

    @capability_node
    async def second(part: Part) -> Part:
        """Work on a part."""
        during.append(await thread_summary(saver, "1"))
        if fails:
            raise CapabilityError("The disk is full.", severity=ErrorSeverity.FATAL)
        return part

    graph = build_graph([Part, first, second], checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "1"}}
    steps = [
        {"context_key": "a", "capability": "first"},
        {"context_key": "b", "capability": "second", "inputs": [{"PART": "a"}]},
    ]
    with pytest.raises(GraphDrained):
        await graph.ainvoke({"planning_execution_plan": {"steps": steps}}, config, control=control)
    summary = await thread_summary(saver, "1")
    assert (summary.status, summary.done) == ("unfinished", ("a",))
    with pytest.raises(FatalExecutionError):
        await graph.ainvoke(None, config)
    assert (await thread_summary(saver, "1")).status == "failed"
    fails.clear()
    await graph.ainvoke(None, config)
    assert [found.status for found in during] == ["unfinished", "unfinished"]
    assert (await thread_summary(saver, "1")).status == "completed"
