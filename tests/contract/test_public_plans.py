"""The public contract of plans that look again, line by line, as a stranger would call it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from capgraph import CapabilityContext, build_graph, capability_node
from capgraph.base.errors import ValidationError
from capgraph.planning import Plan, check_plan
from tests.support.one_door import registered


class Forecast(CapabilityContext):
    wind: float
    places: list[dict[str, str]]


class Report(CapabilityContext):
    place: str


class Digest(CapabilityContext):
    places: list[str]


@capability_node
async def forecast() -> Forecast:
    """Forecast the weather."""
    return Forecast(wind=10, places=[{"name": name} for name in ("Oslo", "Bergen", "Moss")])


@capability_node
async def report(place: str) -> Report:
    """Report from a place."""
    if place == "nowhere":
        raise ValueError("There is no such place.")
    return Report(place=place)


@capability_node
async def digest(reports: list[Report]) -> Digest:
    """Put reports together."""
    return Digest(places=[one.place for one in reports])


@capability_node
async def repeat(report: Report) -> Report:
    """Repeat a report."""
    return report


STEPS: list[dict[str, Any]] = [
    {"context_key": "forecast", "capability": "forecast"},
    {
        "context_key": "reports",
        "capability": "report",
        "for_each": {"of": "forecast.places", "as": "item", "on_failure": "stop"},
        "parameters": {"place": {"$from": "item.name"}},
        "timeout": 30,
    },
    {"context_key": "digest", "capability": "digest", "inputs": [{"REPORT": "reports"}]},
    {
        "context_key": "storm",
        "capability": "report",
        "parameters": {"place": {"$from": "digest.places.0"}},
        "when": {"and": [{"of": "forecast.wind", "is": ">", "than": 12}, {"not": {"of": "forecast.wind", "is": "==", "than": 0}}]},
    },
    {"context_key": "after", "capability": "repeat", "inputs": [{"REPORT": "storm"}]},
    {
        "context_key": "extra",
        "capability": "report",
        "parameters": {"place": "nowhere"},
        "optional": True,
    },
    {"context_key": "answer", "capability": "respond"},
]  # fmt: skip


async def ran(plan: Any) -> dict[str, Any]:
    graph: Any = build_graph([forecast, report, digest, repeat], checkpointer=InMemorySaver())
    given = {"messages": [("user", "What is it like?")], "planning_execution_plan": plan}
    return dict(await graph.ainvoke(given, {"configurable": {"thread_id": "1"}}))


async def test_a_plan_of_a_caller() -> None:
    out = await ran({"steps": STEPS, "deadline": 60})
    results = out["execution_step_results"]
    assert out["capability_context_data"]["DIGEST"]["digest"]["places"] == [
        "Oslo",
        "Bergen",
        "Moss",
    ]
    for key in ("storm", "after"):
        assert "not_needed" in json.dumps(results[key]) or "not needed" in json.dumps(results[key])
    assert out["execution_outcome"]["status"] == "partial"
    assert "extra" in out["execution_outcome"]["missing"]


async def test_a_plan_with_a_bound_a_letter_off_does_not_run_without_it() -> None:
    out = await ran({"steps": STEPS, "dedline": 60, "budgt": {"steps": 1}, "why": "to see"})
    told = out["messages"][-1].content
    for name, fix in (("dedline", "deadline"), ("budgt", "budget"), ("why", "use only")):
        assert name in told, told
        assert fix in told, told
    assert out["execution_outcome"]["status"] == "failed"
    assert not out["execution_step_results"]
    assert (await ran({"steps": STEPS, "__metadata__": {}}))["execution_step_results"]


async def test_a_failed_copy_is_not_completed() -> None:
    for mode in ("stop", "collect"):
        steps = [dict(step) for step in STEPS[:2]]
        steps[1]["for_each"] = {"of": "forecast.places", "as": "item", "on_failure": mode}
        steps[1]["parameters"] = {"place": "nowhere"}
        assert (await ran({"steps": steps}))["execution_outcome"]["status"] != "completed"


async def test_plan_in_python() -> None:
    plan = (
        Plan()
        .step(forecast, key="forecast")
        .step("report", key="reports", parameters={"place": {"$from": "item.name"}}, inputs=[])
        .for_each("forecast.places")
        .when({"of": "forecast.wind", "is": "<=", "than": 12})
        .step(digest, key="digest", inputs=[{"REPORT": "reports"}])
        .to_dict()
    )
    assert list(plan) == ["steps"]
    json.dumps(plan)
    out = await ran(plan)
    assert out["execution_outcome"]["status"] == "completed"


@pytest.mark.parametrize("sign", [">", ">=", "<", "<=", "==", "!="])
def test_every_sign_is_known(sign: str) -> None:
    steps = [
        STEPS[0],
        {**STEPS[5], "when": {"of": "forecast.wind", "is": sign, "than": 1}},
        STEPS[-1],
    ]
    assert check_plan({"steps": steps}, registered(forecast, report)) == []


async def test_what_no_saver_can_write_is_refused_by_its_place() -> None:
    @capability_node
    async def who() -> str:
        """Ask who it is."""
        return str(interrupt("who?"))

    class Odd:
        pass

    graph = build_graph([who], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    step: dict[str, Any] = {"context_key": "a", "capability": "who"}
    given: Any = {"messages": [("user", "Go")]}
    for plan, place in (
        ({"steps": [{**step, "parameters": {"n": Odd()}}]}, r"steps\[0\]\.parameters\.n"),
        ({"steps": [Odd()]}, r"steps\[0\]"),
        ({"steps": Odd()}, "steps"),
    ):
        with pytest.raises(ValidationError, match=f"planning_execution_plan.{place} is of type"):
            await graph.ainvoke({**given, "planning_execution_plan": plan}, config)
    await graph.ainvoke({**given, "planning_execution_plan": {"steps": [step]}}, config)
    with pytest.raises(ValidationError, match=r"the answer\.a is of type"):
        await graph.ainvoke(Command(resume={"a": Odd()}), config)
    out = await graph.ainvoke(Command(resume={"a": "Ann"}), config)  # it is still asked
    assert out["messages"][-1].content == "Ann"
