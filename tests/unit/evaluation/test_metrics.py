"""Precision, recall, and F1 of choices, nodes, and edges, and the figures of a report."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capgraph.evaluation import (
    METRICS,
    Case,
    CaseResult,
    Counts,
    Report,
    Thresholds,
)
from capgraph.evaluation.metrics import count_edges, count_items, plan_edges, plan_nodes

NAMES = st.lists(st.sampled_from("abcd"), max_size=8)


@given(NAMES, NAMES)
def test_counts_agree_with_their_definition(expected: list[str], found: list[str]) -> None:
    counts = count_items(expected, found)
    assert counts.correct + counts.missing == len(expected)
    assert counts.correct + counts.extra == len(found)
    assert (counts.f1 == 1) == (Counter(expected) == Counter(found))
    mirrored = count_items(found, expected)
    assert (counts.precision, counts.f1) == (mirrored.recall, mirrored.f1)


@given(NAMES, NAMES)
def test_optional_items_are_not_counted(expected: list[str], found: list[str]) -> None:
    counts = count_items(expected, found, optional={"a"})
    without = [[item for item in items if item != "a"] for items in (expected, found)]
    assert counts == count_items(*without)


def test_edges_with_an_optional_end() -> None:
    expected = [("read", "sum"), ("read", "plot")]
    with_plot = count_edges(expected, expected, {"plot"})
    without = count_edges(expected, [("read", "sum")], {"plot"})
    unasked = count_edges([("read", "sum")], expected, {"plot"})
    assert with_plot == Counts(correct=2)
    assert without == unasked == Counts(correct=1)
    assert count_edges(expected, [("sum", "read")], {"plot"}) == Counts(0, 1, 1)


def test_nodes_and_edges_of_a_plan() -> None:
    plan: dict[str, Any] = {
        "steps": [
            {"context_key": "a", "capability": "read"},
            {"context_key": "b", "capability": "read", "inputs": None},
            {"context_key": "c", "capability": "join", "inputs": [{"D": "a"}, {"D": "b"}, {"E": "a"}]},
            {"context_key": "d", "capability": "sum", "inputs": [{"J": "c"}, {"OLD": "stored"}]},
            {"context_key": "e", "capability": "respond", "inputs": [{"S": "d"}]},
        ]
    }  # fmt: skip
    assert plan_nodes(plan) == ["read", "read", "join", "sum"]
    assert plan_edges(plan) == [("read", "join"), ("read", "join"), ("join", "sum")]
    assert (plan_nodes(None), plan_edges(None)) == ([], [])


def result(name: str = "a", expected: dict[str, Any] | None = None, **found: Any) -> CaseResult:
    case = Case(name=name, request="Do it", **(expected or {}))
    return CaseResult(case, **{"outcome": "completed", **found})


def test_problems_read_as_a_diff() -> None:
    found = result(
        expected={
            "capabilities": ["read", "sum", "sum"],
            "edges": ["read -> sum"],
            "answer": [{"contains": "three"}, {"lacks": "error"}],
        },
        nodes=("read", "sum", "plot"),
        edges=(("read", "plot"),),
        answer="two",
        outcome="partial",
    )
    assert found.problems == [
        "- step sum",
        "+ step plot",
        "- edge read -> sum",
        "+ edge read -> plot",
        "- outcome completed",
        "+ outcome partial",
        "- the answer does not contain 'three'",
    ]


@given(st.permutations(["read", "sum", "plot"]))
def test_case_passes_without_problems(found: list[str]) -> None:
    for many in range(4):
        got = result(
            expected={"capabilities": ["read", "sum"], "optional": ["plot"]},
            nodes=tuple(found[:many]),
        )
        assert got.passed == ({"read", "sum"} <= set(found[:many]))
        assert got.passed == (got.node_counts is not None and got.node_counts.f1 == 1)


def test_figures_add_up_over_cases() -> None:
    report = Report(
        (
            result("a", {"capabilities": ["x", "y"]}, chosen=("x",), nodes=("x",), model_calls=2),
            result("b", {"capabilities": []}, chosen=("x",), outcome="no_capability", seconds=1.5),
            result("c", {}, chosen=("z",), nodes=("z",), input_tokens=7),
        )
    )
    assert list(report.figures) == list(METRICS)
    assert report.figures == {
        "passed": 2 / 3,
        "precision": 0.5,
        "recall": 0.5,
        "node_f1": 2 / 3,
        "edge_f1": None,
        "judged": None,
        "agreement": None,
        "model_calls": 2,
        "input_tokens": 7,
        "output_tokens": 0,
        "cost_usd": None,
        "seconds": 1.5,
        "ungrounded": 0,
    }
    assert [failed.case.name for failed in report.failures] == ["a"]


@pytest.mark.parametrize(
    ("least", "short"),
    [
        ({}, ["passed is 0.500, below 1"]),
        ({"passed": 0.5}, []),
        ({"passed": 0.5, "recall": 1}, ["recall is 0.500, below 1"]),
        ({"passed": 0, "precision": 1.0, "node_f1": 0.6}, []),
        # What no case is judged by has not been shown to be good.
        ({"passed": 0, "edge_f1": 0.1}, ["edge_f1 is 0.000, below 0.1"]),
    ],
)
def test_thresholds(least: dict[str, float], short: list[str]) -> None:
    report = Report(
        (
            result("a", {"capabilities": ["x"]}, chosen=("x",), nodes=("x",)),
            result("b", {"capabilities": ["y"]}),
        )
    )
    assert [str(item) for item in report.check_thresholds(Thresholds(**least))] == short


def test_plain_data_is_complete() -> None:
    data = Report((result("a", {"outcome": "failed"}),), "first").as_data()
    assert data["label"] == "first"
    assert data["figures"]["passed"] == 0
    assert data["cases"][0]["problems"] == ["- outcome failed", "+ outcome completed"]
