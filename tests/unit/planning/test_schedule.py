"""Tests of step dependencies."""

from __future__ import annotations

from typing import Any

import pytest

from capgraph.base import CapabilitySpec, PlanError
from capgraph.planning import (
    StaticCatalog,
    by_depth,
    dependencies,
    ready_steps,
    with_plan_order,
)


def plan(*steps: str) -> Any:
    """Build a plan from ``"key: input input"``; ``respond`` closes."""
    made = []
    for text in steps:
        key, _, inputs = text.partition(":")
        name = "respond" if key == "respond" else "work"
        made.append(
            {"context_key": key, "capability": name, "inputs": [{"T": k} for k in inputs.split()]}
        )
    return {"steps": made}


DIAMOND = plan("a", "b: a", "c: a", "d: b c", "respond")


def test_dependencies_of_a_diamond() -> None:
    assert dependencies(DIAMOND) == {
        "a": set(),
        "b": {"a"},
        "c": {"a"},
        "d": {"b", "c"},
        "respond": {"a", "b", "c", "d"},
    }


def test_a_stored_context_is_not_a_dependency() -> None:
    assert dependencies(plan("a: stored")) == {"a": set()}


def test_a_step_waits_for_readers_of_the_context_it_replaces() -> None:
    assert dependencies(plan("first: x", "x", "second: x")) == {
        "first": set(),
        "x": {"first"},
        "second": {"x"},
    }


def test_steps_without_a_key_are_named_by_position() -> None:
    assert list(dependencies({"steps": [{"capability": "fetch"}]})) == ["0_fetch"]


def test_state_based_steps_wait_for_all_steps_before_them() -> None:
    catalog = StaticCatalog.of(
        CapabilitySpec(name="work", description="Work."),
        CapabilitySpec(name="legacy", description="Old work.", follows_plan_order=True),
    )
    names = {"a": "work", "b": "legacy", "c": "work", "d": "work", "e": "legacy", "f": "legacy"}
    steps = [{"context_key": key, "capability": name} for key, name in names.items()]
    ordered = by_depth(with_plan_order({"steps": steps}, catalog))  # type: ignore[typeddict-item]
    assert dependencies(ordered) == {
        "a": set(),
        "b": {"a"},
        "c": set(),
        "d": set(),
        "e": {"b", "c", "d"},
        "f": {"e"},
    }


def test_shared_keys_are_refused() -> None:
    with pytest.raises(PlanError, match="context_key 'a'"):
        dependencies(plan("a", "a"))


def test_ready_steps_start_as_soon_as_their_own_inputs_exist() -> None:
    assert ready_steps(DIAMOND, []) == ["a"]
    assert ready_steps(DIAMOND, ["a"]) == ["b", "c"]
    assert ready_steps(DIAMOND, ["a", "b"], started=["c"]) == []
    assert ready_steps(DIAMOND, ["a", "b", "c", "d"]) == ["respond"]
    needs = dependencies(DIAMOND)
    assert ready_steps(DIAMOND, {"a": 1}, known_dependencies=needs) == ["b", "c"]
