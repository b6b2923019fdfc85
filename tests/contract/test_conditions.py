"""Steps with a condition, optional steps and time limits of a step, through whole graphs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from capgraph import BaseCapability, CapabilityContext, build_graph, capability_node
from capgraph.planning import check_plan
from tests.support.one_door import planned, registered, said, status
from tests.support.toys import Total, add, capability, measure

ANSWER = {"context_key": "answer", "capability": "respond"}


class Reading(CapabilityContext):
    value: float
    place: str = "Oslo"


@capability_node
async def read_level(level: float = 5.0) -> Reading:
    """Read the level."""
    return Reading(value=level)


@capability_node
async def double(reading: Reading) -> Reading:
    """Double a reading."""
    return Reading(value=2 * reading.value)


@capability_node
async def total(readings: list[Reading]) -> Total:
    """Add readings."""
    return Total(value=sum(reading.value for reading in readings))


@capability_node(max_attempts=1)
async def broken() -> Reading:
    """Break."""
    raise ValueError("the sensor is gone")


def graph(**options: Any) -> Any:
    return build_graph(registered(read_level, double, total, broken), **options)


def step(key: str, capability: str, **more: Any) -> dict[str, Any]:
    return {"context_key": key, "capability": capability, "inputs": [], **more}


def when(of: str, sign: str, than: Any) -> dict[str, Any]:
    return {"of": of, "is": sign, "than": than}


async def run(*steps: dict[str, Any]) -> dict[str, Any]:
    return dict(await graph().ainvoke(planned(*steps, ANSWER)))


async def test_what_is_not_needed_says_so_and_so_does_what_hangs_on_it() -> None:
    out = await run(
        step("a", "read_level"),
        step("b", "read_level", when=when("a.value", ">", 100)),
        step("c", "double", inputs=[{"READING": "b"}]),
        step("d", "read_level", parameters={"level": {"$from": "c.value"}}),
        step("e", "double", inputs=[{"READING": "a"}], when=when("a.value", "<=", 5)),
    )
    results = out["execution_step_results"]
    assert results["e"]["success"]
    assert out["capability_context_data"]["READING"]["e"]["value"] == 10
    told = {key: results[key]["not_needed"] for key in "bcd"}
    assert told == {
        "b": "a.value > 100 does not hold.",
        "c": "it reads 'b', which the plan does not need.",
        "d": "it reads 'c', which the plan does not need.",
    }
    assert out["execution_outcome"] == {
        "status": "completed",
        "done": ["a", "e"],
        "missing": [],
        "not_needed": ["b", "c", "d"],
    }
    assert "read level: not needed: a.value > 100 does not hold." in said(out)


async def test_two_ways_meet_where_one_result_of_many_is_enough() -> None:
    out = await run(
        step("a", "read_level"),
        step("low", "double", inputs=[{"READING": "a"}], when=when("a.value", "<", 3)),
        step("high", "double", inputs=[{"READING": "a"}], when={"not": when("a.value", "<", 3)}),
        step("sum", "total", inputs=[{"READING": "low"}, {"READING": "high"}]),
    )
    assert out["capability_context_data"]["TOTAL"]["sum"]["value"] == 10
    assert out["execution_outcome"]["not_needed"] == ["low"]


async def test_a_condition_on_what_is_not_needed_is_unknown() -> None:
    gone = step("b", "read_level", when=when("a.value", ">", 100))
    either = {"or": [when("b.value", ">", 0), when("a.value", "==", 5)]}
    out = await run(
        step("a", "read_level"),
        gone,
        step("neither", "read_level", when=when("b.value", ">", 0)),
        step("nor", "read_level", when={"not": when("b.value", ">", 0)}),
        step("either", "read_level", when=either),
    )
    assert out["execution_outcome"]["not_needed"] == ["b", "neither", "nor"]
    assert "either" in out["execution_outcome"]["done"]


async def test_an_optional_step_fails_and_the_plan_goes_on_and_says_so() -> None:
    out = await run(
        step("a", "read_level"),
        step("b", "broken", optional=True),
        step("c", "double", inputs=[{"READING": "b"}]),
        step("sum", "total", inputs=[{"READING": "a"}, {"READING": "b"}]),
    )
    outcome = out["execution_outcome"]
    assert (outcome["status"], outcome["missing"]) == ("partial", ["b", "c"])
    assert out["capability_context_data"]["TOTAL"]["sum"]["value"] == 5
    assert "the sensor is gone" in out["execution_step_results"]["b"]["error"]
    assert "the sensor is gone" in said(out)
    assert out["execution_step_results"]["c"]["error"] == "it reads 'b', which is missing."
    assert not out["control_has_error"]


async def test_a_step_that_is_not_optional_fails_as_ever() -> None:
    out = await run(step("a", "read_level"), step("b", "broken"))
    assert status(out) == "failed"


async def test_what_cannot_be_compared_is_a_failure_that_says_so() -> None:
    loose = capability("loose", provides=("LOOSE",))

    class Says(BaseCapability):
        name, description, provides = "says", "Says it.", ("SAID",)

        async def execute(self) -> Any:
            return {"SAID": {"wind": "strong"}}

    agent = build_graph(registered(capability_node(Says), loose))
    given = planned(step("a", "says"), step("b", "loose", when=when("a.wind", ">", 3)), ANSWER)
    out = await agent.ainvoke(given)
    assert status(out) == "failed"
    assert "'a.wind > 3': a.wind is 'strong'" in said(out)


async def test_the_time_limit_of_a_step_takes_the_place_of_its_capabilitys() -> None:
    @capability_node(timeout_seconds=600, max_attempts=1)
    async def wait() -> Reading:
        """Wait."""
        await asyncio.sleep(60)
        return Reading(value=1)

    agent = build_graph(registered(wait))
    out = await agent.ainvoke(planned(step("a", "wait", timeout=0.05), ANSWER))
    assert status(out) == "failed"
    assert "time limit of 0.05 s" in said(out)


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({"when": when("nowhere.value", ">", 1)}, "when.of"),
        ({"when": when("a.depth", ">", 1)}, "when.of"),
        ({"when": when("a.place", ">", 1)}, "when.of"),
        ({"when": when("b.value", ">", 1)}, "inputs"),
        ({"when": when("late.value", ">", 1)}, "when.of"),
        ({"when": when("a.value", "~", 1)}, "when.is"),
        ({"when": when("a.value", ">", None)}, "when.than"),
        ({"when": when("a.value", ">", float("nan"))}, "when.than"),
        ({"when": {"and": []}}, "when.and"),
        ({"when": {"and": [{"of": "a.value"}]}}, "when.and[0]"),
        ({"when": "a.value > 1"}, "when"),
        ({"when": {"or": [when("a.value", ">", 1)] * 200}}, "when"),
        ({"optional": "yes"}, "optional"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
    ],
)
def test_a_wrong_field_is_found_before_the_run(more: dict[str, Any], place: str) -> None:
    plan = {
        "steps": [
            step("a", "read_level"),
            step("b", "read_level", **more),
            step("late", "read_level"),
            ANSWER,
        ]
    }
    found = check_plan(plan, registered(read_level))
    assert [(problem.step, problem.field) for problem in found] == [(1, place)]


def test_a_condition_that_is_too_deep_is_refused() -> None:
    rule: dict[str, Any] = when("a.value", ">", 1)
    for _ in range(5_000):
        rule = {"not": rule}
    plan = {"steps": [step("a", "read_level"), step("b", "read_level", when=rule), ANSWER]}
    found = check_plan(plan, registered(read_level))
    assert [problem.field for problem in found] == ["when"]


def test_the_closing_step_has_no_condition() -> None:
    plan = {"steps": [step("a", "measure"), {**ANSWER, "when": when("a.value", ">", 1)}]}
    assert [p.field for p in check_plan(plan, registered(measure, add))] == ["when"]
