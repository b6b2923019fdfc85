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
    "before", ["", " ", "\n", "\r\n", "\t", "\ufeff", "\u200b", "\u00a0 \u3000", "\u202e"]
)
def test_a_cell_that_a_spreadsheet_would_run_is_quoted(before: str, sign: str) -> None:
    text = to_csv([{"a": f"{before}{sign}cmd|' /C calc'!A0"}])
    assert list(csv.reader(io.StringIO(text)))[1][0].startswith("'")


def test_other_cells_are_left_as_they_are() -> None:
    assert to_csv([{"a": "x=1", "b": -3, "c": " plain"}]) == "a,b,c\r\nx=1,-3, plain\r\n"
