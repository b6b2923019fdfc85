"""Typed queries, checked against the data and computed in DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError as PydanticError

from capgraph.base import ErrorSeverity, ValidationError
from capgraph.capabilities.contexts import QueryResult
from capgraph.capabilities.data.answer import answer_query
from capgraph.capabilities.query import Query

ROWS = """day,region,product,units,price,revenue,weight_kg
2021-01-15,North,Kettle,2,10,20,1.5
2021-01-15,South,Toaster,5,20,100,2.0
2021-02-20,North,Toaster,1,20,20,2.0
2022-03-05,South,Coffee Maker,4,50,200,
2022-03-06,North,Kettle,3,10,30,1.5
"""


@pytest.fixture
def sales(tmp_path: Path) -> Path:
    file = tmp_path / "sales.csv"
    file.write_text(ROWS)
    return file


def ask(*files: Path, **query: Any) -> QueryResult:
    names = [str(file) for file in files]
    return answer_query(names, Query.model_validate(query), None, {"data_folders": names})


def values(result: QueryResult) -> dict[str, Any]:
    return {", ".join(row.group): row.value for row in result.answers[0].rows}


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ({"aggregate": "sum", "value": "revenue"}, 370),
        ({"aggregate": "rows", "where": [{"column": "region", "value": "north"}]}, 3),
        ({"aggregate": "distinct", "value": "product"}, 3),
        ({"aggregate": "distinct", "value": "month"}, 3),
        ({"aggregate": "missing", "value": "weight_kg"}, 1),
        ({"aggregate": "count", "value": "weight_kg"}, 4),
        ({"aggregate": "percentile", "value": "units", "percentile": 50}, 3),
        ({"aggregate": "sum", "value": "units * price"}, 370),
        ({"aggregate": "sum", "value": "`units` * (price - 10) / 10"}, 22),
        ({"aggregate": "sum", "value": "revenue", "by": "units"}, 370 / 15),
        ({"aggregate": "max", "value": "weight_kg", "unit": "g"}, 2000),
        (
            {
                "aggregate": "rows",
                "where": [{"column": "weight_kg", "op": ">", "value": 1800, "unit": "g"}],
            },
            2,
        ),
        ({"aggregate": "rows", "where": [{"column": "units", "op": "<", "value": "price"}]}, 5),
        ({"aggregate": "rows", "where": [{"column": "weight_kg", "op": "missing"}]}, 1),
        ({"aggregate": "rows", "where": [{"column": "region", "op": "!=", "value": "North"}]}, 2),
        ({"aggregate": "rows", "where": [{"column": "weekday", "value": "Friday"}]}, 2),
        ({"aggregate": "sum", "value": "units", "periods": [["2021-01-01", "2022-01-01"]]}, 8),
        ({"aggregate": "sum", "value": "units", "periods": [[None, "2021-02-01"]]}, 7),
        ({"aggregate": "first", "value": "price"}, 10),
        ({"aggregate": "rows", "where": [{"column": "units", "value": True}]}, 1),
    ],
)
def test_one_value(sales: Path, query: dict[str, Any], value: float) -> None:
    (row,) = ask(sales, **query).answers[0].rows

    assert row.value == pytest.approx(value)


def test_groups_are_ordered_limited_and_shared(sales: Path) -> None:
    by_product = {"aggregate": "sum", "value": "revenue", "group_by": ["product"]}

    assert values(ask(sales, **by_product)) == {"Coffee Maker": 200, "Kettle": 50, "Toaster": 120}
    best = ask(sales, **by_product, order="highest", limit=1)
    assert values(best) == {"Coffee Maker": 200}
    having = {"column": "value", "op": "<", "value": 150}
    assert values(ask(sales, **by_product, having=having)) == {"Kettle": 50, "Toaster": 120}
    shared = ask(sales, **by_product, share=True).answers[0].rows
    assert [round(row.percent or 0, 2) for row in shared] == [54.05, 13.51, 32.43]


def test_groups_of_times_are_consecutive(sales: Path) -> None:
    months = ask(sales, aggregate="sum", value="units", group_by=["month"])
    change = ask(sales, aggregate="sum", value="units", group_by=["month"], change=True)

    assert values(months) == {"January 2021": 7, "February 2021": 1, "March 2022": 7}
    assert values(change) == {"February 2021": -6, "March 2022": 6}


def test_periods_are_compared_with_the_first(sales: Path) -> None:
    result = ask(
        sales,
        aggregate="sum",
        value="revenue",
        periods=[["2021-01-01", "2022-01-01"], ["2022-01-01", "2023-01-01"]],
        change=True,
    )

    first, second = result.answers[0].rows
    assert (first.value, second.value, second.change) == (140, 230, 90)
    assert "in 2022 was 230, 90 higher (+64.29%) than in 2021" in result.get_summary()


def test_an_extreme_has_its_time_and_ties(sales: Path) -> None:
    text = ask(sales, aggregate="min", value="price").get_summary()

    assert "lowest price was 10" in text
    assert "15 January 2021" in text
    assert "There are 2 rows with it." in text


def test_streaks_gaps_and_rolling_means(tmp_path: Path) -> None:
    file = tmp_path / "flow.csv"
    hours = [0, 1, 2, 3, 4, 8, 9]
    file.write_text("time,flow\n" + "".join(f"2024-01-01T0{h}:00,{h}\n" for h in hours))
    low = [{"column": "flow", "op": "<", "value": 4}]

    (run,) = ask(file, aggregate="streak", where=low).answers[0].rows
    (gaps,) = ask(file, aggregate="gaps").answers[0].rows
    (mean,) = ask(file, aggregate="last", value="flow", rolling=3).answers[0].rows

    assert (run.value, run.time and run.time.hour, run.until and run.until.hour) == (4, 0, 3)
    assert gaps.value == 3
    assert mean.value == 7


def test_a_join_counts_no_row_twice(sales: Path, tmp_path: Path) -> None:
    regions = tmp_path / "regions.csv"
    regions.write_text("region,hall\nNorth,A\nSouth,B\n")
    query = {"aggregate": "sum", "value": "units", "group_by": ["hall"], "table": "sales"}

    assert values(ask(sales, regions, **query, join="regions")) == {"A": 6, "B": 9}
    regions.write_text("region,hall\nNorth,A\nNorth,B\n")
    with pytest.raises(ValidationError, match="no key"):
        ask(sales, regions, **query, join="regions")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"aggregate": "mean", "value": "profit"}, "no column 'profit'.*revenue"),
        ({"aggregate": "mean", "value": "region"}, "contains no numbers.*units"),
        ({"aggregate": "mean", "value": "units + "}, "not arithmetic"),
        ({"aggregate": "mean", "value": "units; DROP TABLE x"}, "has no column"),
        ({"aggregate": "mean", "value": "units ** 2"}, "not arithmetic"),
        ({"aggregate": "mean", "value": "units + f(1)"}, "not arithmetic"),
        ({"aggregate": "mean", "value": "units + 1e999"}, "not arithmetic"),
        ({"aggregate": "mean", "value": "units + quoted_0"}, "no column 'quoted_0'"),
        ({"aggregate": "mean", "value": "units + speed"}, "no column 'speed'"),
        (
            {"aggregate": "rows", "where": [{"column": "region", "value": "West"}]},
            "No row .* region = 'West'.*North, South",
        ),
        ({"aggregate": "rows", "periods": [["1999-01-01", "2000-01-01"]]}, "covers 15 January"),
        ({"aggregate": "max", "value": "weight_kg", "unit": "m"}, "kg cannot be converted to m"),
        ({"aggregate": "rows", "table": "stock"}, "'stock' does not exist.*sales.csv"),
    ],
)
def test_an_unknown_name_leads_to_replanning_with_the_known_ones(
    sales: Path, query: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message) as raised:
        result = ask(sales, **query)
        assert result.answers[0].rows[0].value not in (0, None)

    assert raised.value.severity is ErrorSeverity.REPLANNING


@pytest.mark.parametrize(
    "query",
    [
        {"aggregate": "mean"},
        {"aggregate": "correlation", "value": "a"},
        {"aggregate": "percentile", "value": "a"},
        {"aggregate": "mean", "value": "a", "by": "b"},
        {"aggregate": "streak"},
        {"aggregate": "rows", "where": [{"column": "a"}]},
        {"aggregate": "rows", "limit": 0},
        {"aggregate": "rows", "sql": "SELECT 1"},
        {"aggregate": "values", "value": "a", "group_by": ["b"]},
    ],
)
def test_an_inconsistent_query_is_refused(query: dict[str, Any]) -> None:
    with pytest.raises(PydanticError):
        Query.model_validate(query)


def test_equal_column_names_are_ambiguous(tmp_path: Path) -> None:
    file = tmp_path / "p.csv"
    file.write_text("day,price,Price\n2024-01-01,1,2\n2024-01-02,3,4\n")

    with pytest.raises(ValidationError, match="matches 2 columns"):
        ask(file, aggregate="mean", value="price")
    (row,) = ask(file, aggregate="mean", value="Price (column 3)").answers[0].rows
    assert row.value == 3


def test_the_exact_name_takes_precedence(tmp_path: Path) -> None:
    file = tmp_path / "p.csv"
    file.write_text("day,month,rain,precipitation\n2024-01-01,7,1,5\n2024-02-02,8,3,6\n")

    assert ask(file, aggregate="sum", value="rain").answers[0].rows[0].value == 4
    assert set(values(ask(file, aggregate="rows", group_by=["month"]))) == {"month 7", "month 8"}


def test_unreadable_values_are_named_with_the_answer(tmp_path: Path) -> None:
    file = tmp_path / "p.csv"
    rows = "".join(f"2024-01-{day:02d},{day}\n" for day in range(1, 29))
    file.write_text(f"day,x\n{rows}2024-02-01,broken\n")

    result = ask(file, aggregate="sum", value="x")

    assert result.answers[0].rows[0].value == 406
    assert result.notes == [
        "1 value of x in p.csv ('broken') cannot be read as a number and is not counted"
    ]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"periods": [["2024-01-01", "2024-02-01"]]}, {"": 2}),
        ({"periods": [["2024-01-01", "2024-02-01"]], "time": "paid"}, {"": 1}),
        ({"group_by": ["month"], "time": "Paid"}, {"January 2024": 1, "March 2024": 1}),
        ({"where": [{"column": "paid", "op": ">=", "value": "2024-02-01"}]}, {"": 1}),
    ],
)
def test_the_time_field_selects_a_date_column(
    tmp_path: Path, query: dict[str, Any], found: dict[str, int]
) -> None:
    file = tmp_path / "bills.csv"
    file.write_text(
        "sent,paid,sum\n2024-01-02,2024-01-05,1\n2024-01-09,2024-03-05,2\n2024-02-02,,3\n"
    )
    result = ask(file, aggregate="rows", **query)
    assert {k: v for k, v in values(result).items() if not k.startswith("no ")} == found

    waited = ask(file, aggregate="mean", value="paid - sent", unit="hours")
    assert waited.answers[0].rows[0].value == pytest.approx((3 + 56) / 2 * 24)
    with pytest.raises(ValidationError, match="Use one of: sent, paid"):
        ask(file, aggregate="rows", time="sum")
