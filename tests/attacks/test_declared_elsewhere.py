"""What a tool's server declares: its name, its schema."""

from __future__ import annotations

import csv
import io
import time
from typing import Any

import pytest

from capgraph import build_graph
from capgraph.adapters import tool_capability
from capgraph.base import ConfigurationError, ValidationError
from capgraph.configs.settings import PermissionSettings, RoleSettings, Settings
from capgraph.governance import PermissionMode, PermissionPolicy, RolePermissionConfig
from capgraph.helpers.files import to_csv
from capgraph.planning.json_parameters import json_parameters


def doubling(levels: int, word: str) -> dict[str, Any]:
    """Return a schema of which each definition names the next one twice."""

    def twice(name: str) -> dict[str, Any]:
        ref = {"$ref": f"#/$defs/{name}"}
        return {"properties": {"a": ref, "b": ref}} if word == "properties" else {word: [ref, ref]}

    defs = {f"d{n}": twice(f"d{n + 1}") for n in range(levels)}
    return {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/d0"}},
        "$defs": {**defs, f"d{levels}": {"type": "object"}},
    }


@pytest.mark.parametrize("word", ["allOf", "anyOf", "oneOf", "properties"])
def test_a_schema_that_doubles_at_each_level_is_refused(word: str) -> None:
    began = time.thread_time()
    with pytest.raises(ValidationError, match="parts"):
        json_parameters("tool", doubling(20, word))
    assert time.thread_time() - began < 2


def test_a_deep_or_wide_schema_is_refused() -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(500):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(ValidationError, match="deep"):
        json_parameters("tool", deep)
    wide = {"properties": {f"p{n}": {"type": "string"} for n in range(30_000)}}
    with pytest.raises(ValidationError, match="parts"):
        json_parameters("tool", wide)


def test_a_schema_that_refers_to_itself_is_used() -> None:
    tree = {
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/t"}}},
    }
    model = json_parameters("tool", {**tree, "$defs": {"t": tree}})
    assert model.model_validate({"children": [{"children": []}]})


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def recursive(word: str, reference: str) -> dict[str, Any]:
    """Return a schema that validates each nested value twice, against itself."""
    again: dict[str, Any] = {"properties": {"a": {reference: "#d"}}}
    both: Any = {
        "if": {"if": again, "then": again},
        "patternProperties": {"patternProperties": {"a": {reference: "#d"}, "^a": again}},
        "dependentSchemas": {"dependentSchemas": {"a": again}, **again},
        "unevaluatedProperties": {"unevaluatedProperties": False, "allOf": [again]},
    }.get(word, {word: [again, again]})
    if word == "patternProperties":
        both["patternProperties"]["^a"] = {reference: "#d"}
    ends = {"$anchor": "d", "$dynamicAnchor": "d"}
    return {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/d"}},
        "$defs": {"d": {**both, **ends}},
    }


@pytest.mark.parametrize("reference", ["$ref", "$dynamicRef"])
@pytest.mark.parametrize(
    "word",
    ["allOf", "oneOf", "if", "patternProperties", "dependentSchemas", "unevaluatedProperties"],
)
def test_a_nested_value_is_not_validated_without_end(word: str, reference: str) -> None:
    """A variant: each reference is small, and only the value decides how often it is followed."""
    schema = recursive(word, reference)
    model = json_parameters("tool", schema)
    assert word == "oneOf" or model.model_validate({"x": nested(3)})
    began = time.thread_time()
    with pytest.raises(ValueError, match="too much time"):
        model.model_validate({"x": nested(40)})
    schema["properties"]["x"]["default"] = nested(40)
    with pytest.raises(ValidationError, match="too much time"):
        json_parameters("tool", schema)
    assert time.thread_time() - began < 20


@pytest.mark.parametrize("version", ["draft-07", "draft-04"])
@pytest.mark.parametrize("word", ["additionalProperties", "unevaluatedProperties"])
def test_a_part_of_a_schema_brings_no_expression_that_backtracks(version: str, word: str) -> None:
    """A variant: keywords that the library searches itself, and parts with a version of their own."""
    part = {"patternProperties": {"^(a+)+$": {"pattern": "^(b+)+$"}}, word: False}
    part["$schema"] = f"http://json-schema.org/{version}/schema#"
    hidden = {"default": part}
    model = json_parameters(
        "tool",
        {"properties": {"x": part, "y": {"$ref": "#/$defs/h/default"}}, "$defs": {"h": hidden}},
    )
    began = time.thread_time()
    for name in ("x", "y"):
        for value in ({"a" * 40 + "!": 1}, {"aaa": "b" * 40 + "!"}):
            try:
                model.model_validate({name: value})
            except ValueError as problem:
                assert "does not match" in str(problem)  # noqa: PT017 - both outcomes are right
    assert time.thread_time() - began < 2


