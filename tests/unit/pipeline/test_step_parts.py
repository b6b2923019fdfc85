"""The parts of one step: inputs, parameters, outputs, waits, and how a turn's end is described."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capgraph import CapabilityContext, ErrorSeverity
from capgraph.base import CapabilityError, CapabilitySpec, Requirement, ValidationError
from capgraph.configs.limits import Limits
from capgraph.engine.turn_outcome import describe_outcome
from capgraph.pipeline.inputs import resolve_inputs
from capgraph.pipeline.result_normalization import normalize_result
from capgraph.pipeline.retry_policy import RetryPolicy, retry_delay_seconds


class Reading(CapabilityContext):
    value: float


class Note(CapabilityContext):
    text: str


TYPES: dict[str, type[CapabilityContext]] = {"READING": Reading, "NOTE": Note}


def spec(*requires: Requirement, provides: tuple[str, ...] = (), **more: Any) -> CapabilitySpec:
    return CapabilitySpec("cap", "Does it", provides=provides, requires=requires, **more)


# --- inputs ------------------------------------------------------------------------------------------

DATA = {"READING": {"a": {"value": 1}, "b": {"value": 2}}}


def test_inputs_by_cardinality() -> None:
    wants = spec(
        Requirement("READING", "many"), Requirement("NOTE", "optional"), Requirement("RAW", "one")
    )
    step: Any = {"context_key": "s", "inputs": [{"READING": "a"}, {"READING": "b"}, {"RAW": "r"}]}
    found = resolve_inputs(wants, step, {**DATA, "RAW": {"r": [1]}}, TYPES)
    assert found == {"READING": [Reading(value=1), Reading(value=2)], "NOTE": None, "RAW": [1]}


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ([], "has 0 inputs READING"),
        ([{"READING": "a"}, {"READING": "b"}], "has 2 inputs"),
        ([{"READING": "z"}], r"READING\.z .* \['a', 'b'\]"),
    ],
)
def test_wrong_inputs_ask_for_another_plan(links: list[dict[str, str]], words: str) -> None:
    with pytest.raises(ValidationError, match=words) as info:
        resolve_inputs(
            spec(Requirement("READING")), {"context_key": "s", "inputs": links}, DATA, TYPES
        )
    assert info.value.severity is ErrorSeverity.REPLANNING


def test_inputs_that_were_not_asked_for_are_handed_over_too() -> None:
    found = resolve_inputs(spec(), {"inputs": [{"READING": "a"}]}, DATA, TYPES)
    assert found == {"READING": Reading(value=1)}


# --- outputs -----------------------------------------------------------------------------------------


def sort(result: Any, *provides: str, expected: str | None = None, stored: Any = ()) -> Any:
    step: Any = {"context_key": "k", "expected_output": expected}
    found = normalize_result(result, list(stored), spec(provides=provides), step, "k", TYPES)
    return found.updates, found.contexts


@pytest.mark.parametrize(
    ("result", "provides", "updates", "contexts"),
    [
        (None, (), {}, {}),
        ({}, ("READING",), {}, {}),
        (Reading(value=1), ("READING",), {}, {"READING": {"k": {"value": 1.0}}}),
        ({"value": 1}, ("READING",), {}, {"READING": {"k": {"value": 1.0}}}),
        ({"READING": {"value": 1}}, ("READING", "NOTE"), {}, {"READING": {"k": {"value": 1.0}}}),
        (
            [Reading(value=1), Note(text="t")],
            ("READING", "NOTE"),
            {},
            {"READING": {"k": {"value": 1.0}}, "NOTE": {"k": {"text": "t"}}},
        ),
        (
            {"task_current_task": "t", "READING": Reading(value=1), "text": "n"},
            ("READING", "NOTE"),
            {"task_current_task": "t"},
            {"READING": {"k": {"value": 1.0}}, "NOTE": {"k": {"text": "n"}}},
        ),
    ],
)
def test_where_each_value_goes(result: Any, provides: Any, updates: Any, contexts: Any) -> None:
    if "text" in (result if isinstance(result, dict) else {}):
        assert sort(result, *provides, expected="NOTE") == (updates, contexts)
    else:
        assert sort(result, *provides) == (updates, contexts)


@pytest.mark.parametrize(
    ("result", "provides", "expected", "words"),
    [
        (Note(text="x"), ("READING",), None, "undeclared type NOTE"),
        ([Reading(value=1), Reading(value=2)], ("READING",), None, "READING twice"),
        ({"x": 1}, (), None, r"\['x'\].*neither"),
        ({"x": 1}, ("READING", "NOTE"), None, r"\['x'\].*neither"),
        (None, ("READING",), "READING", "no output READING"),
        ({"READING": {"value": 1}, "x": 2}, ("READING",), None, r"\['x'\]"),
    ],
)
def test_what_has_no_place_is_an_error(
    result: Any, provides: Any, expected: Any, words: str
) -> None:
    with pytest.raises(CapabilityError, match=words) as info:
        sort(result, *provides, expected=expected)
    assert "Fix:" in str(info.value)


def test_an_output_that_does_not_fit_its_type_is_an_error() -> None:
    with pytest.raises(ValidationError, match="READING of step 'k' is not a valid"):
        sort({"READING": {"valu": 1}}, "READING")


def test_stored_outputs_count_as_returned() -> None:
    assert sort(None, "READING", expected="READING", stored=[Reading(value=1)])[1] == {
        "READING": {"k": {"value": 1.0}}
    }


keys = st.sampled_from(["planning_selection", "ui_agent_context", "READING", "x", "y"])


@given(st.dictionaries(keys, st.just({"value": 1})), st.booleans())
def test_no_returned_key_is_ever_lost(result: dict[str, Any], provides: bool) -> None:
    """Three ways: a state key, an output, or an error that names it."""
    declared = spec(provides=("READING", "REST") if provides else ())
    step: Any = {"context_key": "k", "expected_output": "REST" if provides else None}
    error = ""
    try:
        found = normalize_result(result, [], declared, step, "k", {})
        updates, contexts = found.updates, found.contexts
        if found.plan is not None:
            updates = {**updates, "planning_execution_plan": found.plan}
    except CapabilityError as exc:
        error = str(exc)
    if error:
        rest = set(result) - {"planning_selection", "ui_agent_context"}
        assert "no output" in error or (rest and all(name in error for name in rest))
        return
    kept = set(updates) | set(contexts) | set((contexts.get("REST") or {}).get("k") or {})
    assert set(result) <= kept


# --- waits -------------------------------------------------------------------------------------------


@given(
    st.integers(1, 30),
    st.floats(0, 1e9),
    st.floats(0, 1e308),
    st.one_of(st.none(), st.floats(0, 1e6)),
    st.integers(),
)
def test_a_wait_is_never_negative_and_never_above_its_bound(
    failures: int, delay: float, factor: float, asked: float | None, seed: int
) -> None:
    limits = Limits(max_retry_delay_seconds=60)
    policy = RetryPolicy(50, delay, factor)
    waited = retry_delay_seconds(
        policy, failures, limits, retry_after=asked, rng=random.Random(seed)
    )
    assert 0 <= waited <= 60
    if asked is not None and asked <= 60:
        assert waited >= asked


def test_waits_grow_by_the_factor_and_spread_by_a_tenth() -> None:
    policy = RetryPolicy(9, 2.0, 2.0)
    assert [policy.delay(n) for n in (1, 2, 3)] == [2.0, 4.0, 8.0]
    waits = {retry_delay_seconds(policy, 1, Limits(), rng=random.Random(n)) for n in range(50)}
    assert min(waits) >= 2.0
    assert max(waits) <= 2.2
    assert len(waits) > 10


@pytest.mark.parametrize("given_policy", [None, {}, {"max_attempts": 0}, {"max_attempts": -5}])
def test_a_policy_has_at_least_one_try(given_policy: Any) -> None:
    assert RetryPolicy.from_dict(given_policy, Limits()).max_attempts == 1


# --- outcome -----------------------------------------------------------------------------------------

PLAN = {
    "steps": [
        {"context_key": "a", "capability": "x"},
        {"context_key": "b", "capability": "x"},
        {"context_key": "r", "capability": "respond"},
    ]
}


@pytest.mark.parametrize(
    ("results", "error", "status"),
    [
        ({"a": {"success": True}, "b": {"success": True}}, None, "completed"),
        ({"a": {"success": True}}, None, "partial"),
        ({"a": {"success": True}, "b": {"success": False, "skipped": True}}, None, "partial"),
        ({"a": {"success": True}, "b": {"success": True}}, "critical", "failed"),
        ({}, "critical", "failed"),
    ],
)
def test_partial_and_failed_are_never_called_completed(
    results: Any, error: str | None, status: str
) -> None:
    state: dict[str, Any] = {"planning_execution_plan": PLAN, "execution_step_results": results}
    if error:
        state |= {
            "control_has_error": True,
            "control_error_info": {"user_message": "m", "classification": {"severity": error}},
        }
    found = describe_outcome(state)
    assert found["status"] == status
    assert set(found["done"]) | set(found["missing"]) == {"a", "b"}


def test_a_limit_and_a_stop_are_told_apart_from_a_failure() -> None:
    info = {"user_message": "m", "classification": {"metadata": {"code": "CG-LIMIT"}}}
    found = describe_outcome({"control_has_error": True, "control_error_info": info})
    assert found["status"] == "stopped"
    found = describe_outcome({"control_is_killed": True, "control_kill_reason": "by hand"})
    assert (found["status"], found["reason"]) == ("stopped", "by hand")
