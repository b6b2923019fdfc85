"""Functions of a public set become capabilities: right calls pass the check of plans, wrong ones do not."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import pytest
from langchain_core.tools import StructuredTool

from capgraph import Registry
from capgraph.adapters import tool_capability
from capgraph.planning import check_plan
from tests.support.function_sets import calls_of, rows, wrong_calls
from tests.support.sweeps import sample

pytestmark = pytest.mark.skipif(
    find_spec("bfcl_eval") is None, reason="needs: pip install --no-deps bfcl-eval"
)
AGAINST_THEIR_SCHEMA = {
    "live_multiple": {
        "87-38-4": "no value of the enum",
        "189-83-0": "parameters that are not declared",
        "552-153-1": "a boolean for text",
        "595-158-1": "a number for text",
        "596-158-2": "a number for text",
        "731-167-2": "a boolean for text",
        "733-167-4": "a boolean for text",
        "735-167-6": "a boolean for text",
        "750-169-5": "no value of the enum",
        "756-169-11": "no value of the enum",
        "835-178-10": "no value of the enum",
        "862-181-3": "a parameter that is not declared",
        "871-182-8": "no value of the enum",
        "947-197-0": "no value of the enum",
        "964-207-0": "a parameter that is not declared",
    },
    "live_parallel": {},
    "live_irrelevance": {},
}
"""Answers of the sets that do not keep to the functions' own schemas."""


def registry_of(functions: list[dict[str, Any]]) -> tuple[Registry, dict[str, Any]]:
    async def call(**values: Any) -> Any:
        return values

    found: dict[str, Any] = {}
    for function in functions:
        tool = StructuredTool(
            name=function["name"],
            description=function["description"],
            args_schema=function["parameters"],
            coroutine=call,
        )
        made = tool_capability(tool, provides="ANSWER")
        # Some sets list a function twice.
        found.setdefault(function["name"], (made, function["parameters"]))
    registry = Registry()
    for made, _ in found.values():
        registry.register(made)
    return registry, {name: schema for name, (_, schema) in found.items()}


def passes(registry: Registry, name: str, parameters: Mapping[str, Any]) -> bool:
    step = {"context_key": "call", "capability": name, "parameters": parameters}
    end = {"context_key": "end", "capability": "respond"}
    return not check_plan({"steps": [step, end]}, registry)


@pytest.mark.parametrize("part", sorted(AGAINST_THEIR_SCHEMA))
def test_right_calls_pass_and_wrong_ones_do_not(part: str) -> None:
    odd = AGAINST_THEIR_SCHEMA[part]
    for identity, functions, answers in sample(rows(part), 60):
        registry, schemas = registry_of(functions)
        for name, answer in answers:
            right = next((c for c in calls_of(answer) if passes(registry, name, c)), None)
            if right is None:
                assert identity.removeprefix(f"{part}_") in odd, (identity, name, answer)
                continue
            for fault, call in wrong_calls(schemas[name], right):
                assert not passes(registry, name, call), (identity, name, fault, call)
