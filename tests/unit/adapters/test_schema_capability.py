"""Capabilities created from a name, a schema, and a function."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pydantic import BaseModel

from capgraph import CapabilityContext, build_graph
from capgraph.adapters.schema_capability import capability_from_schema
from capgraph.base.errors import ValidationError
from capgraph.testing import run_capability

SCHEMA: Any = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "class": {"type": "string", "default": "x"}},
    "required": ["a"],
}


class Level(CapabilityContext):
    metres: float


@dataclasses.dataclass
class Point:
    x: int


async def given(values: dict[str, Any], step: Any) -> Any:
    return values


async def test_parameters_are_passed_by_schema_name() -> None:
    made = capability_from_schema("make-it", "Makes it.", SCHEMA, given)
    assert made.capability_spec.provides == ("MAKE_IT_RESULT",)
    assert made.capability_spec.parameters.model_json_schema() == SCHEMA
    run = await run_capability(made, parameters={"a": 2})
    assert run.contexts == {"MAKE_IT_RESULT": {"a": 2, "class": "x"}}


async def test_pydantic_parameters_are_passed_as_values() -> None:
    class Options(BaseModel):
        inner: dict[str, int] = {}
        n: int

    made = capability_from_schema("many", "Many.", Options, given, provides="MANY")
    run = await run_capability(made, parameters={"n": 2})
    assert run.contexts == {"MANY": {"n": 2, "inner": {}}}


@pytest.mark.parametrize(
    ("result", "data"),
    [
        ("text", {"value": "text"}),
        ([1], {"value": [1]}),
        (None, {"value": None}),
        (Point(1), {"x": 1}),
    ],
)
async def test_plain_result_is_stored_under_value(result: Any, data: Any) -> None:
    async def call(values: dict[str, Any], step: Any) -> Any:
        return result

    run = await run_capability(capability_from_schema("one", "One.", None, call, provides="ONE"))
    assert run.contexts == {"ONE": data}


async def test_result_is_validated_against_the_context_type() -> None:
    async def call(values: dict[str, Any], step: Any) -> Any:
        return {"metres": values["metres"]}

    schema = {"properties": {"metres": {}}}
    made = capability_from_schema("level", "Level.", schema, call, provides=Level)
    assert (await run_capability(made, parameters={"metres": 2})).contexts == {
        "LEVEL": Level(metres=2.0)
    }
    with pytest.raises(ValidationError, match="metres"):
        await run_capability(made, parameters={"metres": "high"})


async def test_unknown_parameters_and_options_are_rejected() -> None:
    with pytest.raises(ValidationError, match="b 1"):
        await run_capability(
            capability_from_schema("none", "None.", None, given), parameters={"b": 1}
        )


def test_external_schema_references_are_not_fetched() -> None:
    with pytest.raises(ValidationError, match="outside their schema"):
        capability_from_schema(
            "far", "Far.", {"properties": {"a": {"$ref": "http://x.test/s"}}}, given
        )
    with pytest.raises(ValidationError, match="low"):
        capability_from_schema("odd", "Odd.", {"properties": {"a": {"minimum": "low"}}}, given)


async def test_capability_from_schema_runs_in_a_plan() -> None:
    made = capability_from_schema(
        "make.it", "Makes it.", SCHEMA, given, provides="MADE", effect="once"
    )
    plan = {"steps": [{"context_key": "k", "capability": "make.it", "parameters": {"a": 3}}]}
    out = await build_graph([made]).ainvoke(
        {"messages": [("user", "make it")], "planning_execution_plan": plan}
    )
    assert out["capability_context_data"]["MADE"]["k"] == {"a": 3, "class": "x"}
