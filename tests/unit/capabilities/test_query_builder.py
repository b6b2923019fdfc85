"""Queries built from questions without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capgraph.base import CapgraphError, ValidationError
from capgraph.capabilities.data.answer import answer_question
from capgraph.capabilities.data.cell_formats import detect_time_format
from capgraph.capabilities.periods.options import MAX_TEXT_CHARS

SALES = (
    "Order Date,Region,Product,Units Sold,Unit Price,Revenue\n"
    "01/15/2021,North,Kettle,2,10,20\n"
    "01/15/2021,South,Toaster,5,20,100\n"
    "02/20/2021,North,Toaster,1,20,20\n"
    "03/05/2022,South,Coffee Maker,4,50,200\n"
    "03/06/2022,North,Kettle,3,10,30\n"
)


@pytest.fixture
def sales(tmp_path: Path) -> Path:
    file = tmp_path / "sales.csv"
    file.write_text(SALES)
    return file


def ask(question: str, *files: Path | str, previous: Any = ()) -> Any:
    names = [str(file) for file in files]
    return answer_question(names, question, None, previous, {"data_folders": names})


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("total revenue in 2021", "140"),
        ("Revenue by product", "Toaster: 120"),
        ("Which product had the highest revenue in the North region?", "Kettle has the highest"),
        ("How many rows were there in 2021?", "3"),
        ("What share of revenue came from Toaster?", "32.43%"),
        ("revenue in 2022 versus 2021", "90 lower (-39.13%) than in 2022"),
        ("average unit price", "22"),
        ("Compare Kettle and Toaster revenue", "Kettle: 50; Toaster: 120"),
        ("highest unit price", "50"),
        ("top 2 products by revenue", "Coffee Maker: 200; Toaster: 120"),
        ("how many rows have a revenue above 50?", "2"),
        ("median revenue per region", "North: 20"),
    ],
)
def test_questions_about_an_unknown_table(sales: Path, question: str, said: str) -> None:
    assert said in ask(question, sales).get_summary()


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ("average salary", "salary"),
        ("total revenue without Toaster", "without"),
        ("why was revenue so low in 2021", "why"),
        ("revenue of Portland", "Portland"),
        ("average revenue except in the North", "except"),
        ("how much did revenue grow on Mars", "grow"),
        ("total revenue on loyal days", "loyal"),
    ],
)
def test_an_unknown_word_is_named(sales: Path, question: str, word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        ask(question, sales)


def test_an_ambiguous_question_is_refused(sales: Path) -> None:
    with pytest.raises(ValidationError, match=r"may mean several columns.*Units Sold, Unit Price"):
        ask("average unit", sales)
    with pytest.raises(ValidationError, match=r"mean or the total|mean.*total"):
        ask("value of x in 2021", _plain(sales.parent))


def _plain(folder: Path) -> Path:
    file = folder / "plain.csv"
    file.write_text("day,x\n2021-01-01,1\n2021-01-02,2\n")
    return file


GUESTS = (
    "date,day,smoker,survived,sex,bill\n"
    "2024-01-05,1,Yes,1,male,9\n2024-01-05,2,No,0,female,3\n2024-01-06,3,Yes,1,female,5\n"
)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("how many smokers were there?", "was 2."),
        ("mean bill by day", "5 January 2024: 6"),  # a date, not the column of that name
    ],
)
def test_boolean_columns_and_columns_named_like_times(
    tmp_path: Path, question: str, said: str
) -> None:
    file = tmp_path / "guests.csv"
    file.write_text(GUESTS)

    assert said in ask(question, file).get_summary()


@pytest.mark.parametrize(
    "question",
    [
        "what percentage of women survived?",  # of the women, or of all?
        "what share of female guests are smokers?",
        "average revenue per month",
    ],
)
def test_a_question_with_two_meanings_is_refused(
    sales: Path, tmp_path: Path, question: str
) -> None:
    file = tmp_path / "guests.csv"
    file.write_text(GUESTS)

    with pytest.raises(ValidationError):
        ask(question, file if "share" in question or "percentage" in question else sales)


SHOPS = "date,shop,customers,sales\n" + "".join(
    f"2024-0{month},{shop},{number},{number}\n"
    for month, numbers in ((1, (5, 4)), (2, (6, 1)))
    for shop, number in zip(("A", "B"), numbers, strict=True)
)


def test_a_month_includes_all_series(tmp_path: Path) -> None:
    file = tmp_path / "shops.csv"
    file.write_text(SHOPS)

    assert "January 2024" in ask("which month had the most customers?", file).get_summary()
    monthly = ask("monthly sales in 2024", file).get_summary()
    assert "January 2024: 9; February 2024: 7" in monthly


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ("sales on weekends", "whole months"),
        ("hottest summer", "hottest"),
        ("total sales in kg", "kg"),
        ("heaviest shop", "heaviest"),
    ],
)
def test_a_question_beyond_the_data_is_refused(tmp_path: Path, question: str, why: str) -> None:
    file = tmp_path / "shops.csv"
    file.write_text(SHOPS)

    with pytest.raises(ValidationError, match=why):
        ask(question, file)


def test_rows_without_a_group_name_are_not_ranked(tmp_path: Path) -> None:
    file = tmp_path / "events.csv"
    file.write_text("id,technician\n1,Bo\n2,Bo\n3,Ada\n4,Ada\n5,\n")

    assert "no technician" not in ask("which technician had the fewest rows?", file).get_summary()


def test_a_follow_up_changes_the_previous_query(sales: Path) -> None:
    first = ask("total revenue in the North in 2021", sales)
    queries = [answer.query for answer in first.answers]

    second = ask("and in 2022?", sales, previous=queries)
    third = ask("and South?", sales, previous=[answer.query for answer in second.answers])

    assert [r.answers[0].rows[0].value for r in (first, second, third)] == [40, 30, 200]


def test_the_table_that_explains_all_words_is_used(sales: Path, tmp_path: Path) -> None:
    staff = tmp_path / "staff.csv"
    staff.write_text("name,age\nAda,36\nBo,40\n")

    assert "40" in ask("highest age", sales, staff).get_summary()
    assert "370" in ask("total revenue", sales, staff).get_summary()


@pytest.mark.parametrize(
    "question",
    ["", "?", "`", "''", "\x00", "the " * 5, "x" * (MAX_TEXT_CHARS * 3), "in 2012 " * 3000],
)
def test_odd_questions_end_in_a_clear_error(sales: Path, question: str) -> None:
    with pytest.raises(CapgraphError) as caught:
        ask(question, sales)

    assert isinstance(caught.value, ValidationError)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("values", "reading"),
    [
        (["2015-01-01", "2015-01-02"], "iso"),
        (["Januar 2022", "Februar 2022"], "named month"),
        (["12.5", "13.5"], None),
        (["a", "b"], None),
    ],
)
def test_time_formats_are_detected(values: list[str], reading: str | None) -> None:
    assert detect_time_format("x", values) == reading


ORDERS = (
    "order_id,order_date,ship_date,status,express,quantity,amount_usd\n"
    "1,2022-12-30,2023-01-02,shipped,Y,2,10\n2,2023-01-05,2023-01-05,shipped,N,1,4\n"
    "3,2023-01-06,,cancelled,Y,3,6\n4,2023-02-01,2023-02-03,returned,N,4,12\n"
    "5,2023-02-01,2023-02-03,returned,N,5,20\n"
)


@pytest.mark.parametrize(
    ("question", "value"),
    [
        ("how many orders were there in January 2023?", 2),  # when they were ordered
        ("how many orders were shipped in January 2023?", 2),
        ("how many orders were shipped in February 2023?", 2),  # not one different date
        ("total amount of orders shipped in 2023", 46),
        ("orders per ship year", 4),
        ("how many orders have no ship date?", 1),
        ("how many express orders in 2023?", 1),  # not two different values
        ("average quantity", 3),
        ("amount per quantity", 52 / 15),  # not grouped by each quantity
    ],
)
def test_the_named_date_column_counts(tmp_path: Path, question: str, value: float) -> None:
    file = tmp_path / "orders.csv"
    file.write_text(ORDERS)

    assert ask(question, file).answers[0].rows[0].value == pytest.approx(value)


def test_the_answer_names_the_assumed_date_column(tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text(ORDERS)

    said = ask("how many orders were there in January 2023?", file).get_summary()

    assert "Times refer to order_date, not to ship_date" in said
    with pytest.raises(ValidationError, match="'shipped'"):  # the state, or the day?
        ask("total amount of shipped orders in 2023", file)
    assert ask("how many different ship days were there", file).answers[0].rows[0].value == 3


RESPONDENTS = "respondent,age,recommends\n" + "".join(
    f"{number},{20 + number},{'no' if number % 3 else 'yes'}\n" for number in range(1, 31)
)


def test_a_row_number_is_not_measured(tmp_path: Path) -> None:
    file = tmp_path / "answers.csv"
    file.write_text(RESPONDENTS)

    young = ask("how many respondents with an age under 30?", file)
    share = ask("share of respondents who recommend", file)

    assert young.answers[0].rows[0].value == 9
    assert share.answers[0].rows[0].percent == pytest.approx(100 / 3)


def test_the_mean_month_of_several_series_is_ambiguous(tmp_path: Path) -> None:
    file = tmp_path / "shops.csv"
    file.write_text(SHOPS)

    with pytest.raises(ValidationError, match="month"):
        ask("average monthly sales", file)


def test_ties_for_the_first_place_are_named(sales: Path) -> None:
    said = ask("which product has the most rows in 2021?", sales).get_summary()

    assert "Toaster has the highest" in said
    equal = ask("which region has the most rows in 2022?", sales).get_summary()
    assert "North" in equal
    assert "The same holds for South." in equal


FLIGHTS = "year,month,day,hour,utc,delay_min,gdpPercap,country,iso\n" + "".join(
    f"2013,1,{day},{hour},2013-01-{day + (hour > 18):02d} {(hour + 5) % 24:02d}:00,{day * hour},{day},{name},{name[:3]}\n"
    for day in range(1, 8)
    for hour, name in ((6, "Norway"), (20, "Sweden"))
)


@pytest.mark.parametrize(
    ("question", "value"),
    [
        ("how many flights on 3 January 2013?", 2),  # by their own day, not that of Greenwich
        ("how many flights from 3 to 5 January 2013?", 6),
        ("how many flights with a delay of more than 1 hour?", 4),
        ("total delay of Norway in hours", 2.8),
    ],
)
def test_days_and_durations_come_from_the_data(tmp_path: Path, question: str, value: float) -> None:
    file = tmp_path / "flights.csv"
    file.write_text(FLIGHTS)

    assert ask(question, file).answers[0].rows[0].value == pytest.approx(value)


def test_per_item_averages_are_not_added_up(tmp_path: Path) -> None:
    file = tmp_path / "flights.csv"
    file.write_text(FLIGHTS)

    with pytest.raises(ValidationError, match="total"):
        ask("total gdp of Norway", file)


def test_years_with_one_row_each_are_not_ranked(tmp_path: Path) -> None:
    file = tmp_path / "spots.csv"
    file.write_text("year,activity\n1700,5\n1701,0\n1702,9\n")

    with pytest.raises(ValidationError, match="quietest"):
        ask("quietest year", file)


def test_a_column_named_like_its_file_is_not_dropped(tmp_path: Path) -> None:
    file = tmp_path / "tips.csv"
    file.write_text("tip,size\n1,2\n2,2\n5,3\n")

    with pytest.raises(ValidationError, match="mean"):
        ask("tip per size", file)


def test_a_superlative_of_one_quantity_does_not_rank_another(tmp_path: Path) -> None:
    file = tmp_path / "towns.csv"
    file.write_text("day,Graz (°C),Rain Graz [mm]\n2024-01-01,3,0\n2024-01-02,9,4\n")

    assert "was 9 °C" in ask("hottest day in Graz", file).get_summary()
    with pytest.raises(ValidationError, match="snowiest"):
        ask("snowiest day in Graz", file)
