"""What describes itself becomes a capability: name, schema and call."""

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


async def test_parameters_come_by_the_names_of_the_schema() -> None:
    made = capability_from_schema("make-it", "Makes it.", SCHEMA, given)
    assert made.capability_spec.provides == ("MAKE_IT_RESULT",)
    assert made.capability_spec.parameters.model_json_schema() == SCHEMA
    run = await run_capability(made, parameters={"a": 2})
    assert run.contexts == {"MAKE_IT_RESULT": {"a": 2, "class": "x"}}


async def test_a_model_of_parameters_comes_as_its_values() -> None:
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
async def test_what_is_no_dictionary_is_a_value(result: Any, data: Any) -> None:
    async def call(values: dict[str, Any], step: Any) -> Any:
        return result

    run = await run_capability(capability_from_schema("one", "One.", None, call, provides="ONE"))
    assert run.contexts == {"ONE": data}


async def test_a_context_type_is_checked() -> None:
    async def call(values: dict[str, Any], step: Any) -> Any:
        return {"metres": values["metres"]}

    schema = {"properties": {"metres": {}}}
    made = capability_from_schema("level", "Level.", schema, call, provides=Level)
    assert (await run_capability(made, parameters={"metres": 2})).contexts == {
        "LEVEL": Level(metres=2.0)
    }
    with pytest.raises(ValidationError, match="metres"):
        await run_capability(made, parameters={"metres": "high"})


async def test_nothing_is_taken_that_is_not_declared() -> None:
    with pytest.raises(ValidationError, match="b 1"):
        await run_capability(
            capability_from_schema("none", "None.", None, given), parameters={"b": 1}
        )


def test_a_schema_outside_of_the_document_is_not_fetched() -> None:
    with pytest.raises(ValidationError, match="outside their schema"):
        capability_from_schema(
            "far", "Far.", {"properties": {"a": {"$ref": "http://x.test/s"}}}, given
        )
    with pytest.raises(ValidationError, match="low"):
        capability_from_schema("odd", "Odd.", {"properties": {"a": {"minimum": "low"}}}, given)


async def test_a_declared_capability_is_planned_and_run() -> None:
    made = capability_from_schema(
        "make.it", "Makes it.", SCHEMA, given, provides="MADE", effect="once"
    )
    plan = {"steps": [{"context_key": "k", "capability": "make.it", "parameters": {"a": 3}}]}
    out = await build_graph([made]).ainvoke(
        {"messages": [("user", "make it")], "planning_execution_plan": plan}
    )
    assert out["capability_context_data"]["MADE"]["k"] == {"a": 3, "class": "x"}
