"""Plans that capabilities propose: none is taken or put aside in silence."""

from __future__ import annotations

from typing import Any

from capgraph import BaseCapability, capability_node
from capgraph.base import CapabilityError, ErrorClassification, ErrorSeverity

FAILS = {"severity": ErrorSeverity.RETRIABLE}


def proposes(title: str, goal: str) -> type[BaseCapability]:
    @capability_node
    class Proposes(BaseCapability):
        name = title
        description = "Say what comes next"

        async def execute(self) -> dict[str, Any]:
            done = {"context_key": goal, "capability": "paint", "task_objective": goal}
            return {"planning_execution_plan": {"steps": [done]}}

    return Proposes


def paints(log: list[str], faults: list[ErrorSeverity]) -> list[type[BaseCapability]]:
    @capability_node
    class Paint(BaseCapability):
        name = "paint"
        description = "Paint"

        async def execute(self) -> dict[str, Any]:
            log.append(self.step["context_key"])
            return {}

    @capability_node
    class Fails(BaseCapability):
        name = "fails"
        description = "Fail as often as told"

        @staticmethod
        def classify_error(exc: Exception, context: dict[str, Any]) -> ErrorClassification:
            return ErrorClassification(severity=faults.pop(0), user_message="the brush broke")

        async def execute(self) -> dict[str, Any]:
            log.append("fails")
            if faults:
                raise CapabilityError("broken")
            return {}

    return [Paint, Fails]


async def test_two_plans_at_once_are_refused_by_name_and_planned_anew(
    agent: Any, step: Any
) -> None:
    log: list[str] = []
    plans = [[step("a", "one"), step("b", "two")], [step("c", "paint")]]
    it = agent(proposes("one", "x"), proposes("two", "y"), *paints(log, []), plans=plans)
    out = await it.ask("Go on")
    assert log == ["c"]
    assert out["execution_outcome"]["status"] == "completed"
    assert "one, two" in str(it.planner.calls[-1])


async def test_a_plan_proposed_beside_a_failure_that_passes_is_taken(agent: Any, step: Any) -> None:
    log: list[str] = []
    plans = [[step("a", "one"), step("f", "fails")]]
    it = agent(proposes("one", "x"), *paints(log, [FAILS["severity"]]), plans=plans)
    out = await it.ask("Go on")
    assert out["execution_outcome"]["status"] == "completed"
    assert log == ["fails", "fails", "x"]


async def test_a_plan_that_a_failure_puts_aside_is_told_of(agent: Any, step: Any) -> None:
    log: list[str] = []
    plans = [[step("a", "one"), step("f", "fails")], [step("c", "paint")]]
    it = agent(proposes("one", "x"), *paints(log, [ErrorSeverity.REPLANNING]), plans=plans)
    events = []
    given = {"messages": [("user", "Go on")]}
    async for event in it.graph.astream(given, stream_mode="custom"):
        events.append(event)
    assert log == ["fails", "c"]
    [told] = [
        e["message"] for e in events if e.get("warning") and "Ignored the plan" in e["message"]
    ]
    assert told == "Ignored the plan of one: the brush broke"