def test_distinct_items_and_choices_are_compared_in_linear_time() -> None:
    mixed = [item for number in range(8000) for item in (number, str(number))]
    began = time.thread_time()
    draft = "http://json-schema.org/draft-04/schema#"
    json_parameters("tool", {"$schema": draft, "properties": {"a": {"enum": mixed}}})
    model = json_parameters("tool", {"properties": {"a": {"uniqueItems": True}}})
    assert model.model_validate({"a": [*mixed, 1.5, True, False, None, [1], {"a": 1}]})
    for repeated in ([1, 1.0], [{"a": 1, "b": 2}, {"b": 2, "a": 1}], [True, True]):
        with pytest.raises(ValueError, match="non-unique"):
            model.model_validate({"a": repeated})
    assert time.thread_time() - began < 10
    with pytest.raises(ValidationError, match="parameters"):
        json_parameters("tool", {"required": [f"p{number}" for number in range(5000)]})


def test_large_values_of_ordinary_schemas_are_accepted() -> None:
    row = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    rows = {"type": "array", "items": {**row, "required": ["a"], "additionalProperties": False}}
    model = json_parameters("tool", {"properties": {"rows": rows}})
    assert model.model_validate({"rows": [{"a": n, "b": "x"} for n in range(20_000)]})


@pytest.mark.parametrize("name", ["Look", "LOOK", "look ", "\uff4cook"])
def test_a_tool_is_allowed_under_its_exact_name_alone(name: str) -> None:
    clerk = RolePermissionConfig("clerk", PermissionMode.FULL_ACCESS, allowed_tools=["look"])
    policy = PermissionPolicy([clerk])
    assert policy.authorize("clerk", "look").allowed
    assert not policy.authorize("clerk", name).allowed


def test_no_spelling_gets_around_a_denial() -> None:
    clerk = RolePermissionConfig("clerk", PermissionMode.FULL_ACCESS, denied_tools=["Pay"])
    policy = PermissionPolicy([clerk], {"Move": PermissionMode.FULL_ACCESS})
    assert not any(policy.authorize("clerk", name).allowed for name in ("pay", "PAY", "Pay"))


def test_an_allow_list_with_another_spelling_is_refused_by_name() -> None:
    def look(place: str) -> str:
        """Look at a place."""
        return place

    role = RoleSettings(role="clerk", mode="full_access", allowed_tools=["Look"])
    settings = Settings(permissions=PermissionSettings(roles=[role]))
    with pytest.raises(ConfigurationError, match="'look'"):
        build_graph([tool_capability(look)], settings=settings)


@pytest.mark.parametrize(
    "sign", ["=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\u2212"]
)
@pytest.mark.parametrize(
    "before",
    [
        "",
        " ",
        "\n",
        "\r\n",
        "\t",
        "\ufeff",
        "\u200b",
        "\u00a0 \u3000",
        "\u202e",
        "\u3164",
        "\u2800",
        "\u034f",
        "\U000e0020",
        "\x00",
    ],
)
def test_a_cell_that_a_spreadsheet_would_run_is_quoted(before: str, sign: str) -> None:
    text = to_csv([{"a": f"{before}{sign}cmd|' /C calc'!A0"}])
    assert list(csv.reader(io.StringIO(text)))[1][0].startswith("'")


@pytest.mark.parametrize("sign", ["=", "+", "@", "\uff1d", "-"])
@pytest.mark.parametrize(
    "before", ["\u2800", "\u3164", "\u115f", "\u034f", "\ufe0f", "\u180b\u0301"]
)
def test_a_formula_behind_invisible_letters_is_quoted(before: str, sign: str) -> None:
    """A variant: blanks that are letters, symbols, or marks by their category."""
    text = to_csv([{"a": f"{before}{sign}cmd|' /C calc'!A0"}])
    assert list(csv.reader(io.StringIO(text)))[1][0].startswith("'")


@pytest.mark.parametrize("separator", [";", "\t", "\n", "\r\n"])
def test_a_formula_behind_another_separator_is_quoted(separator: str) -> None:
    """A variant: a spreadsheet with other regional settings begins a cell inside of ours."""
    text = to_csv([{"a": f"sum{separator} =cmd|' /C calc'!A0", "b": "x"}])
    rows = csv.reader(io.StringIO(text), delimiter=separator.strip() or separator[-1])
    for cell in (cell for row in rows for cell in row):
        assert not cell.lstrip(' "').startswith("=")


def test_other_cells_are_left_as_they_are() -> None:
    assert to_csv([{"a": "a; b\nc"}]) == 'a\r\n"a; b\nc"\r\n'
    assert to_csv([{"a": "x=1", "b": -3, "c": " plain"}]) == "a,b,c\r\nx=1,-3, plain\r\n"
