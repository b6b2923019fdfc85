"""Tests of parameter models that are generated from JSON schemas."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from capgraph.base.errors import MissingExtraError, ValidationError
from capgraph.base.spec import CapabilitySpec, parameter_names
from capgraph.planning import validated_parameters
from capgraph.planning.json_parameters import json_parameters
from capgraph.planning.parameters import find_parameter_errors, required_parameters

TREE: dict[str, Any] = {
    "type": "dict",
    "required": ["a", "class"],
    "properties": {
        "a": {"type": "int"},
        "class": {"type": "String", "enum": ["x", "y"]},
        "schema": {"type": "string"},
        "inner": {"type": "HashMap", "properties": {"k": {"type": "float", "default": 1.5}}},
        "many": {"type": "tuple", "items": {"properties": {"z": {"type": ["string", "null"]}}}},
        "colours": {"type": "array", "items": {"type": "string"}, "enum": ["red", "blue"]},
        "tree": {"$ref": "#/definitions/Tree"},
        "place": {"type": "string", "default": None},
        "open": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "definitions": {
        "Tree": {
            "type": "object",
            "properties": {"left": {"$ref": "#/definitions/Tree"}, "v": {"type": "integer"}},
        }
    },
}
MODEL = json_parameters("tree", TREE)
RIGHT = {"a": 1, "class": "x"}


def wrong(given: dict[str, Any], model: Any = MODEL) -> list[tuple[Any, ...]]:
    return [fault.path[1:] for fault in find_parameter_errors(model, given, "tree")]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"a": 1.0},
        {"schema": "s", "inner": {"k": 2}, "many": [{"z": None}, {"z": "a"}]},
        {"tree": {"left": {"left": {"v": 1}}}, "colours": ["red"], "open": {"any": 1}},
        {"place": None},
    ],
)
def test_valid_parameters_pass(more: dict[str, Any]) -> None:
    assert wrong({**RIGHT, **more}) == []


@pytest.mark.parametrize(
    ("given", "places"),
    [
        ({"a": True, "class": "x"}, [("a",)]),
        ({"a": 1, "class": "z"}, [("class",)]),
        ({"class": "x"}, [("a",)]),
        ({**RIGHT, "b": 1}, [("b",)]),
        ({**RIGHT, "inner": {"k": 1, "q": 1}}, [("inner", "q")]),
        ({**RIGHT, "many": [{}, {"z": 3}, {"y": 1}]}, [("many", 2, "y"), ("many", 1, "z")]),
        ({**RIGHT, "colours": ["red", "green"]}, [("colours", 1)]),
        (
            {**RIGHT, "tree": {"left": {"v": "s", "w": 1}}},
            [("tree", "left", "w"), ("tree", "left", "v")],
        ),
        ({**RIGHT, "open": {"any": "s"}}, [("open", "any")]),
    ],
)
def test_every_error_is_reported_with_its_path(given: dict[str, Any], places: list[Any]) -> None:
    assert sorted(map(str, wrong(given))) == sorted(map(str, places))


def test_names_and_defaults() -> None:
    assert required_parameters(MODEL) == ["a", "class"]
    assert parameter_names(MODEL) == list(TREE["properties"])
    spec = CapabilitySpec(
        "tree",
        "Tree.",
        parameters=json_parameters(
            "tree",
            {
                "properties": {
                    "n": {"type": "integer", "default": 3},
                    "m": {"type": "integer", "default": "many"},
                    "o": {},
                    "class": {"default": {"a": 1}},
                }
            },
        ),
    )
    model, plain = validated_parameters(spec, {})
    assert plain == {"n": 3, "class": {"a": 1}}
    assert model.n == 3
    assert validated_parameters(spec, {"o": 1, "class": {}})[1] == {"o": 1, "n": 3, "class": {}}


def test_the_exact_form_of_a_value_is_suggested() -> None:
    [fault] = find_parameter_errors(MODEL, {"a": "1", "class": "x"}, "tree")
    assert fault.corrected_value == 1


def test_combined_schemas_are_validated() -> None:
    base = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
    model = json_parameters(
        "both",
        {
            "allOf": [base],
            "anyOf": [
                {"properties": {"b": {"type": "string"}}, "required": ["b"]},
                {"properties": {"c": {"type": "string"}}, "required": ["c"]},
            ],
            "properties": {"d": {}},
        },
    )
    assert wrong({"a": 1, "b": "x", "d": 1}, model) == []
    assert wrong({"a": 1, "c": "x"}, model) == []
    assert wrong({"a": 1}, model) == [()]
    assert wrong({"a": 1, "b": "x", "e": 1}, model) == [("e",)]
    anything = json_parameters("any", {"additionalProperties": True})
    assert wrong({"x": [1]}, anything) == []
    named = json_parameters("named", {"patternProperties": {"^x": {"type": "integer"}}})
    assert wrong({"x1": 1}, named) == []
    assert wrong({"x1": "a"}, named) == [("x1",)]


def test_an_invalid_schema_is_refused() -> None:
    for schema, value in [
        ({"properties": {"a": {"$ref": "https://x.test/s.json"}}}, "https://x.test/s.json"),
        ({"properties": {"a": {"minimum": "low"}}}, "low"),
    ]:
        with pytest.raises(ValidationError, match=value):
            json_parameters("odd", schema)


def test_an_unknown_type_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    model = json_parameters("odd", {"properties": {"a": {"type": "Foo"}}})
    assert "'Foo'" in caplog.text
    assert wrong({"a": [1]}, model) == []


def test_every_pattern_is_matched_in_bounded_time(caplog: pytest.LogCaptureFixture) -> None:
    evil = "^(a+)+$"
    schema = {
        "properties": {"x": {"type": "string", "pattern": evil}, "b": {"pattern": "(?=x)y"}},
        "patternProperties": {evil: {"type": "integer"}},
    }
    model = json_parameters("evil", schema)
    text = "a" * 60
    assert wrong({"x": text, text: 1}, model) == []
    assert wrong({"x": text + "!", text: "x", text + "!": "x"}, model) == [("x",), (text,)]
    assert wrong({"b": "z"}, model) == []
    assert "linear time" in caplog.text


def test_the_error_names_the_command_that_installs_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(MissingExtraError, match=r"capgraph\[tools\]"):
        json_parameters("any", {})
