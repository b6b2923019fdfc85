"""Natural questions over small tables with known answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from capgraph.base import ValidationError
from capgraph.capabilities.data.answer import answer_question
from capgraph.capabilities.periods.options import parse_times

PUMP = "time,flow (m3/h),inlet pressure (bar),motor temp (degC)\n" + "".join(
    f"2025-03-{day:02} {hour:02}:00,{flow},{pressure},{temp}\n"
    for day in range(1, 32)
    for hour, flow, pressure, temp in (
        (6, 80 + day, 4 + day / 100, 50 + day),
        (18, 90 - day, 5 - day / 100, 60 - day),
    )
)
WEATHER = "date,wind_dir,wind_speed,wind_gust,humid,station\n" + "".join(
    f"2013-{month:02}-{day:02},{day},{month + day},{2 * (month + day)},{40 + month},{'AB'[day % 2]}\n"
    for month in (1, 2, 3)
    for day in (1, 2, 3, 4)
)
PEOPLE = (
    "name,class,age,sex,survived\nAda,1st,30,female,1\nBob,1st,40,male,0\nCid,2nd,20,male,1\n"
    "Dot,2nd,25,female,1\nEve,3rd,50,female,0\n"
)
SALES = (
    "date,region,category,sales,profit\n2024-01-01,West,Chairs,10,-3\n2024-01-02,West,Tables,50,-9\n"
    "2024-01-03,East,Chairs,30,8\n2024-01-04,East,Lamps,70,20\n"
)
PRICES = "date,price_final,cost\n2024-01-01,10,99\n2024-01-02,30,1\n"
CO2 = "date,co2\n1960-01-01,300\n1961-01-01,340\n1962-01-01,352\n2000-01-01,369\n"
BIRDS = "species,body_mass_g,bill_length_mm,bill_depth_mm\nA,10,3,9\nA,30,4,8\nB,25,5,7\nB,26,2,6\n"
DAYS = "date,rain (mm),temperature (celsius)\n" + "".join(
    f"2024-05-{day:02},{rain},{temperature}\n"
    for day, rain, temperature in (
        (1, 4, -3), (2, 0, -1), (3, 0, 5), (4, 9, 12), (5, 0, 8), (6, 0, 7), (7, 0, 6), (8, 1, 2)
    )
)  # fmt: skip
TABLES = {
    "days": DAYS,
    "pump": PUMP, "weather": WEATHER, "people": PEOPLE, "sales": SALES, "orders": PRICES,
    "co2": CO2, "birds": BIRDS,
}  # fmt: skip


def ask(folder: Path, table: str, question: str) -> str:
    path = folder / f"{table}.csv"
    path.write_text(TABLES[table], encoding="utf-8")
    found = answer_question([str(path)], question, None, (), {"data_folders": [str(path)]})
    return " ".join(answer.text for answer in found.answers)


@pytest.mark.parametrize(
    ("table", "question", "told"),
    [
        ("weather", "Which day in 2013 had the strongest wind?", ["4 March 2013", " 7"]),
        ("weather", "How windy was it on average?", ["wind_speed", "4.5"]),
        ("weather", "Which month was the most humid?", ["March 2013", "43"]),
        ("weather", "Which station is the windiest?", ["A", "wind_speed"]),
        ("pump", "When did the flow drop to its minimum, and how low?", ["59", "31 March"]),
        ("pump", "largest inlet pressure in the second half of March", ["4.84", "16 March"]),
        ("pump", "How hot did the motor get?", ["81", "31 March"]),
        ("pump", "On which day did the motor run hottest?", ["31 March", "81"]),
        ("pump", "How often was the flow below 65?", ["6"]),
        ("pump", "When did the inlet pressure peak?", ["1 March", "4.99"]),
        ("people", "How many women survived?", ["2"]),
        ("people", "How many passengers did not survive?", ["2"]),
        ("sales", "Which category loses the most money?", ["Tables", "9"]),
        ("sales", "What is our best selling category?", ["Lamps", "70"]),
        ("sales", "Which region brings the most profit?", ["East", "28"]),
        ("orders", "What was the highest price?", ["price_final", "30"]),
        ("co2", "By how much did co2 rise between 1960 and 2000?", ["69"]),
        ("co2", "In which year did co2 first pass 350?", ["1962"]),
        ("birds", "Which species is the heaviest?", ["B", "25.5"]),
        ("birds", "What is the longest bill?", ["bill_length_mm", "5"]),
        ("weather", "What was the highest wind gust on record?", ["14", "4 March 2013"]),
        ("weather", "How strong was the wind speed on 2 February 2013?", ["was 4."]),
        ("pump", "How high did the flow climb?", ["111", "31 March"]),
        ("pump", "When did the inlet pressure hit its low?", ["4.01", "1 March"]),
        ("pump", "Which two days had the highest flow?", ["111", "110"]),
        ("co2", "When did co2 exceed 350 for the first time?", ["1962"]),
        ("co2", "When was the last time co2 was below 345?", ["340", "1961"]),
        ("birds", "Which species has the deepest bill?", ["A has the highest mean", "8.5", "9"]),
        ("people", "How many women died?", ["1"]),
        ("people", "Are men older than women?", ["30", "35"]),
        ("sales", "What is the profit margin in the East?", ["28.00%"]),
        ("sales", "Which region made the biggest loss?", ["West", "12"]),
        ("sales", "What is the most common category?", ["Chairs", "2"]),
        ("days", "On how many days did it rain?", ["3"]),
        ("days", "How long was the longest dry spell?", ["3 rows", "5 May 2024", "7 May 2024"]),
        ("days", "On how many days was it below zero?", ["2"]),
        ("days", "What was the coldest air temperature?", ["-3", "1 May 2024"]),
    ],
)
def test_a_natural_question_is_answered(
    tmp_path: Path, table: str, question: str, told: list[str]
) -> None:
    answer = ask(tmp_path, table, question)
    assert [part for part in told if part not in answer] == [], answer


@pytest.mark.parametrize(
    ("table", "question"),
    [
        ("pump", "What was the average low temperature in March?"),
        ("weather", "Which month had the lowest humidity?"),
        ("co2", "Which year grew the most from 1960 to 2000?"),
        ("pump", "How cold did the bearing get?"),
        ("days", "What was the highest temperature on cold days?"),
    ],
)
def test_an_ambiguous_natural_question_is_refused(
    tmp_path: Path, table: str, question: str
) -> None:
    with pytest.raises(ValidationError):
        ask(tmp_path, table, question)


@pytest.mark.parametrize(
    ("table", "question"),
    [
        ("weather", "Which month had the lowest humidity?"),
        ("weather", "What was the highest humidity in the attic?"),
        ("people", "What was the average age of the Norwegian passengers?"),
    ],
)
def test_a_refusal_proposes_a_question_that_is_answered(
    tmp_path: Path, table: str, question: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        ask(tmp_path, table, question)
    assert ask(tmp_path, table, refused.value.facts["question"])


@pytest.mark.parametrize(
    ("table", "question"),
    [
        ("sales", "How many sales did each of the best managers make?"),
        ("co2", "Which year grew the most from 1960 to 2000?"),
    ],
)
def test_a_proposal_never_drops_words_that_decide_the_question(
    tmp_path: Path, table: str, question: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        ask(tmp_path, table, question)
    assert "question" not in refused.value.facts


@pytest.mark.parametrize(
    ("text", "first", "after"),
    [
        ("the first half of March 2014", "2014-03-01", "2014-03-16"),
        ("the second half of March 2014", "2014-03-16", "2014-04-01"),
        ("the second half of 2014", "2014-07-01", "2015-01-01"),
    ],
)
def test_parts_of_a_month_stay_within_the_month(text: str, first: str, after: str) -> None:
    (period,) = parse_times(text, {}).periods
    assert [str(moment)[:10] for moment in (period.start, period.end)] == [first, after]


def test_a_part_of_a_month_needs_a_year() -> None:
    found = parse_times("in the second half of March", {})
    assert "second half" not in "in the second half of March"[slice(*found.spans[0])]
