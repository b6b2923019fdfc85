"""Format of evaluation sets, and errors in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capgraph.base import ConfigurationError
from capgraph.evaluation import AnswerCheck, Case, load_dataset

GOOD = """
version: 1
name: tiny
thresholds: {recall: 0.5}
cases:
  - name: a
    request: Add them
    capabilities: [read, sum]
    edges: [read -> sum]
    answer:
      - {number: 3, tolerance: 0.5}
      - contains: total
  - name: b
    request: Sing
    capabilities: []
    outcome: failed
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "set.yml"
    file.write_text(text, encoding="utf-8")
    return file


def test_dataset_is_loaded(tmp_path: Path) -> None:
    dataset = load_dataset(write(tmp_path, GOOD))
    first, second = dataset.cases
    assert (first.capabilities, first.edges) == (["read", "sum"], [("read", "sum")])
    assert second.capabilities == []
    assert second.edges is None, "what is left out is not judged"
    assert (dataset.thresholds.passed, dataset.thresholds.recall) == (1.0, 0.5)


def test_every_problem_is_listed_with_its_path(tmp_path: Path) -> None:
    text = """
version: 2
name: ""
thresholds: {recall: 1.5, speed: 3}
cases:
  - name: a
    request: Add
    edges: [read sum]
    answer:
      - contains: x
        number: 1
      - matches: "("
      - {}
      - {contains: x, tolerance: 1}
  - request: No name
    outcome: fine
    capabilites: [read]
"""
    with pytest.raises(ConfigurationError) as caught:
        load_dataset(write(tmp_path, text))
    lines = str(caught.value).splitlines()
    expected = [
        ("version:", "1"),
        ("name:", "at least 1"),
        ("thresholds.recall:", "less than or equal to 1"),
        ("thresholds.speed:", "unknown key"),
        ("cases[0].edges[0]:", "'producer -> consumer'"),
        ("cases[0].answer[0]:", "exactly one of"),
        ("cases[0].answer[1].matches:", "not a regular expression"),
        ("cases[0].answer[2]:", "exactly one of"),
        ("cases[0].answer[3]:", "'tolerance' requires 'number'"),
        ("cases[1].name:", "required"),
        ("cases[1].outcome:", "'completed'"),
        ("cases[1].capabilites:", "unknown key"),
    ]
    for path, words in expected:
        assert any(path in line and words in line for line in lines), (path, lines)
    assert len(lines) == len(expected) + 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 1\nname: x\ncases: []", "at least 1"),
        ("", "version: Field required"),
        ("- 1", "type list"),
        ("version: 1\nname: x\nname: y", "'name' occurs twice, in lines 2 and 3"),
        ("cases: [", "not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
        (
            "version: 1\nname: x\ncases: [{name: a, request: b}, {name: a, request: c}]",
            "several cases are named 'a'",
        ),
        (
            "version: 1\nname: x\ncases:\n  - {name: a, request: b, capabilities: [r],"
            " edges: [r -> s]}",
            "cases[0]: the edges contain 's'",
        ),
    ],
)
def test_invalid_datasets_are_rejected(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_dataset(write(tmp_path, text))
    assert words in str(caught.value)


def test_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_dataset(tmp_path / "none.yml")


@pytest.mark.parametrize(
    ("check", "answer", "right"),
    [
        ({"contains": "july"}, "In July.", True),
        ({"contains": "July"}, "In June.", False),
        ({"lacks": "error"}, "An ERROR.", False),
        ({"lacks": "error"}, "Fine.", True),
        ({"matches": r"^\d+ days"}, "12 days", True),
        ({"matches": r"^\d+ days"}, "in 12 days", False),
        ({"number": 1234.5}, "It is 1,234.5 mm", True),
        ({"number": -3}, "down to -3°C", True),
        ({"number": -3}, "down to −3 °C", True),
        ({"number": 3}, "down to -3 °C", False),
        ({"number": 35}, "35.0", True),
        ({"number": 35}, "35.1", False),
        ({"number": 35, "tolerance": 0.1}, "35.1", True),
        ({"number": 35, "tolerance": 0.1}, "35.2", False),
        ({"number": 5}, "v2.5 and 15", False),
        ({"number": 0.1}, "0.1 %", True),
        ({"number": 1}, "no number at all", False),
    ],
)
def test_checks_of_an_answer(check: dict[str, Any], answer: str, right: bool) -> None:
    assert (AnswerCheck(**check).find_problem(answer) is None) == right


@given(
    st.floats(-1e6, 1e6, allow_nan=False).map(lambda value: round(value, 3)),
    st.text(alphabet="ab .,;°", max_size=8),
)
def test_numbers_are_found_in_any_notation(value: float, around: str) -> None:
    for written in (f"{value:.3f}", f"{value:,.3f}"):
        text = f"{around.rstrip('.')} {written} {around}"
        assert AnswerCheck(number=value).find_problem(text) is None
        assert AnswerCheck(number=value + 1, tolerance=0.5).find_problem(text) is not None


def test_edges_may_connect_optional_capabilities() -> None:
    case = Case(
        name="a", request="b", capabilities=["read"], optional=["plot"], edges=["read -> plot"]
    )
    assert case.edges == [("read", "plot")]
