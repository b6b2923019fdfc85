"""Tests of every kind of plan problem and its message."""

from __future__ import annotations

import time
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from capgraph.base import CapabilitySpec, Requirement
from capgraph.planning import (
    PROBLEM_KINDS,
    StaticCatalog,
    check_plan,
    repair_plan,
)

pytestmark = pytest.mark.row("B48")

ERRORS = Path(__file__).parents[3] / "docs" / "errors"


class Unit(Enum):
    METRIC = "metric"
    IMPERIAL = "imperial"


class FetchOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    days: int = Field(ge=1)
    unit: Unit = Unit.METRIC
    columns: list[str] = []
    place: str = ""
    share: float | None = None
    quiet: bool = False


CATALOG = StaticCatalog.of(
    CapabilitySpec("locate", "Find the place.", provides=("PLACE",)),
    CapabilitySpec(
        "fetch",
        "Fetch readings.",
        provides=("DATA",),
        requires=(Requirement("PLACE"), Requirement("TIME_RANGE", "optional")),
        parameters=FetchOptions,
    ),
    CapabilitySpec(
        "merge", "Merge readings.", provides=("DATA",), requires=(Requirement("DATA", "many"),)
    ),
    CapabilitySpec(
        "describe", "Describe.", provides=("MEAN", "RANGE"), requires=(Requirement("DATA"),)
    ),
    CapabilitySpec("read_file", "Read.", provides=("DATA",), requires=(Requirement("FILES"),)),
    CapabilitySpec("notify", "Tell somebody."),
    CapabilitySpec("remember", "Remember.", provides=("MEMORY",), always_active=True),
    infrastructure={"router", "classifier", "respond", "clarify"},
    provided_types={"FILES"},
)
LOCATE = {"context_key": "place", "capability": "locate", "expected_output": "PLACE"}
FETCH = {
    "context_key": "data",
    "capability": "fetch",
    "parameters": {"days": 3},
    "inputs": [{"PLACE": "place"}],
}
RESPOND = {"context_key": "answer", "capability": "respond"}


def plan(*steps: Any) -> dict[str, Any]:
    return {"steps": list(steps)}


def found(value: Any, available: Any = None, **options: Any) -> list[tuple[str, int | None, str]]:
    return [
        (problem.code, problem.step, problem.field)
        for problem in check_plan(value, CATALOG, available, **options)
    ]


def test_a_valid_plan_has_no_problems() -> None:
    assert found(plan(LOCATE, FETCH, RESPOND)) == []
    assert found(plan(FETCH, RESPOND), {"PLACE": {"place": {"city": "Oslo"}}}) == []
    assert found(plan({**LOCATE, "inputs": None, "parameters": None}, RESPOND)) == []


