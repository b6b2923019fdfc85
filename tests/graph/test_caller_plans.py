"""Plans that a caller brings: what the caller wrote is refused or kept, never replaced."""

from __future__ import annotations

from typing import Any

import pytest

from capgraph import BaseCapability, CapabilityContext, build_graph, capability_node
from capgraph.base.plan import load_execution_plan_from_file, save_execution_plan_to_file
from capgraph.behaviors import CircuitBreakerBehavior, FallbackBehavior
from capgraph.planning import Plan, check_plan, plan_mermaid, repair_plan
from capgraph.registry import Registry


class TankLevel(CapabilityContext):
    """The level of the tank."""

    metres: float


class Health(CapabilityContext):
    """The health of the tank."""

    healthy: bool


@capability_node
def tank_level(depth: int = 1) -> TankLevel:
    """Read the level."""
    return TankLevel(metres=2.5)


@capability_node
def judge(level: TankLevel) -> Health:
    """Judge the tank."""
    return Health(healthy=True)


LEVEL = {"context_key": "level", "capability": "tank_level"}
JUDGE = {"context_key": "health", "capability": "judge", "inputs": [{"TANK_LEVEL": "level"}]}


def run(*steps: Any, **more: Any) -> dict[str, Any]:
    graph = build_graph([tank_level, judge], **more)
    return dict(graph.invoke({"planning_execution_plan": {"steps": list(steps)}}))


def refusal(out: dict[str, Any]) -> str:
    assert out["execution_outcome"]["status"] == "failed", out["execution_outcome"]
    assert not out["capability_context_data"]
    return str(out["messages"][-1].content)


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ([{**LEVEL, "capability": "tank_levle"}], "tank_level"),
        ([{**LEVEL, "capability": "Tank-Level"}], "tank_level"),
        ([LEVEL, {**JUDGE, "inputs": [{"TANK_LEVEL": "levle"}]}], "level"),
        ([LEVEL, {**JUDGE, "inputs": [{"TANK_LEVLE": "level"}]}], "use 'TANK_LEVEL'"),
        ([LEVEL, {**JUDGE, "inputs": [{"tank_level": "level"}]}], "use 'TANK_LEVEL'"),
        ([{**JUDGE, "inputs": [{"TANK_LEVEL": "levle"}]}], "TANK_LEVEL"),
        ([{**LEVEL, "parameters": {"dept": 2}}], "depth"),
        ([{**LEVEL, "expected_output": "TANK_LEVLE"}], "TANK_LEVEL"),
        ([LEVEL, {**LEVEL, "parameters": {"depth": 2}}], "level"),
        ([{**LEVEL, "context_key": "the level"}], "the level"),
        ([{**LEVEL, "objective": "Read it"}], "objective"),
    ],
)
def test_what_a_caller_wrote_is_refused_and_not_replaced(wrong: list[Any], nearest: str) -> None:
    assert nearest in refusal(run(*wrong))


def test_what_is_added_to_a_callers_plan_is_told_in_the_outcome() -> None:
    out = run(LEVEL, {"context_key": "health", "capability": "judge"})
    assert out["execution_outcome"]["status"] == "completed"
    notes = " ".join(out["execution_outcome"]["notes"])
    assert "TANK_LEVEL: level" in notes
    assert "respond" in notes


def test_a_complete_plan_of_a_caller_leaves_no_notes() -> None:
    out = run(LEVEL, JUDGE, {"context_key": "answer", "capability": "respond"})
    assert out["execution_outcome"] == {
        "status": "completed",
        "done": ["level", "health"],
        "missing": [],
    }


def test_a_repair_that_only_adds_keeps_every_name_that_was_written() -> None:
    registry = Registry()
    registry.register(tank_level)
    registry.register(judge)
    wrong = {"steps": [{**LEVEL, "capability": "tank_levle"}]}
    assert repair_plan(wrong, registry).ok
    kept = repair_plan(wrong, registry, additions_only=True)
    assert not kept.ok
    assert kept.plan["steps"][0]["capability"] == "tank_levle"


class Pump:
    """A capability that fails, and an effect before it."""

    def __init__(self) -> None:
        self.opened = 0

    def capabilities(self) -> list[Any]:
        @capability_node(effect="idempotent")
        def open_valve() -> str:
            """Open the valve."""
            self.opened += 1
            return "open"

        @capability_node(max_attempts=1)
        def start_pump(valve: str = "main") -> TankLevel:
            """Start the pump."""
            raise RuntimeError("The pump is broken.")

        return [open_valve, start_pump]


PUMPING = {
    "steps": [
        {"context_key": "valve", "capability": "open_valve"},
        {"context_key": "pump", "capability": "start_pump"},
    ]
}


def test_a_plan_with_an_unavailable_capability_does_not_start() -> None:
    pump = Pump()
    breaker = CircuitBreakerBehavior(failure_threshold=1, recovery_timeout=1000)
    graph = build_graph(pump.capabilities(), behaviors=[breaker])
    graph.invoke({"planning_execution_plan": {"steps": PUMPING["steps"][1:]}})
    out = dict(graph.invoke({"planning_execution_plan": PUMPING}))
    assert "start_pump" in refusal(out)
    assert pump.opened == 0
    optional = [PUMPING["steps"][0], {**PUMPING["steps"][1], "optional": True}]
    graph.invoke({"planning_execution_plan": {"steps": optional}})
    assert pump.opened == 1


def test_a_capability_with_a_fallback_is_available() -> None:
    pump = Pump()
    breaker = CircuitBreakerBehavior(failure_threshold=1, recovery_timeout=1000)
    fallback = FallbackBehavior(default={"TANK_LEVEL": {"metres": 0.0}})
    valve, start = pump.capabilities()
    graph = build_graph([valve, start], behaviors=[fallback, breaker])
    for _ in range(2):
        out = graph.invoke({"planning_execution_plan": PUMPING})
        assert out["execution_outcome"]["status"] == "completed", out["messages"][-1].content
    assert pump.opened == 2


def test_a_plan_that_was_written_in_python_runs_and_is_checked_as_it_is() -> None:
    plan = Plan().step(tank_level, key="level").step(judge, key="health")
    graph = build_graph([tank_level, judge])
    out = graph.invoke({"planning_execution_plan": plan})
    assert out["execution_outcome"]["done"] == ["level", "health"]
    problems = check_plan(Plan().step("tank_levle", key="level"), graph.services.registry)
    assert "'tank_level'" in str([str(problem) for problem in problems])
    assert repair_plan(plan, graph.services.registry).ok


def test_planners_and_capabilities_return_a_plan_that_was_written_in_python(tmp_path: Any) -> None:
    @capability_node
    class Look(BaseCapability):
        name = "look"
        description = "Look at the tank, then propose to judge it"

        async def execute(self) -> dict[str, Any]:
            steps = Plan().step(tank_level, key="level").step(judge, key="health")
            return {"planning_execution_plan": steps}

    class Planner:
        async def plan(self, request: Any) -> Any:
            return Plan().step(Look)

    graph = build_graph([Look, tank_level, judge], planner=Planner())
    out = graph.invoke({"messages": [("user", "Look at the tank")]})
    assert out["execution_outcome"]["done"] == ["level", "health"], out["messages"][-1].content

    written = Plan(deadline=60).step(tank_level, key="level")
    save_execution_plan_to_file(written, tmp_path / "plan.json")
    assert load_execution_plan_from_file(tmp_path / "plan.json") == written
    assert "tank_level" in plan_mermaid(written)
