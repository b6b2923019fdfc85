"""What LangGraph makes of a step's function is kept as long as its graph, and no longer."""

from __future__ import annotations

import gc
from typing import Any

from langgraph.pregel._call import CACHE

from capgraph import BaseCapability, build_graph, capability_node


@capability_node
class Look(BaseCapability):
    name = "look_for_tasks"
    description = "Look"
    provides = ["LOOK"]

    async def execute(self) -> dict[str, Any]:
        return {"seen": True}


def kept() -> int:
    gc.collect()
    return sum(function.__name__ == Look.name for function, _ in CACHE)


async def test_it_is_made_once_and_goes_with_the_graph() -> None:
    graph: Any = build_graph([Look])
    assert kept() == 1
    plan = {"steps": [{"context_key": k, "capability": Look.name} for k in "abc"]}
    out = await graph.ainvoke(
        {"messages": [("user", "Look three times")], "planning_execution_plan": plan}
    )
    assert list(out["execution_step_results"])[:3] == ["a", "b", "c"]
    assert kept() == 1
    del graph, out
    assert kept() == 0