PROBLEMS = [
    (None,
     '[CG-P01] plan None', ''),
    ({**plan(LOCATE, RESPOND), "step": []},
     "[CG-P01] plan, step '[]'", "'steps'"),
    ({"steps": {}},
     "[CG-P01] plan, steps '{}'", ''),
    ({},
     "[CG-P02] plan, steps '[]'", ''),
    (plan("fetch", RESPOND),
     "[CG-P01] step 1 'fetch'", ''),
    (plan({**LOCATE, "capability": "Locate"}, RESPOND),
     "[CG-P04] step 1 'place', capability 'Locate'", "'locate'"),
    (plan({**LOCATE, "capability": "teleport"}, RESPOND),
     "[CG-P04] step 1 'place', capability 'teleport'", ''),
    (plan({"context_key": "c", "capability": "classifier"}, RESPOND),
     "[CG-P06] step 1 'c', capability 'classifier'", ''),
    (plan(RESPOND, LOCATE, {**RESPOND, "context_key": "again"}),
     "[CG-P07] step 1 'answer', capability 'respond'", ''),
    (plan(LOCATE),
     "[CG-P08] plan, steps 'locate'", ''),
    (plan({"capability": "locate"}, RESPOND),
     '[CG-P09] step 1, context_key None', ''),
    (plan({**LOCATE, "context_key": "a b"}, RESPOND),
     "[CG-P10] step 1 'a b', context_key 'a b'", ''),
    (plan(LOCATE, LOCATE, RESPOND),
     "[CG-P11] step 2 'place', context_key 'place'", ''),
    (plan({**LOCATE, "inputs": "x"}, RESPOND),
     "[CG-P12] step 1 'place', inputs 'x'", ''),
    (plan({**FETCH, "inputs": [{"PLACE": "nowhere"}]}, RESPOND),
     "[CG-P13] step 1 'data', inputs[0].PLACE 'nowhere'", 'locate'),
    (plan(FETCH, LOCATE, RESPOND),
     "[CG-P14] step 1 'data', inputs[0].PLACE 'place'", 'step 2'),
    (plan(LOCATE, {**FETCH, "inputs": [{"PLACE": "place"}, {"TIME_RANGE": "place"}]}, RESPOND),
     "[CG-P15] step 2 'data', inputs[1].TIME_RANGE 'place'", 'TIME_RANGE'),
    (plan(LOCATE, {**FETCH, "inputs": []}, RESPOND),
     "[CG-P16] step 2 'data', inputs 'PLACE'", 'place'),
    (plan({"context_key": "d", "capability": "read_file"}, RESPOND),
     "[CG-P16] step 1 'd', inputs 'FILES'", 'FILES'),
    (plan(LOCATE, {**LOCATE, "context_key": "p2"},
          {**FETCH, "inputs": [{"PLACE": "place"}, {"PLACE": "p2"}]}, RESPOND),
     "[CG-P17] step 3 'data', inputs 'PLACE'", ''),
    (plan({"context_key": "m", "capability": "merge", "inputs": [{"DATA": "n"}]},
          {"context_key": "n", "capability": "merge", "inputs": [{"DATA": "m"}]}, RESPOND),
     "[CG-P18] step 1 'm', inputs 'm, n'", ''),
    (plan({"context_key": "m", "capability": "merge", "inputs": [{"DATA": "m"}]}, RESPOND),
     "[CG-P18] step 1 'm', inputs 'm'", ''),
    (plan(LOCATE, {**FETCH, "parameters": {"days": 0}}, RESPOND),
     "[CG-P19] step 2 'data', parameters.days 0", ''),
    (plan(LOCATE, {**FETCH, "parameters": {}}, RESPOND),
     "[CG-P19] step 2 'data', parameters.days None", ''),
    (plan(LOCATE, {**FETCH, "parameters": {"days": 2, "depth": 1}}, RESPOND),
     "[CG-P19] step 2 'data', parameters.depth 1", 'days'),
    (plan(LOCATE, {**FETCH, "parameters": {"days": 2, "columns": ["a", 5]}}, RESPOND),
     "[CG-P19] step 2 'data', parameters.columns[1] 5", "'5'"),
    (plan({**LOCATE, "parameters": {"near": ["a"]}}, RESPOND),
     '[CG-P19] step 1 \'place\', parameters.near "[\'a\']"', ''),
    (plan({**LOCATE, "expected_output": "MOOD"}, RESPOND),
     "[CG-P20] step 1 'place', expected_output 'MOOD'", ''),
    (plan({"context_key": "n", "capability": "notify", "expected_output": "MOOD"}, RESPOND),
     "[CG-P20] step 1 'n', expected_output 'MOOD'", ''),
    (plan({**LOCATE, "parameters": {"x": float("inf")}}, RESPOND),
     "[CG-P21] step 1 'place', parameters.x 'inf'", ''),
    (plan(LOCATE, {**LOCATE, "context_key": "b", "when": {"of": "place", "is": "~", "than": 1}},
          RESPOND),
     "[CG-P22] step 2 'b', when.is '~'", ''),
    (plan({**LOCATE, "for_each": {"in": "x"}}, RESPOND),
     '[CG-P23] step 1 \'place\', for_each "{\'in\': \'x\'}"', ''),
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "location", "remedy"), PROBLEMS, ids=[row[1][1:7] for row in PROBLEMS]
)
def test_a_problem_names_its_location_and_remedy(value: Any, location: str, remedy: str) -> None:
    (problem,) = check_plan(value, CATALOG)
    assert str(problem).startswith(f"{location}: ")
    assert problem.cause
    assert remedy in problem.remedy


