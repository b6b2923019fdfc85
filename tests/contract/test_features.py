"""Every feature of the source systems has tests that name its row."""

from __future__ import annotations

from tests.features import listed_rows, tests_by_row


def test_rows_are_unique() -> None:
    rows = listed_rows()
    assert len(rows) == len(set(rows)) > 150


def test_every_row_has_a_test() -> None:
    tests = tests_by_row()
    assert [row for row in listed_rows() if row not in tests] == []


def test_every_marker_names_a_row() -> None:
    assert sorted(set(tests_by_row()) - set(listed_rows())) == []
