"""Tests of reused results after replanning, and of the plan history."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from capgraph.base import PlanError
from capgraph.planning import carry_over, fingerprints


def step(key: str, capability: str, *reads: str, **more: Any) -> dict[str, Any]:
    inputs = [{"T": name} for name in reads]
    return {"context_key": key, "capability": capability, "inputs": inputs, **more}


OLD: Any = {
    "steps": [
        step("place", "locate", parameters={"near": "Oslo"}),
        step("data", "fetch", "place", expected_output="T"),
        step("mean", "average", "data"),
        step("answer", "respond", "mean"),
    ]
}
# Journals of running threads hold fingerprints: a release that changes them forgets what it did.
PINNED = "c641aca6da3e6654451b1d4d6af1f761"
DONE = {"place": {"success": True}, "data": {"success": True}, "mean": {"success": False}}


def changed(place: int, **fields: Any) -> Any:
    plan = copy.deepcopy(OLD)
    plan["steps"][place].update(fields)
    return plan


def test_an_equal_plan_reuses_finished_results() -> None:
    carried = carry_over(OLD, copy.deepcopy(OLD), DONE)
    assert carried.kept == {"place": "place", "data": "data"}
    assert carried.rerun == ("mean", "answer")
    assert carried.results == {"place": DONE["place"], "data": DONE["data"]}
    assert carried.context_updates({"T": {"data": 1}}) == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"capability": "geocode"},
        {"parameters": {"near": "Bergen"}},
        {"expected_output": "PLACE"},
        {"inputs": [{"T": "stored"}]},
    ],
)
def test_a_changed_step_and_its_readers_run_again(fields: Any) -> None:
    carried = carry_over(OLD, changed(0, **fields), DONE)
    assert carried.kept == {}
    assert carried.results == {}


def test_a_reworded_objective_counts_only_without_parameters() -> None:
    assert "place" in carry_over(OLD, changed(0, task_objective="Find Oslo"), DONE).kept
    assert carry_over(OLD, changed(1, task_objective="by hour"), DONE).kept == {"place": "place"}
    same = changed(1, task_objective="Fetch the  DATA.")
    old = changed(1, task_objective="fetch the data")
    assert "data" in carry_over(old, same, DONE).kept


def test_a_renamed_step_reuses_its_result() -> None:
    new: Any = {
        "steps": [
            step("oslo", "locate", parameters={"near": "Oslo"}),
            step("readings", "fetch", "oslo", expected_output="T"),
        ]
    }
    carried = carry_over(OLD, new, DONE)
    assert carried.kept == {"oslo": "place", "readings": "data"}
    assert carried.results == {"oslo": DONE["place"], "readings": DONE["data"]}
    stored = {"PLACE": {"place": {"city": "Oslo"}}, "T": {"data": [1], "other": [2]}}
    assert carried.context_updates(stored) == {
        "PLACE": {"oslo": {"city": "Oslo"}},
        "T": {"readings": [1]},
    }


def test_a_result_read_as_a_stored_context_is_the_same_input() -> None:
    finished = {**DONE, "mean": {"success": True}}
    new: Any = {"steps": [step("mean", "average", "data"), step("answer", "respond", "mean")]}
    carried = carry_over(OLD, new, finished)
    assert carried.kept == {"mean": "mean"}


def test_equal_steps_are_matched_by_name_and_each_result_is_used_once() -> None:
    old: Any = {"steps": [step("a", "draw"), step("b", "draw")]}
    finished = {"a": {"success": False}, "b": {"success": True}}
    assert carry_over(old, {"steps": [step("b", "draw")]}, finished).kept == {"b": "b"}  # type: ignore[arg-type]
    swapped: Any = {"steps": [step("b", "draw"), step("a", "draw")]}
    assert carry_over(old, swapped, finished).kept == {"b": "b"}
    other: Any = {"steps": [step("x", "draw"), step("y", "draw")]}
    carried = carry_over(old, other, finished)
    assert (carried.kept, carried.rerun) == ({"x": "b"}, ("y",))


def test_the_first_plan_and_malformed_records_reuse_nothing() -> None:
    assert carry_over(None, OLD, {}).kept == {}
    records = {"place": None, "data": {"success": "yes"}, "mean": True}
    assert carry_over(OLD, OLD, records).kept == {}


# Fingerprints.


def test_fingerprints_do_not_depend_on_names_order_or_the_process() -> None:
    new: Any = {
        "steps": [
            step("unrelated", "memory"),
            step("oslo", "locate", parameters={"near": "Oslo"}),
            step("readings", "fetch", "oslo", expected_output="T"),
        ]
    }
    old, again = fingerprints(OLD), fingerprints(new)
    assert again["readings"] == old["data"]
    assert old["data"] == PINNED


def test_fingerprints_change_with_the_work() -> None:
    prints = {
        fingerprints(plan)["data"]
        for plan in (
            OLD,
            changed(0, parameters={"near": "Bergen"}),
            changed(1, parameters={"n": 1}),
            changed(1, inputs=[{"T": "stored"}]),
            changed(1, inputs=[{"U": "place"}]),
            changed(1, expected_output=None),
            changed(1, task_objective="something"),
        )
    }
    assert len(prints) == 7


def test_equal_steps_have_different_fingerprints() -> None:
    twins: Any = {
        "steps": [
            step("a", "draw"),
            step("b", "draw"),
            step("after_a", "use", "a"),
            step("after_b", "use", "b"),
        ]
    }
    prints = fingerprints(twins)
    assert len(set(prints.values())) == 4
    reordered: Any = {"steps": [twins["steps"][n] for n in (1, 3, 0, 2)]}
    assert fingerprints(reordered) == prints


def test_a_fingerprint_needs_plain_data() -> None:
    with pytest.raises(PlanError, match="not JSON-serializable"):
        fingerprints({"steps": [{"context_key": "x", "parameters": {"a": object()}}]})  # type: ignore[dict-item]
