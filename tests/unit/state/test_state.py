"""Reducers, the reset of a turn, and typed context data."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.types import Overwrite

from capgraph import CapabilityContext
from capgraph.base import ValidationError
from capgraph.state import (
    AgentState,
    StateSchema,
    append_entries,
    dump_context,
    load_context,
    merge_by_key,
    merge_context_data,
    summarize_context,
)


class Reading(CapabilityContext):
    value: float
    unit: str = "K"


TYPES = {"READING": Reading}
SCHEMA = StateSchema.from_class(AgentState)


def merge_context(current: Any, update: Any) -> Any:
    return merge_context_data(current, [update])


contexts = st.dictionaries(
    st.sampled_from("AB"),
    st.dictionaries(
        st.sampled_from("xyz"), st.fixed_dictionaries({"v": st.integers()}), max_size=3
    ),
    max_size=2,
)


@given(contexts, contexts)
def test_merging_does_not_modify_its_arguments(left: Any, right: Any) -> None:
    before = copy.deepcopy((left, right))
    merge_context(left, right)
    assert (left, right) == before


@given(contexts, contexts, contexts)
def test_merging_is_associative(one: Any, two: Any, three: Any) -> None:
    assert merge_context(merge_context(one, two), three) == merge_context(
        one, merge_context(two, three)
    )


@given(contexts)
def test_merging_with_nothing_changes_nothing(data: Any) -> None:
    assert merge_context(data, None) == merge_context(None, data) == merge_context(data, {}) == data


def test_a_repeated_key_replaces_the_whole_entry() -> None:
    merged = merge_context({"A": {"x": {"old": 1, "more": 2}}}, {"A": {"x": {"new": 3}}})
    assert merged == {"A": {"x": {"new": 3}}}


def test_a_merge_does_not_copy_the_data() -> None:
    data = {"v": list(range(1000))}
    merged = merge_context({"A": {"x": data}}, {"A": {"y": {"v": 1}}})
    assert merged["A"]["x"] is data


def test_other_reducers() -> None:
    assert merge_by_key(None, {"a": 1}) == {"a": 1}
    assert append_entries(None, [1]) == [1]
    old = [1]
    assert append_entries(old, [2]) == [1, 2]
    assert old == [1]


def test_the_reset_empties_all_but_thread_scoped_keys() -> None:
    full: dict[str, Any] = {key: {"left": 1} for key in SCHEMA.names}
    update = SCHEMA.reset(full)
    assert set(update) == SCHEMA.names - SCHEMA.thread_keys
    for key, value in update.items():
        if key in SCHEMA.reduced_keys:
            assert isinstance(value, Overwrite), f"{key} would be merged with the old value"
            assert not value.value
        else:
            assert not value
    assert SCHEMA.reset(full, keep=frozenset({"planning_execution_plan"})).keys() == (
        update.keys() - {"planning_execution_plan"}
    )
    assert SCHEMA.reset({}) == {}


def test_keys_that_parallel_steps_write_have_reducers() -> None:
    assert {
        "messages",
        "capability_context_data",
        "execution_step_results",
        "control_attempts",
    } <= SCHEMA.reduced_keys


def test_context_is_validated_when_written() -> None:
    assert dump_context("READING", "a", Reading(value=1), TYPES) == {"value": 1.0, "unit": "K"}
    assert dump_context("READING", "a", {"value": "2"}, TYPES) == {"value": 2.0, "unit": "K"}
    with pytest.raises(ValidationError, match=r"READING of step 'a'.*value"):
        dump_context("READING", "a", {"valu": 2}, TYPES)


def test_context_of_an_unregistered_type_stays_plain_data() -> None:
    assert dump_context("OTHER", "a", {"when": {1, 2}}, {}) == {"when": [1, 2]}
    stored = {"a": [1]}
    loaded = load_context("OTHER", "a", stored, {})
    loaded["a"].append(2)
    assert stored == {"a": [1]}


def test_context_is_validated_when_read() -> None:
    with pytest.raises(ValidationError, match=r"READING\.old is not a valid Reading.*Fix:"):
        load_context("READING", "old", {"version": 0}, TYPES)


def test_summaries() -> None:
    assert summarize_context("READING", "a", {"value": 1}, TYPES) == "value: 1.0, unit: K"
    assert summarize_context("OTHER", "a", {"x": 1}, {}) == "x: 1"
    assert summarize_context("OTHER", "a", 5, {}) == "5"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Reading", "READING"),
        ("TimeRange", "TIME_RANGE"),
        ("TimeRangeContext", "TIME_RANGE"),
        ("HTTPAnswer", "HTTP_ANSWER"),
        ("Top10List", "TOP10_LIST"),
        ("Context", "CONTEXT"),
    ],
)
def test_the_name_of_a_type_is_derived_from_its_class(name: str, expected: str) -> None:
    made = type(name, (CapabilityContext,), {"__module__": __name__})
    assert expected == made.CONTEXT_TYPE


def test_unknown_fields_of_a_context_are_refused() -> None:
    with pytest.raises(ValueError, match="extra"):
        Reading(value=1, extra=2)  # type: ignore[call-arg]