def test_the_message_of_a_problem() -> None:
    (problem,) = check_plan(plan({**LOCATE, "capability": "Locate"}, RESPOND), CATALOG)
    assert str(problem) == (
        "[CG-P04] step 1 'place', capability 'Locate': no capability with this name is registered."
        " Fix: use 'locate'."
    )


def test_every_kind_has_a_page_and_a_case() -> None:
    shown = {location[1:7] for _, location, _ in PROBLEMS} | {"CG-P03", "CG-P05"}
    assert shown == set(PROBLEM_KINDS)
    for code, kind in PROBLEM_KINDS.items():
        page = (ERRORS / f"{code}.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {code}: {kind.title}\n")
        assert "## What to do" in page


def test_selection_and_length() -> None:
    value = plan(LOCATE, FETCH, {"context_key": "m", "capability": "remember"}, RESPOND)
    assert found(value, active=["locate"], max_steps=3) == [
        ("CG-P03", None, "steps"),
        ("CG-P05", 1, "capability"),
    ]
    assert found(value, active=["locate", "fetch"]) == [], "always active needs no selection"


def test_all_problems_are_reported_at_once() -> None:
    value = plan(
        {"capability": "locate", "parameters": {"x": {}}},
        {"context_key": "a", "capability": "nobody", "inputs": [{"DATA": "later"}, 4]},
        {"context_key": "a", "capability": "describe", "expected_output": "MOOD"},
        {"context_key": "later", "capability": "read_file"},
    )
    assert [code for code, _, _ in found(value)] == [
        "CG-P08", "CG-P09", "CG-P19", "CG-P04", "CG-P12", "CG-P14", "CG-P11", "CG-P16", "CG-P20",
        "CG-P16",
    ]  # fmt: skip


def test_expected_output_is_required_with_several_outputs() -> None:
    step = {"context_key": "d", "capability": "describe", "inputs": [{"DATA": "x"}]}
    stored = {"DATA": ["x"]}
    assert found(plan(step, RESPOND), stored) == [("CG-P20", 0, "expected_output")]
    assert found(plan({**step, "expected_output": "RANGE"}, RESPOND), stored) == []
    reads_both = {**RESPOND, "inputs": [{"MEAN": "d"}, {"RANGE": "d"}]}
    assert found(plan({**step, "expected_output": "RANGE"}, reads_both), stored) == []


def test_a_step_before_a_producer_with_the_same_key_reads_the_stored_context() -> None:
    reader = {**FETCH, "context_key": "first"}
    assert found(plan(reader, LOCATE, RESPOND), {"PLACE": ["place"]}) == []
    assert found(plan(reader, LOCATE, RESPOND), {"OTHER": ["place"]}) == [
        ("CG-P14", 0, "inputs[0].PLACE")
    ]


def test_a_stored_context_of_another_type_is_a_mismatch() -> None:
    problems = check_plan(plan(FETCH, RESPOND), CATALOG, {"MOOD": {"place": 1}})
    assert [problem.cause for problem in problems] == [
        "the stored context with this key has type MOOD, not PLACE"
    ]


def test_an_unknown_capability_is_not_reported_twice() -> None:
    broken = {**LOCATE, "capability": "teleport"}
    assert found(plan(broken, FETCH, RESPOND)) == [("CG-P04", 0, "capability")]


