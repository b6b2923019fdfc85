"""Every feature of the source systems has tests that name its row."""

from __future__ import annotations

from tests.features import collect_tests, listed_rows


def test_every_row_has_a_test() -> None:
    tests = collect_tests()
    assert [row for row in listed_rows() if row not in tests] == []


def test_every_marker_names_a_row() -> None:
    assert sorted(set(collect_tests()) - set(listed_rows())) == []
