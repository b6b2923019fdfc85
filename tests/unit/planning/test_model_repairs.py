"""Tests of the repairs of plans that models write."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from capgraph.base import CapabilitySpec, Requirement
from capgraph.planning import StaticCatalog, check_plan, repair_plan
from capgraph.planning.model_repairs import MODEL_REPAIRS, parse_model_plan
from tests.support.sweeps import examples


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")

    city: str
    day: Literal["today", "tomorrow"] = "today"
    days: int = 1
    wind: dict[str, float] = {}


CATALOG = StaticCatalog.of(
    CapabilitySpec("read_weather", "Read it.", provides=("WEATHER",), parameters=Place),
    CapabilitySpec("show", "Show it.", requires=(Requirement("WEATHER"),)),
)
STEP = {"capability": "read_weather", "parameters": {"city": "Oslo"}}
PLAN = {"steps": [STEP]}


@pytest.mark.parametrize(
    "reply",
    [
        f"```json\n{json.dumps(PLAN)}\n```",
        f"Here it is: {json.dumps(PLAN)} I hope it helps.",
        json.dumps(PLAN),
        {"name": "ExecutionPlan", "arguments": PLAN},
        {"name": "plan", "arguments": json.dumps(PLAN)},
        {"ExecutionPlan": PLAN},
        [PLAN],
        [STEP],
        STEP,
        {"steps": STEP},
        {"steps": json.dumps([STEP])},
        {"name": "read_weather", "arguments": {"city": "Oslo"}},
        {"steps": [{"tool": "read_weather", "args": '{"city": "Oslo"}'}]},
        {"steps": [{**STEP, "when": {}, "for_each": [], "wait_until": " ", "optional": None}]},
        {"steps": [{**STEP, "parameters": {"properties": {"city": "Oslo"}}}]},
        {"steps": [{**STEP, "parameters": {"city": {"type": "string", "default": "Oslo"}}}]},
        {"steps": [{**STEP, "parameters": {"City": "Oslo", "day": None}}]},
        {"steps": [{**STEP, "parameters": [{"city": "Oslo"}]}]},
    ],
)
def test_a_malformed_reply_is_repaired(reply: Any) -> None:
    before = copy.deepcopy(reply)
    assert parse_model_plan(reply, CATALOG).plan == PLAN
    assert reply == before


@pytest.mark.parametrize(
    "reply",
    [
        json.dumps([STEP, STEP])[:-30],
        f"{json.dumps(STEP)} and {json.dumps(STEP)[:-5]}",
        f"{json.dumps(PLAN)} or rather {json.dumps({'steps': []})}",
        "I cannot do that.",
        "<steps><step/></steps>",
        {"plan": []},
        {"name": "nothing_of_this_name", "arguments": {"city": "Oslo"}},
        None,
        7,
    ],
)
def test_a_reply_without_a_complete_plan_is_returned_unchanged(reply: Any) -> None:
    assert parse_model_plan(reply, CATALOG) == (reply, {})


def test_an_object_is_kept_if_the_parameter_accepts_objects() -> None:
    wind = {"type": 1.0, "default": 2.0}
    plan = {"steps": [{**STEP, "parameters": {"city": "Oslo", "wind": wind}}]}
    assert parse_model_plan(plan, CATALOG).plan is plan


def test_every_repair_has_a_unique_name_and_a_row_in_the_guide() -> None:
    guide = Path(__file__).parents[3] / "docs/guides/use_a_model.md"
    rows = [
        f"| `{row.name}` | {_cell(row.original_form)} | {_cell(row.repaired_form)} |"
        for row in MODEL_REPAIRS
    ]
    lines = guide.read_text().splitlines()
    first = lines.index(rows[0])
    assert lines[first : first + len(rows)] == rows
    assert len({row.name for row in MODEL_REPAIRS}) == len(rows)


def _cell(text: str) -> str:
    return (
        f"`{text}`" if text.startswith(('"', "{", "[")) and text.endswith(('"', "}", "]")) else text
    )


WORDS = st.sampled_from(
    [
        "capability",
        "parameters",
        "steps",
        "name",
        "arguments",
        "properties",
        "when",
        "for_each",
        "city",
        "day",
        "days",
        "City",
        "default",
        "type",
        "inputs",
        "wait_until",
        "wind",
        "answer",
    ]
)
JSON: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(
        ["read_weather", "Read Weather", "show", "", "none", "Oslo", "Tomorrow", "{}"]
    )
    | st.sampled_from([json.dumps(PLAN), json.dumps(STEP), "[{}]", '{"city": "Oslo"}']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
@settings(max_examples=examples(300))
def test_parsing_is_idempotent(reply: Any) -> None:
    before = copy.deepcopy(reply)
    once = parse_model_plan(reply, CATALOG)
    assert reply == before
    if not isinstance(once.plan, str):
        assert parse_model_plan(once.plan, CATALOG) == (once.plan, {})


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "parameters": st.fixed_dictionaries(
                    {"city": st.text()}, optional={"days": st.just(2)}
                )
            },
            optional={
                "optional": st.booleans(),
                "look_again": st.booleans(),
                "when": st.none(),
                "for_each": st.none(),
                "inputs": st.none() | st.just([]),
                "task_objective": st.text(),
                "wait_until": st.just("2h"),
            },
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=examples(100))
def test_a_valid_plan_is_returned_as_the_same_object(steps: list[dict[str, Any]]) -> None:
    plan = {
        "steps": [
            {"context_key": f"k{n}", "capability": "read_weather", **step}
            for n, step in enumerate(steps)
        ]
    }
    right: Any = repair_plan(plan, CATALOG).plan
    assert check_plan(right, CATALOG) == []
    assert parse_model_plan(right, CATALOG) == (right, {})
    assert parse_model_plan(right, CATALOG).plan is right


def test_texts_that_name_no_result_are_no_inputs() -> None:
    steps = [
        {"capability": "read_weather", "context_key": "oslo", "parameters": {"city": "Oslo"}},
        {"capability": "show", "inputs": ["Oslo in June", "oslo", "1", "kept", "WEATHER"]},
    ]
    found = parse_model_plan({"steps": steps}, CATALOG, {"WEATHER": {"kept": {}}})

    assert found.plan["steps"][1]["inputs"] == ["oslo", "1", "kept"]
    assert found.repairs == {"needless_inputs": 1}
