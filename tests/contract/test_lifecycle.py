"""Capabilities that validate, set up and tear down, in whole graphs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import BaseCapability, CapabilityContext, build_graph, capability_node

PLAN = {"steps": [{"context_key": "k", "capability": "pump", "task_objective": "pump"}]}


class Pumped(CapabilityContext):
    litres: int


def pump(seen: list[str], fails: str = "", **declared: Any) -> Any:
    class Pump(BaseCapability):
        name = "pump"
        description = "Pumps."
        provides = [Pumped]

        async def validate(self) -> None:
            self._note("validate")

        def setup(self) -> None:  # runs in a thread
            self._note("setup")

        async def execute(self) -> Any:
            self._note("execute")
            return self.store(Pumped(litres=3))

        async def teardown(self) -> None:
            await asyncio.sleep(0)
            self._note("teardown")

        def _note(self, phase: str) -> None:
            seen.append(phase)
            if phase == fails:
                raise ValueError(f"{phase} broke")

    for name, value in declared.items():
        setattr(Pump, name, value)
    return capability_node(Pump)


async def run(capability: Any) -> dict[str, Any]:
    graph = build_graph([capability], checkpointer=InMemorySaver())
    given = {"messages": [("user", "pump")], "planning_execution_plan": PLAN}
    found: dict[str, Any] = await graph.ainvoke(given, {"configurable": {"thread_id": "t"}})
    return found


@pytest.mark.row("P2")
async def test_the_phases_run_in_order() -> None:
    seen: list[str] = []
    out = await run(pump(seen))
    assert seen == ["validate", "setup", "execute", "teardown"]
    assert out["execution_step_results"]["k"]["success"]


@pytest.mark.row("P10")
@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("validate", ["validate"]),
        ("setup", ["validate", "setup", "teardown"]),
        ("execute", ["validate", "setup", "execute", "teardown"]),
        ("teardown", ["validate", "setup", "execute", "teardown"]),
    ],
)
async def test_a_phase_that_fails_fails_the_step(phase: str, expected: list[str]) -> None:
    seen: list[str] = []
    out = await run(pump(seen, phase))
    assert seen == expected
    assert f"{phase} broke" in out["execution_step_results"]["k"]["error"]


@pytest.mark.row("P12")
async def test_an_effect_whose_cleaning_up_failed_is_done_and_never_repeated() -> None:
    seen: list[str] = []
    out = await run(pump(seen, "teardown", effect="once"))
    record = out["execution_step_results"]["k"]
    assert seen.count("execute") == 1
    assert (record["success"], record["severity"]) == (False, "critical")
    assert "done" in out["messages"][-1].content
