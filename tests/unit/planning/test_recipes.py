"""Tests of recipes that are made from turns and expanded into plans."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from capgraph.base import CapabilitySpec, Requirement
from capgraph.planning import Recipe, StaticCatalog, check_plan, expand_recipes
from capgraph.planning.parameterize import normalize_request, request_pattern
from capgraph.planning.recipes import drop_overlapping, underlying_capabilities

MAKE = CapabilitySpec("make", "Makes one.", provides=("A",))
JOIN = CapabilitySpec("join", "Joins some.", provides=("A",), requires=(Requirement("A", "many"),))
CATALOG = StaticCatalog.of(MAKE, JOIN)
PLACES = ["Oslo", "Rio de Janeiro", "Rome", "P", "a", "3.5"]
VALUES = st.one_of(
    st.sampled_from(PLACES), st.integers(0, 40), st.booleans(), st.none(), st.just("At Oslo.")
)


@st.composite
def plans(draw: Any) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 6))):
        before = [step["context_key"] for step in steps]
        reads = draw(st.lists(st.sampled_from(before), unique=True)) if before else []
        given_values = draw(st.dictionaries(st.sampled_from(["p", "q"]), VALUES, max_size=2))
        step: dict[str, Any] = {
            "context_key": f"s{number}",
            "capability": "join" if reads else "make",
            "inputs": [{"A": key} for key in reads],
            "parameters": given_values,
        }
        if reads and draw(st.booleans()):
            step["when"] = {"of": f"{reads[0]}.x", "is": "==", "than": 1}
        steps.append(step)
    return steps


def turn(steps: list[dict[str, Any]], request: str) -> dict[str, Any]:
    return {
        "planning_execution_plan": {"steps": steps},
        "task_current_task": request,
        "execution_outcome": {"status": "completed"},
    }


@given(plans(), st.lists(st.sampled_from([*PLACES, "7", "12"]), max_size=3))
def test_expanding_a_recipe_restores_the_original_plan(
    steps: list[dict[str, Any]], values_in_request: list[str]
) -> None:
    request = "Do it for " + " and ".join(values_in_request)
    recipe = Recipe.from_turn(turn(steps, request), "again", CATALOG)
    read = recipe.match_request(request + "!")
    assert read is not None
    assert {name: str(value) for name, value in recipe.examples[0].parameters.items()} == read
    whole = StaticCatalog.of(MAKE, JOIN, recipe.as_capability(CATALOG).spec())
    one = {
        "context_key": "x",
        "capability": "again",
        "parameters": recipe.examples[0].parameters,
        "expected_output": "A",
    }
    plan: Any = {"steps": [one, {"context_key": "end", "capability": "respond", "inputs": []}]}
    assert check_plan(plan, whole) == []
    found, descriptions = expand_recipes(plan, whole)
    assert len(descriptions) == 1
    assert len(found["steps"]) == len(steps) + 1
    for was, now in zip(steps, found["steps"], strict=False):
        assert now["context_key"] == f"x.{was['context_key']}"
        assert now["capability"] == was["capability"]
        assert (now.get("parameters") or {}) == was["parameters"]
        assert now["inputs"] == [
            {"A": f"x.{key}"} for entry in was["inputs"] for key in entry.values()
        ]
        if "when" in was:
            assert now["when"] == {**was["when"], "of": f"x.{was['when']['of']}"}
    # What only a step of the recipe gives goes to whoever reads the recipe.
    last: Any = {"context_key": "y", "capability": "join", "inputs": [{"A": "x"}]}
    found, _ = expand_recipes({"steps": [one, last]}, whole)  # type: ignore[typeddict-item]
    inner = {key for step in steps for entry in step["inputs"] for key in entry.values()}
    inner |= {step["when"]["of"].partition(".")[0] for step in steps if "when" in step}
    ends = [step["context_key"] for step in steps if step["context_key"] not in inner]
    assert found["steps"][-1]["inputs"] == [{"A": f"x.{key}"} for key in ends]


@given(st.text(max_size=40), st.dictionaries(st.sampled_from(["p", "q"]), st.text(max_size=5)))
def test_any_request_matches_its_own_pattern(request: str, values: dict[str, str]) -> None:
    pattern = request_pattern(request, values)
    found = re.fullmatch(pattern, normalize_request(request), re.IGNORECASE)
    # A value with a comma is a list, which no slot matches.
    assert found is not None or any(f"(?P<{name}>" in pattern for name in values)


def test_a_repeated_value_is_one_parameter() -> None:
    pattern = request_pattern("From Oslo to Oslo", {"place": "Oslo"})
    assert re.fullmatch(pattern, "From Rome to Rome")
    assert not re.fullmatch(pattern, "From Rome to Bari")


def test_a_recipe_and_its_steps_are_not_both_selected() -> None:
    steps = [{"context_key": "a", "capability": "make"}]
    recipe = Recipe(name="r", description="x", steps=steps)
    whole = StaticCatalog.of(MAKE, JOIN, recipe.as_capability(CATALOG).spec())
    assert drop_overlapping(["r", "make", "join"], whole) == ("r", "join")
    assert drop_overlapping(["make", "r", "join"], whole) == ("make", "join")
    assert underlying_capabilities("r", whole) == ["make"]
