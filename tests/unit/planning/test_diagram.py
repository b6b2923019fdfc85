"""Tests of Mermaid diagrams of plans."""

from __future__ import annotations

from typing import Any

import pytest

from capgraph.planning import plan_mermaid
from capgraph.planning.diagram import escape_label

PLAN: Any = {
    "steps": [
        {"context_key": "place", "capability": "locate"},
        {
            "context_key": "data",
            "capability": "fetch",
            "inputs": [{"PLACE": "place"}, {"T": "old"}],
        },
        {"context_key": "note", "capability": "remember"},
        {"context_key": "answer", "capability": "respond", "inputs": [{"DATA": "data"}]},
    ]
}


def test_steps_data_flow_and_status() -> None:
    status = {"place": "done", "data": "running", "note": "exploded"}
    assert plan_mermaid(PLAN, status).splitlines() == [
        "flowchart TD",
        '    c0[("old")]',
        '    s0["✓ place<br/>locate"]',
        "    class s0 done",
        '    s1["▶ data<br/>fetch"]',
        "    class s1 running",
        '    s2["note<br/>remember"]',
        "    class s2 pending",
        '    s3(["answer<br/>respond"])',
        "    class s3 pending",
        '    s0 -->|"PLACE"| s1',
        '    c0 -->|"T"| s1',
        '    s1 -->|"DATA"| s3',
        "    s2 -.-> s3",
        "    classDef pending fill:#f4f4f4,stroke:#8a8a8a,color:#222",
        "    classDef running fill:#fff4cc,stroke:#b58900,color:#222",
        "    classDef done fill:#dff2e1,stroke:#2e7d32,color:#222",
    ]


def test_recorded_order_is_drawn_dotted() -> None:
    plan = {**PLAN, "stamp": {"after": {"note": ["data"], "data": ["place"]}}}
    lines = plan_mermaid(plan).splitlines()
    assert "    s1 -.-> s2" in lines
    assert "    s0 -.-> s1" not in lines  # an input already draws this order


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ('"]; click s0 "javascript:x"', "#34;#93;; click s0 #34;javascript:x#34;"),
        ("<script>`x`#35;", "#60;script#62;#96;x#96;#35;35;"),
        ("two\nlines", "two lines"),
        ("naïve 20 °C", "naïve 20 °C"),
        ("x" * 80, "x" * 59 + "#8230;"),
        ("\ud800", "?"),
    ],
)
def test_labels_are_escaped(text: str, label: str) -> None:
    assert escape_label(text) == label


def test_malformed_plans_are_drawn_partially() -> None:
    assert plan_mermaid({}) == "flowchart TD"
    drawn = plan_mermaid({"steps": [None, {"context_key": 'a"b', "inputs": [{"T": "a"}, 3]}]})  # type: ignore[list-item,typeddict-item]
    assert "#34;" in drawn
    assert drawn.count("class s") == 2


def test_conditions_lists_and_skipped_steps_are_drawn() -> None:
    plan: Any = {
        "steps": [
            {"context_key": "sky", "capability": "look"},
            {
                "context_key": "warn",
                "capability": "tell",
                "when": {"of": "sky.wind", "is": ">", "than": 12},
                "for_each": {"of": "sky.places"},
                "optional": True,
                "look_again": True,
            },
        ]
    }
    drawn = plan_mermaid(plan, {"sky": "done", "warn": "not needed"})
    assert (
        "if sky.wind #62; 12<br/>for each of sky.places<br/>optional<br/>looked at again" in drawn
    )
    assert 's0 -->|"when"| s1' in drawn
    assert 's0 -->|"for_each"| s1' in drawn
    assert "class s1 not_needed" in drawn
    assert "classDef not_needed " in drawn
