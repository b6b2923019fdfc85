"""What questions ask for, and which columns and rows their words mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from capabilities.data.analysis.request import Threshold, parse_request
from capabilities.data.analysis.run import compute
from capabilities.data.readings import time_reading
from capabilities.data.retrieve import retrieve
from capabilities.data.words import MAX_TEXT
from framework.base import CapgraphError, ValidationError


@pytest.mark.parametrize(
    ("question", "threshold"),
    [
        ("days above 30 °C", Threshold(">", 30, "°C")),
        ("days with at least 5 mm", Threshold(">=", 5, "mm")),
        ("below freezing", Threshold("<", 0, "°C")),
        ("20 degrees or less", Threshold("<=", 20, None)),
        ("more than 1,500 jobs", Threshold(">", 1500, None)),
        ("over 2 million people", Threshold(">", 2e6, None)),
        ("How many months was it negative", Threshold("<", 0, None)),
        ("how many cars have 8 cylinders", Threshold("=", 8, None)),
        ("streak of more than 3 days", None),
        ("top 5 days", None),
        ("average price", None),
    ],
)
def test_thresholds(question: str, threshold: Threshold | None) -> None:
    found = parse_request(question).threshold

    assert (found and (found.operator, found.value)) == (
        threshold and (threshold.operator, threshold.value)
    )
    if threshold is not None and threshold.unit is not None:
        assert found is not None
        assert found.unit == threshold.unit


@pytest.mark.parametrize(
    ("question", "group", "extreme"),
    [
        ("Which month was wettest?", "month", True),
        ("hottest day", "day", True),
        ("average by day of the week", "weekday", False),
        ("mean per hour of the day", "hour_of_day", False),
        ("monthly totals", "month", False),
        ("driest summer", "season", True),
        ("weekends versus weekdays", "weekend", False),
        ("average price", None, False),
    ],
)
def test_groups(question: str, group: str | None, extreme: bool) -> None:
    request = parse_request(question)

    assert (request.group, request.grouped_extreme) == (group, extreme)


def test_words_of_a_column_name_ask_for_nothing() -> None:
    request = parse_request("standard deviation of temp_min", names=["temp_min"])

    assert request.statistics == ["std"]


@pytest.mark.parametrize(
    ("values", "reading"),
    [
        (["05/14/2021", "11/02/2021"], "format:%m/%d/%Y"),
        (["14/05/2021", "02/11/2021"], "format:%d/%m/%Y"),
        (["05/14/21", "11/02/21"], "format:%m/%d/%y"),
        (["20210514T1200", "x"], None),
        (["12.5", "13"], None),
    ],
)
def test_dates_are_read_only_where_they_are_dates(values: list[str], reading: str | None) -> None:
    assert time_reading("when_bought" if reading is None else "Order Date", values) == reading


def ask(question: str, file: Path) -> str:
    settings = {"data_folders": [str(file)]}
    dataset = retrieve([str(file)], question, settings=settings)
    return compute(dataset, question, settings).get_summary()


@pytest.fixture
def sales(tmp_path: Path) -> Path:
    file = tmp_path / "sales.csv"
    file.write_text(
        "Order Date,Region,Product,Units Sold,Unit Price,Revenue\n"
        "01/15/2021,North,Kettle,2,10,20\n"
        "01/15/2021,South,Toaster,5,20,100\n"
        "02/20/2021,North,Toaster,1,20,20\n"
        "03/05/2022,South,Coffee Maker,4,50,200\n"
        "03/06/2022,North,Kettle,3,10,30\n"
    )
    return file


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("How many toasters were sold in 2021?", "6"),
        ("total revenue in 2021", "140"),
        ("Revenue by product", "Toaster 120"),
        ("Which region sold the most units?", "South had the highest total Units Sold: 9"),
        ("Which product had the highest revenue in the North region?", "Kettle had the highest"),
        ("top 2 days by revenue", "120 on 15 January 2021"),
        ("How many orders were there in 2021?", "3 rows"),
        ("What share of revenue came from Toaster?", "32.4%"),
        ("revenue in 2022 versus 2021", "90 higher than 2021 (+64.3%)"),
        ("average unit price", "22.0"),
        ("Compare Kettle and Toaster revenue", "50 for Kettle and 120 for Toaster"),
    ],
)
def test_another_table_nobody_has_seen(sales: Path, question: str, said: str) -> None:
    assert said in ask(question, sales)


@pytest.mark.parametrize(
    "question", ["", "?", "`", "''", "\x00", "the " * 5, "x" * (MAX_TEXT * 3), "in 2012 " * 3000]
)
def test_odd_questions_end_in_a_clear_error(sales: Path, question: str) -> None:
    with pytest.raises(CapgraphError) as caught:
        ask(question, sales)

    assert isinstance(caught.value, ValidationError)
    assert caught.value.fix
