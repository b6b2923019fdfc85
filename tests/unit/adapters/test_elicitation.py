"""Conversion of questions to MCP elicitation forms, and of answers back."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from mcp_types import ElicitResult
from pydantic import BaseModel, Field

from capgraph.adapters.elicitation import _build_step_fields, read_answer


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int


class Wanted(BaseModel):
    decision: str = "left"
    colour: Colour = Colour.RED
    times: int | None = Field(None, ge=1, description="How often.")
    where: Point = Point(x=1)
    names: list[str] = []
    slow: bool = False


STEP: dict[str, Any] = {
    "context_key": "draw",
    "capability": "draw",
    "decisions": ["approve", "edit", "reject", "respond"],
    "parameters": Wanted().model_dump(mode="json"),
    "parameters_schema": Wanted.model_json_schema(),
}


def answered(*given: dict[str, Any], steps: Any = (STEP,)) -> Any:
    question = {"steps": list(steps)}
    names = ["q"] if len(steps) == 1 else [f"q/{place}" for place in range(len(steps))]
    accepted = [ElicitResult(action="accept", content=one) for one in given]
    return read_answer("q", question, dict(zip(names, accepted, strict=True)))


def test_each_parameter_is_a_form_field() -> None:
    fields, needed = _build_step_fields(STEP)
    assert needed == "decision"
    assert list(fields) == [
        *("decision", "reason", "message", "parameters.decision", "colour", "times"),
        *("where", "names", "slow"),
    ]
    assert fields["colour"]["enum"] == ["red", "blue"]
    assert fields["times"] == {
        "type": "integer",
        "minimum": 1,
        "title": "Times",
        "description": "How often.",
    }
    assert fields["where"]["default"] == '{"x": 1}'
    assert fields["where"]["description"] == "As JSON."
    assert {one["type"] for one in fields.values()} <= {"string", "integer", "boolean"}


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"where": '{"x": 2}'}, {"where": {"x": 2}}),
        ({"times": 3, "colour": "red"}, {"times": 3}),
        ({"parameters.decision": "right"}, {"decision": "right"}),
        ({"names": "no JSON"}, {"names": "no JSON"}),
    ],
)
def test_approval_with_changed_values_is_an_edit(given: Any, changed: Any) -> None:
    wanted = {"draw": {"decision": "edit", "parameters": {**STEP["parameters"], **changed}}}
    for word in ("approve", "edit"):
        assert answered({"decision": word, **given}) == wanted


def test_approval_with_unchanged_values_is_an_approval() -> None:
    same = {"decision": "approve", "where": '{"x":1}', "slow": False, "reason": "", "message": ""}
    assert answered(same) == {"draw": {"decision": "approve"}}


def test_each_decision_reads_its_text_field() -> None:
    texts = {"reason": "too much", "message": "It is blue."}
    rejected = {"draw": {"decision": "reject", "reason": "too much"}}
    assert answered({"decision": "reject", **texts}) == rejected
    told = {"draw": {"decision": "respond", "message": "It is blue."}}
    assert answered({"decision": "respond", **texts}) == told


def test_each_of_several_steps_has_a_form() -> None:
    other = {**STEP, "context_key": "paint"}
    given = ({"decision": "approve"}, {"decision": "reject"})
    wanted = {"draw": {"decision": "approve"}, "paint": {"decision": "reject"}}
    assert answered(*given, steps=(STEP, other)) == wanted


def test_declining_rejects_the_step() -> None:
    found = read_answer("q", {"steps": [STEP]}, {"q": ElicitResult(action="decline")})
    assert found["draw"]["decision"] == "reject"
    assert read_answer("q", "How many?", {"q": ElicitResult(action="decline")}) is None