@pytest.mark.parametrize(
    "parameters",
    [{"days": 3, "unit": "metric"}, {"days": 1, "share": 2}, {"days": 1, "quiet": "yes"}],
)
def test_lenient_but_valid_parameters_are_accepted(parameters: Any) -> None:
    assert found(plan(LOCATE, {**FETCH, "parameters": parameters}, RESPOND)) == []


class Strange(BaseModel):
    x: Literal["a"] | int = "a"

    @field_validator("x")
    @classmethod
    def fails(cls, value: Any) -> Any:
        if value == 13:
            raise ZeroDivisionError("thirteen")
        return value


def test_an_exception_in_a_validator_is_a_parameter_problem() -> None:
    catalog = StaticCatalog.of(CapabilitySpec("odd", "Odd.", parameters=Strange))

    def problems(value: Any) -> list[str]:
        step = {"context_key": "o", "capability": "odd", "parameters": {"x": value}}
        return [f"{p.field} {p.cause}" for p in check_plan(plan(step, RESPOND), catalog)]

    assert problems(13) == ["parameters the validator failed: ZeroDivisionError('thirteen')"]
    assert problems("b") == ["parameters.x input should be 'a'"]


def test_odd_values_never_raise() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"x": deep}
    for value in (deep, [deep], "x" * 10**6, 10**5000, {1: 2}, b"raw", {"a", "b"}, "\ud800"):
        for name in ("context_key", "capability", "expected_output", "parameters", "inputs"):
            value_plan = plan({**FETCH, name: value}, RESPOND)
            problems = check_plan(value_plan, CATALOG, {"PLACE": ["place"]})
            assert problems, (name, type(value))
            assert all(len(str(problem)) < 1000 for problem in problems)
            repair_plan(value_plan, CATALOG, {"PLACE": ["place"]})
    assert found(plan({**LOCATE, "parameters": {"x": [1]}, "inputs": deep}, RESPOND))
    assert [
        c for c, _, _ in found(plan(LOCATE, {**FETCH, "parameters": {"days": deep}}, RESPOND))
    ] == ["CG-P21"]
    # Freed level by level: the interpreter would recurse.
    while deep:
        deep = deep.pop("x")


def _best(call: Any, times: int = 7) -> float:
    spent = []
    for _ in range(times):
        start = time.process_time()
        call()
        spent.append(time.process_time() - start)
    return min(spent)


def _chain(length: int) -> dict[str, Any]:
    steps = [{"context_key": "k0", "capability": "read_file", "inputs": [{"FILES": "f"}]}]
    for number in range(1, length - 1):
        steps.append(
            {
                "context_key": f"k{number}",
                "capability": "merge",
                "expected_output": "DATA",
                "parameters": {"n": number},
                "inputs": [{"DATA": f"k{number - 1}"}],
            }
        )
    return plan(*steps, RESPOND)


def _dense(length: int, width: int) -> dict[str, Any]:
    value = _chain(length)
    for number, step in enumerate(value["steps"][1:-1], 1):
        step["inputs"] = [{"DATA": f"k{n}"} for n in range(max(0, number - width), number)]
    return value


def _inventions(length: int) -> dict[str, Any]:
    return plan(
        *(
            {"context_key": f"k{n}", "capability": f"fetch{n}", "inputs": [{f"T{n}": f"x{n}"}]}
            for n in range(length)
        )
    )


@pytest.mark.parametrize(
    ("value", "clean"),
    [(_chain(1000), True), (_dense(1000, 60), True), (_inventions(1000), False)],
    ids=["chain", "dense", "inventions"],
)
def test_a_thousand_steps_take_50_ms_of_a_processor(value: Any, clean: bool) -> None:
    assert (check_plan(value, CATALOG, {"FILES": ["f"]}) == []) is clean
    assert _best(lambda: check_plan(value, CATALOG, {"FILES": ["f"]})) < 0.150
