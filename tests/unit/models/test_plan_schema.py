"""Plan schemas: each style stays within the limits of its providers."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from capgraph.base import CapabilityContext, CapabilitySpec, Requirement
from capgraph.base.value_context import create_value_context
from capgraph.models.plan_schema import (
    MAX_GRAMMAR_STEPS,
    open_schema,
    plan_schema,
    remove_default_nulls,
    usable_features,
)
from capgraph.models.signatures import describe_capability

LIMITS = {
    # OpenAI: the limits of its documentation, as code against them quoted it on 2026-11-23.
    "strict": (
        {
            "properties": 5000,
            "values": 1000,
            "characters": 120_000,
            "depth": 10,
            "enum_characters": 15_000,
        },
        "developers.openai.com/api/docs/guides/structured-outputs#supported-schemas",
    ),
    # Anthropic: the limits that its errors name ("too many optional parameters ... limit: 24",
    # "too many parameters with union types ... limit: 16"), in reports read on 2026-11-23.
    "optional": (
        {"left_out": 24, "unions": 16},
        "platform.claude.com/docs/en/build-with-claude/structured-outputs",
    ),
}


class Unit(Enum):
    KELVIN = "K"
    CELSIUS = "C"


class Place(BaseModel):
    name: str
    floor: int | None = None


class Parameters(BaseModel):
    place: Place
    unit: Unit = Unit.KELVIN
    days: int = Field(3, ge=1, le=9)
    tags: list[str] = Field(default_factory=list, max_length=4)
    mode: Literal["fast", "slow"] | None = None


READ = CapabilitySpec("read", "Reads.", provides=("READING",), parameters=Parameters)
ADD = CapabilitySpec("add_up", "Adds.", requires=(Requirement("READING", "many"),))
STYLES: list[Any] = ["grammar", "strict", "optional"]
STEP = {"capability": "read", "parameters": {"place": {"name": "roof"}}}


def parts_of(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for part in schema.values():
            yield from parts_of(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from parts_of(part)


@pytest.mark.parametrize("style", STYLES)
def test_each_capability_has_a_variant_that_starts_with_its_name(style: Any) -> None:
    schema, is_typed = plan_schema([READ, ADD], style, {"inputs"})
    assert is_typed
    assert schema["type"] == "object"
    assert "anyOf" not in schema
    forms = schema["properties"]["steps"]["items"]["anyOf"]
    assert all(next(iter(form["properties"])) == "capability" for form in forms)
    jsonschema.Draft202012Validator.check_schema(schema)
    wrong = {"steps": [{"capability": "invented"}], "answer": ""}
    assert not jsonschema.Draft202012Validator(schema).is_valid(wrong)


def test_a_grammar_has_constants_bounds_and_optional_properties() -> None:
    schema, _ = plan_schema([READ, ADD], "grammar")
    valid = jsonschema.Draft202012Validator(schema).is_valid
    assert valid({"steps": [STEP]})
    assert not valid({"steps": [{"capability": "read"}]})
    assert not valid({"steps": [{**STEP, "parameters": {**STEP["parameters"], "x": 1}}]})  # type: ignore[dict-item]
    assert not valid({"steps": [{**STEP, "parameters": {**STEP["parameters"], "days": 10}}]})  # type: ignore[dict-item]
    assert not valid({"steps": [STEP] * (MAX_GRAMMAR_STEPS + 1)})
    assert {"const": "read"} in list(parts_of(schema))


def test_strict_requires_every_property_and_has_no_bounds() -> None:
    schema, _ = plan_schema([READ, ADD], "strict", {"inputs", "when", "for_each", "references"})
    for part in parts_of(schema):
        if part.get("type") == "object":
            assert part["required"] == list(part["properties"])
            assert part["additionalProperties"] is False
        assert not part.keys() & {"const", "default", "minimum", "maxItems", "oneOf", "$ref"}
    parameters = {"place": {"name": "roof", "floor": None}, "unit": None, "days": None}
    step = {"capability": "read", "parameters": {**parameters, "tags": None, "mode": None}}
    schema, _ = plan_schema([READ, ADD], "strict")
    assert jsonschema.Draft202012Validator(schema).is_valid({"steps": [step], "answer": None})
    remove_default_nulls(step, READ)
    assert step["parameters"] == {"place": {"name": "roof", "floor": None}}


def test_optional_rendering_does_not_require_defaults() -> None:
    schema, _ = plan_schema([READ, ADD], "optional")
    for part in parts_of(schema):
        assert not part.keys() & {"const", "default", "minimum", "maxItems", "oneOf", "$ref"}
        assert part != {"type": "null"}
    assert jsonschema.Draft202012Validator(schema).is_valid({"steps": [STEP]})


@pytest.mark.parametrize("style", list(LIMITS))
def test_schema_beyond_provider_limits_lists_names_only(style: Any) -> None:
    wide = type(
        "Wide",
        (BaseModel,),
        {"__annotations__": dict.fromkeys("abcdefgh", int)} | dict.fromkeys("abcdefgh", 1),
    )
    limits, _ = LIMITS[style]
    few = [CapabilitySpec(f"c{n}", "Does.", parameters=wide) for n in range(2)]
    many = [CapabilitySpec(f"c{n}", "Does.", parameters=wide) for n in range(700)]
    schema, is_typed = plan_schema(few, style)
    assert is_typed
    if "left_out" in limits:
        left_out = sum(
            len(part["properties"]) - len(part["required"])
            for part in parts_of(schema)
            if part.get("type") == "object"
        )
        assert left_out <= limits["left_out"]
    schema, is_typed = plan_schema(many, style)
    assert not is_typed
    names = schema["properties"]["steps"]["items"]["properties"]["capability"]["enum"]
    assert names == [*(spec.name for spec in many), "clarify"]
    assert plan_schema(many, "grammar")[1], "a grammar has no such limit"


def test_long_enumeration_beyond_the_limit_lists_names_only() -> None:
    names = Enum("Names", {f"n{i}": f"{'x' * 60}{i}" for i in range(260)})  # type: ignore[misc]
    one = type("One", (BaseModel,), {"__annotations__": {"name": names}})
    spec = CapabilitySpec("find", "Finds.", parameters=one)
    assert not plan_schema([spec], "strict")[1]
    assert plan_schema([spec], "grammar")[1]


def test_types_unsupported_by_strict_mode_list_names_only() -> None:
    class Loose(BaseModel):
        values: dict[str, int]

    spec = CapabilitySpec("loose", "Is loose.", parameters=Loose)
    assert plan_schema([spec], "grammar")[1]
    assert not plan_schema([spec], "strict")[1]
    assert not plan_schema([spec], "optional")[1]


def test_recursive_parameter_is_unconstrained_in_a_grammar() -> None:
    class Node(BaseModel):
        children: list[Node] = []

    Node.model_rebuild(_types_namespace={"Node": Node})
    spec = CapabilitySpec("tree", "Grows.", parameters=Node)
    schema, is_typed = plan_schema([spec], "grammar")
    assert is_typed
    plan = {"steps": [{"capability": "tree", "parameters": {"children": [{"children": []}]}}]}
    assert jsonschema.Draft202012Validator(schema).is_valid(plan)


def test_open_schema_contains_only_requested_features() -> None:
    plain = open_schema([READ], ())["properties"]["steps"]["items"]["properties"]
    assert set(plain) == {"capability", "parameters", "task_objective"}
    more = open_schema([READ], {"when", "wait_until"})["properties"]["steps"]["items"]["properties"]
    assert set(more) - set(plain) == {"context_key", "when", "wait_until"}


class Order(CapabilityContext):
    order_id: str
    note: str
    amounts: list[float]


class Wanted(BaseModel):
    order_id: str


class Sent(BaseModel):
    text: str


class Amount(BaseModel):
    amount: float


def test_usable_features_depend_on_outputs_and_parameters() -> None:
    find = CapabilitySpec("find", "Finds.", provides=("ORDER",), context_types=(Order,))
    ship = CapabilitySpec("ship", "Ships.", parameters=Wanted)
    send = CapabilitySpec("send", "Sends.", parameters=Sent)
    pay = CapabilitySpec("pay", "Pays.", parameters=Amount)
    assert not usable_features([find])
    assert usable_features([find, ship], by_name=True) == {"references": {("ship", "order_id")}}
    assert not usable_features([find, send], by_name=True)
    assert usable_features([find, send]) == {"references": {("send", "text")}}
    assert "for_each" in usable_features([find, pay], by_name=True)
    assert usable_features([READ, ADD]) == {"inputs": frozenset()}


def test_only_matching_parameters_may_refer_to_an_output() -> None:
    find = CapabilitySpec("find", "Finds.", provides=("ORDER",), context_types=(Order,))
    ship = CapabilitySpec("ship", "Ships.", parameters=Wanted)
    send = CapabilitySpec("send", "Sends.", parameters=Sent)
    usable = usable_features([find, ship, send], by_name=True)
    referring = frozenset().union(*usable.values())
    schema, _ = plan_schema([find, ship, send], "grammar", usable, reference_parameters=referring)
    forms = {
        form["properties"]["capability"]["const"]: form["properties"]
        for form in schema["properties"]["steps"]["items"]["anyOf"]
    }
    ship_to = forms["ship"]["parameters"]["properties"]["order_id"]
    assert [part["type"] for part in ship_to["anyOf"]] == ["string", "object"]
    assert forms["send"]["parameters"]["properties"]["text"] == {"type": "string"}


def test_signature_omits_lengths_and_shows_tuples() -> None:
    class Period(BaseModel):
        column: str = Field(max_length=500)
        period: tuple[int, int | None] = (1, 2)

    spec = CapabilitySpec("query", "Queries.", parameters=Period)
    assert describe_capability(spec).startswith(
        "- query(column: string, period: [integer, integer] = [1, 2])"
    )


class Hotel(TypedDict):
    id: int
    name: str


class Booking(BaseModel):
    hotel_id: int


class Stay(BaseModel):
    nights: int


class Color(BaseModel):
    color: Literal["red", "blue"]


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(
    "form", [None, Any, list[Any], list[Hotel], dict[str, Any], dict[str, Hotel]]
)
def test_list_elements_and_untyped_results_can_be_referenced(form: Any, by_name: bool) -> None:
    kinds = () if form is None else (create_value_context("search", form, __name__),)
    search = CapabilitySpec("search", "S.", provides=("SEARCH",), context_types=kinds)
    book = CapabilitySpec("book", "Books.", parameters=Booking)
    stay = CapabilitySpec("stay", "Stays.", parameters=Stay)
    paint = CapabilitySpec("paint", "Paints.", parameters=Color)
    assert "references" in usable_features([search, book], by_name=by_name)
    # A small model copies references where the request has the value.
    assert ("references" in usable_features([search, stay], by_name=by_name)) is not by_name
    assert "references" not in usable_features([search, paint], by_name=by_name)


def test_a_signature_has_types_defaults_and_descriptions() -> None:
    assert describe_capability(READ) == (
        '- read(place: {name: string, floor?: integer}, unit: "K" | "C" = "K",'
        ' days: integer 1..9 = 3, tags?: string[], mode?: "fast" | "slow") -> READING: Reads.'
    )
    assert describe_capability(ADD, {"READING": ["read"]}).endswith(
        "Needs READING (many) from read."
    )
