"""Tests of the plan builder, and of repairs of its conditions and lists."""

from __future__ import annotations

from typing import Any

import pytest

from capgraph.base import CapabilitySpec, PlanError
from capgraph.planning import Plan, StaticCatalog, check_plan, repair_plan
from tests.support.toys import measure

CATALOG = StaticCatalog.of(
    CapabilitySpec("read", "Read.", provides=("LEVEL",)),
    CapabilitySpec("warn", "Warn.", provides=("WARNING",)),
)
CONDITION = {"of": "read.value", "is": ">", "than": 3}


def test_the_builder_produces_plain_plan_data() -> None:
    plan = (
        Plan(deadline=9)
        .step(measure, key="m", optional=True)
        .step("fill", parameters={"n": {"$from": "row.n"}}, inputs={"READING": "m"}, timeout=5)
        .for_each("m.rows", name="row", on_failure="collect")
        .when(CONDITION)
        .step("fill")
    )
    assert plan.to_dict() == {
        "steps": [
            {"context_key": "m", "capability": "measure", "optional": True},
            {
                "context_key": "fill",
                "capability": "fill",
                "parameters": {"n": {"$from": "row.n"}},
                "inputs": [{"READING": "m"}],
                "timeout": 5,
                "for_each": {"of": "m.rows", "as": "row", "on_failure": "collect"},
                "when": CONDITION,
            },
            {"context_key": "fill_2", "capability": "fill"},
        ],
        "deadline": 9,
    }


@pytest.mark.parametrize(
    "wrong", [lambda: Plan().when(CONDITION), lambda: Plan().step(object()), lambda: Plan().step(3)]
)
def test_invalid_builder_arguments_are_refused(wrong: Any) -> None:
    with pytest.raises(PlanError, match="Fix: "):
        wrong()


def test_a_step_without_a_key_gets_the_name_that_a_condition_uses() -> None:
    repaired = repair_plan(
        {"steps": [{"capability": "read"}, {"capability": "warn", "when": CONDITION}]}, CATALOG
    )
    assert repaired.ok
    assert [step["context_key"] for step in repaired.plan["steps"]][:1] == ["read"]


def test_a_condition_follows_a_renamed_step_and_restores_the_order() -> None:
    steps = [
        {
            "context_key": "w",
            "capability": "warn",
            "when": {"not": {**CONDITION, "of": "a b.value"}},
        },
        {"context_key": "a b", "capability": "read"},
        {"context_key": "answer", "capability": "respond"},
    ]
    repaired = repair_plan({"steps": steps}, CATALOG)
    assert repaired.ok, repaired.problems
    assert [step["context_key"] for step in repaired.plan["steps"]] == ["a_b", "w", "answer"]
    assert repaired.plan["steps"][1]["when"] == {"not": {**CONDITION, "of": "a_b.value"}}
    assert check_plan(repaired.plan, CATALOG) == []
