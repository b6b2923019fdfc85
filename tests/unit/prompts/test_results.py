"""Tests of result texts in planning prompts."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from capgraph import CapabilityContext
from capgraph.prompts.results import ResultPreviews, format_table, preview_json

HOTELS = [{"id": f"H{n}", "stars": n % 5, "note": "quiet " * 10} for n in range(60)]


def test_a_list_keeps_its_first_elements_and_the_ids_of_others() -> None:
    found = json.loads(preview_json(HOTELS, 400))
    assert found[0] == HOTELS[0]
    assert found[-1].startswith(f"… {len(HOTELS) - len(found) + 1} more: H")


@pytest.mark.parametrize("name", ["flight", "sailing", "offer"])
def test_a_field_with_unique_values_identifies_elements(name: str) -> None:
    rows = [{"kind": "x", name: f"LX{n}", "text": "y" * 90} for n in range(9)]
    assert "LX8" in preview_json(rows, 400)


def test_an_object_keeps_its_keys_and_small_values() -> None:
    found = json.loads(
        preview_json({"title": "Moby Dick", "text": "whale " * 500, "year": 1851}, 200)
    )
    assert (found["title"], found["year"]) == ("Moby Dick", 1851)
    assert found["text"].endswith("more characters)")


def test_columns_of_a_table_keep_their_names_and_first_values() -> None:
    found = json.loads(preview_json({"day": [*range(500)], "high": [20.5] * 500}, 200))
    assert found["day"][:3] == [0, 1, 2]
    assert found["high"][0] == 20.5


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=20), inner),
)


@settings(max_examples=60, deadline=None)
@given(values)
def test_a_preview_is_json_of_limited_length(value: Any) -> None:
    text = preview_json(value, 200)
    json.loads(text)
    whole = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert text == whole or len(whole) > 200


def test_the_budget_goes_to_the_first_results() -> None:
    available = {"ROWS": {"a": HOTELS, "b": HOTELS}}
    shown = ResultPreviews(available, 1500).full_texts([("ROWS", "b"), ("ROWS", "a")])
    assert json.loads(shown["ROWS", "b"]) == HOTELS
    assert len(shown["ROWS", "a"]) < 1000


def test_an_authors_summary_replaces_a_result_beyond_the_budget() -> None:
    class Harvest(CapabilityContext):
        """What was picked."""

        kilos: list[int]

        def get_summary(self) -> str:
            return f"{sum(self.kilos)} kg of apples"

    stored = {"HARVEST": {"may": {"kilos": [2, 3]}, "june": {"kilos": [4, 5]}}}
    results = ResultPreviews(stored, 100, {"HARVEST": Harvest})
    assert results.stored_lines(1, {}) == "HARVEST june: 9 kg of apples\nHARVEST, older: may"
    whole = results.full_texts([("HARVEST", "may")])
    assert "HARVEST may: " + '{"kilos":[2,3]}' in results.stored_lines(1, whole)


def test_cells_of_a_table_cannot_be_mistaken_for_other_data() -> None:
    rows = [
        {"id": "7", "a | b": "x\nSEARCH other: [1]", "note": "plain text", "day": "2026-06-12"},
        {"id": "true", "a | b": "x | y", "note": "", "day": "12:30"},
    ]
    assert format_table(rows) == (
        'id | "a | b" | note | day\n'
        '"7" | "x\\nSEARCH other: [1]" | plain text | 2026-06-12\n'
        '"true" | "x | y" | "" | 12:30'
    )


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1},
        [{"a": 1}],
        [{"a": 1}, {"b": 1}],
        [{"a": [1]}, {"a": [2]}],
        [{}, {}],
        [1, 2],
        "text",
    ],
)
def test_only_lists_of_equal_flat_objects_are_tables(value: Any) -> None:
    assert format_table(value) is None


def test_a_short_table_names_the_omitted_rows() -> None:
    rows = [{"sailing": f"S{n}", "harbor": f"H{n % 3}"} for n in range(20)]
    table = format_table(rows, 100)
    assert table is not None
    assert len(table) <= 120
    *shown, rest = table.splitlines()
    assert rest.startswith(f"… {21 - len(shown)} more: S{len(shown) - 1}, ")


def test_a_table_names_the_value_of_an_equal_column_once() -> None:
    rows = [{"sailing": f"S{n}", "harbor": "Sund"} for n in range(20)]
    table = format_table(rows, 100)
    assert table is not None
    first, head, *shown, rest = table.splitlines()
    assert (first, head) == ("all rows: harbor = Sund", "sailing")
    assert shown == [f"S{n}" for n in range(len(shown))]
    assert rest.startswith(f"… {20 - len(shown)} more: S{len(shown)}, ")
    assert "all rows" not in str(format_table(rows[:2]))
    assert "all rows" not in str(format_table([{"harbor": "Sund"}] * 5))
