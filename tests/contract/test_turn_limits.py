"""No loop is endless, whoever turns it: a turn has a budget that no node can reset."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.types import Command, Overwrite

from capgraph import (
    build_graph,
)
from capgraph.base import CapabilityError, ErrorSeverity
from capgraph.base.errors import CapgraphError
from capgraph.configs.settings import load_settings
from capgraph.testing import ScriptedModel
from tests.support.one_door import (
    Reading,
    breaker,
    measurer,
    names_one_of,
    own_node,
    own_nodes,
    registered,
    said,
    status,
)

START = {"messages": [("user", "Measure it")]}
RESET = {
    "control_plans_created_count": 0,
    "control_reclassification_count": 0,
    "control_routing_count": 0,
    "control_retry_count": 0,
    "control_current_step_retry_count": 0,
    "control_attempts": {"a": 0, "broken": 0, "orchestrator": 0, "classifier": 0},
    "execution_start_time": None,
    "control_budget": Overwrite({}),
}


def failing(level: str, runs: list[Any], **declared: Any) -> Any:
    error = CapabilityError("no power", severity=ErrorSeverity(level))
    return breaker("broken", error, runs, **declared)


async def ended(run: Any) -> dict[str, Any]:
    """Assert that a turn that could not succeed ends with a message and says so."""
    out: dict[str, Any] = await run
    assert said(out)
    assert status(out) in {"failed", "stopped", "partial"}
    return out


# --- with a model ---------------------------------------------------------------------------------


def chooses(names: list[str], *, faults: dict[str, list[Any]] | None = None) -> Any:
    """Script a model that chooses and plans the same for ever, after the given faults."""
    left = {schema: list(errors) for schema, errors in (faults or {}).items()}

    def reply(call: Any) -> Any:
        waiting = left.get(call.schema or "")
        if waiting and (fault := waiting.pop(0)) is not None:
            return fault
        if call.schema == "Choice":
            return {"reason": "fits", "capabilities": list(names)}
        if call.schema == "ExecutionPlan":
            return {
                "steps": [
                    {"context_key": "a", "capability": "broken", "task_objective": "Do it"},
                ]
            }
        return "I could not."

    return ScriptedModel(responses=reply)


@pytest.mark.parametrize(
    "faults",
    [
        {},
        {"Choice": [None, ConnectionError("gone")]},
        {"Choice": [None, *[ConnectionError("gone")] * 600]},
        {"Choice": [None, ConnectionError("gone")] * 300},
        {"ExecutionPlan": [None, ConnectionError("gone")]},
        {"ExecutionPlan": [ConnectionError("gone")] * 600},
    ],
    ids=[
        "none",
        "choice once",
        "choice for ever",
        "every other choice",
        "plan once",
        "plan for ever",
    ],
)
@pytest.mark.parametrize("level", ["reclassification", "replanning", "retriable"])
@pytest.mark.parametrize("strategy", ["auto", "model"])
async def test_a_failing_step_with_a_model_is_bounded(
    level: str, faults: Any, strategy: str
) -> None:
    runs: list[Any] = []
    model = chooses(["broken", "measure"], faults=faults)
    registry = registered(Reading, measurer([]), failing(level, runs))
    settings = load_settings(
        limits={"max_retry_delay_seconds": 0.0}, selection={"strategy": strategy}
    )
    await ended(build_graph(registry, model=model, settings=settings).ainvoke(START))
    assert len(runs) <= 6
    assert len(model.calls) <= 20


@pytest.mark.parametrize("level", ["reclassification", "replanning"])
async def test_the_only_capability_of_a_model_is_bounded(level: str) -> None:
    runs: list[Any] = []
    model = chooses(["broken"])
    await ended(build_graph(registered(failing(level, runs)), model=model).ainvoke(START))
    assert len(runs) <= 2
    assert len(model.calls) <= 12


async def test_a_plan_with_what_was_never_chosen_is_bounded() -> None:
    runs: list[Any] = []
    model = chooses(["measure"])
    registry = registered(Reading, measurer([]), failing("critical", runs))
    settings = load_settings(selection={"strategy": "model"})
    await ended(build_graph(registry, model=model, settings=settings).ainvoke(START))
    assert runs == []
    assert len(model.calls) <= 20


async def test_the_reason_for_choosing_again_outlives_a_failure_of_the_choice(
    agent: Any, step: Any
) -> None:
    runs: list[Any] = []
    plans = [[step("a", "broken")], [step("b", "measure")]]
    made = agent(
        Reading,
        failing("reclassification", runs),
        measurer([]),
        plans=plans,
        selector_faults=[None, ConnectionError("gone"), None],
    )
    out = await made.ask()
    assert len(made.selector.calls) == 3
    assert list(made.selector.calls[-1]) == ["broken"], "what failed was chosen again"
    assert status(out) == "completed"
    assert len(runs) == 1


# --- nodes of one's own ---------------------------------------------------------------------------


def own_orchestrator(plan: list[Any], calls: list[int], extra: dict[str, Any]) -> Any:
    @own_node("orchestrator")
    async def OwnOrchestrator(state: Any) -> dict[str, Any]:
        calls.append(1)
        steps = [{**one, "context_key": f"{one['context_key']}{len(calls)}"} for one in plan]
        return {"planning_execution_plan": {"steps": steps}, **extra}

    return OwnOrchestrator


@pytest.mark.parametrize("level", ["replanning", "reclassification"])
@pytest.mark.parametrize("extra", [{}, RESET], ids=["plain", "resets"])
async def test_an_orchestrator_of_ones_own_is_bounded(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch, level: str, extra: dict[str, Any]
) -> None:
    runs: list[Any] = []
    calls: list[int] = []
    node = own_orchestrator([step("a", "broken")], calls, extra)
    house = own_nodes(monkeypatch, node)
    made = agent(failing(level, runs), infrastructure=house, limits={"max_planning_attempts": 3})
    await ended(made.ask())
    assert len(calls) <= 4
    assert len(runs) <= 4


@pytest.mark.parametrize("level", ["replanning", "reclassification", "retriable"])
async def test_an_orchestrator_of_ones_own_that_raises_is_bounded(
    agent: Any, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    calls: list[int] = []

    @own_node("orchestrator")
    async def OwnOrchestrator(state: Any) -> Any:
        calls.append(1)
        raise CapabilityError("no plan", severity=ErrorSeverity(level))

    house = own_nodes(monkeypatch, OwnOrchestrator)
    await ended(agent(Reading, measurer([]), infrastructure=house).ask())
    assert len(calls) <= 5


@pytest.mark.parametrize("level", ["replanning", "reclassification"])
async def test_plans_whose_making_raised_are_counted(agent: Any, level: str) -> None:
    error = CapabilityError("no plan", severity=ErrorSeverity(level))
    made = agent(
        Reading,
        measurer([]),
        planner_faults=[error],
        limits={"max_planning_attempts": 3, "max_reclassifications": 50},
    )
    await ended(made.ask())
    assert len(made.planner.calls) <= 3


async def test_a_classifier_of_ones_own_that_resets_the_counts_is_bounded(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Any] = []
    calls: list[int] = []

    @own_node("classifier")
    async def OwnClassifier(state: Any) -> dict[str, Any]:
        calls.append(1)
        return {"planning_active_capabilities": ["broken"], **RESET}

    house = own_nodes(monkeypatch, OwnClassifier)
    made = agent(
        failing("reclassification", runs), plans=[[step("a", "broken")]], infrastructure=house
    )
    await ended(made.ask())
    assert len(calls) <= 4
    assert len(runs) <= 4


@pytest.mark.parametrize("form", ["goto", "next node"])
async def test_a_router_of_ones_own_that_never_stops_is_bounded(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    runs: list[Any] = []

    @own_node("router")
    async def OwnRouter(state: Any) -> Any:
        if form == "goto":
            return Command(goto="measure", update=dict(RESET))
        return {"control_next_node": "measure", **RESET}

    house = own_nodes(monkeypatch, OwnRouter)
    try:
        made = agent(Reading, measurer(runs), plans=[[step("a", "measure")]], infrastructure=house)
        out = await made.ask()
    except CapgraphError as exc:  # refused when built, or stopped by a limit: said either way
        names_one_of(exc, "router", "limit")
    else:
        assert said(out)
        assert status(out) != "completed"
    assert len(runs) <= 30


# --- numbers that make no sense -------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [float("inf"), float("nan"), 10**9, "many", -1])
async def test_any_number_of_attempts_is_bounded(agent: Any, step: Any, attempts: Any) -> None:
    runs: list[Any] = []
    policy = {"max_attempts": attempts, "delay_seconds": 0.0, "backoff_factor": 1.0}
    broken = failing("retriable", runs, get_retry_policy=staticmethod(lambda: dict(policy)))
    out = await ended(agent(broken, plans=[[step("a", "broken")]]).ask())
    assert 1 <= len(runs) <= 10
    assert "no power" in said(out)


@pytest.mark.parametrize("retries", [0, 1])
async def test_a_node_may_lower_the_retries(
    agent: Any, step: Any, monkeypatch: pytest.MonkeyPatch, retries: int
) -> None:
    runs: list[Any] = []

    @own_node("task_extraction")
    async def OwnExtraction(state: Any) -> dict[str, Any]:
        return {"task_current_task": "Measure it", "control_max_retries": retries}

    house = own_nodes(monkeypatch, OwnExtraction)
    made = agent(failing("retriable", runs), plans=[[step("a", "broken")]], infrastructure=house)
    await ended(made.ask())
    assert len(runs) == 1 + retries
