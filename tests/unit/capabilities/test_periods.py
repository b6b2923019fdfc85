"""Periods parsed from texts."""

from __future__ import annotations

from datetime import datetime

import pytest

from capgraph.base import ValidationError
from capgraph.capabilities.periods.expressions import TimeOptions
from capgraph.capabilities.periods.options import options_from_settings
from capgraph.capabilities.periods.parser import parse_expressions
from capgraph.capabilities.time_range_parsing import time_range_of
from capgraph.testing import run_capability

NOW = TimeOptions(datetime(2026, 11, 21, 10, 30))


def spans(text: str, options: TimeOptions = NOW) -> list[tuple[str | None, str | None]]:
    return [
        (str(i.start)[:16] if i.start else None, str(i.end)[:16] if i.end else None)
        for i in parse_expressions(text, options).periods
    ]


def days(text: str) -> list[tuple[str | None, str | None]]:
    return [(a and a[:10], b and b[:10]) for a, b in spans(text)]


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("in the summer of 2015", "2015-06-01", "2015-09-01"),
        ("winter 2012/13", "2012-12-01", "2013-03-01"),
        ("the winter of 2013", "2012-12-01", "2013-03-01"),
        ("in the fall of 2008", "2008-09-01", "2008-12-01"),
        ("in June 2014", "2014-06-01", "2014-07-01"),
        ("in 2014", "2014-01-01", "2015-01-01"),
        ("Q3 2010", "2010-07-01", "2010-10-01"),
        ("2010-Q3", "2010-07-01", "2010-10-01"),
        ("the last quarter of 2012", "2012-10-01", "2013-01-01"),
        ("first half of 2009", "2009-01-01", "2009-07-01"),
        ("in the 1990s", "1990-01-01", "2000-01-01"),
        ("on 4 July 2012", "2012-07-04", "2012-07-05"),
        ("on July 4th, 2012", "2012-07-04", "2012-07-05"),
        ("2012-07-04", "2012-07-04", "2012-07-05"),
        ("on 7/19/2015", "2015-07-19", "2015-07-20"),
        ("on 19/7/2015", "2015-07-19", "2015-07-20"),
        ("on 19.07.2015", "2015-07-19", "2015-07-20"),
        ("June 1-15, 2013", "2013-06-01", "2013-06-16"),
        ("from May 1 to June 15, 2013", "2013-05-01", "2013-06-16"),
        ("from 3 to 5 May 2024", "2024-05-03", "2024-05-06"),
        ("since 3 to 5 May 2024", "2024-05-03", None),
        ("between June and August 2015", "2015-06-01", "2015-09-01"),
        ("from November to February 2015", "2014-11-01", "2015-03-01"),
        ("from November 2014 to February", "2014-11-01", "2015-03-01"),
        ("between 2012 and 2014", "2012-01-01", "2015-01-01"),
        ("2008-2010", "2008-01-01", "2011-01-01"),
        ("since 2010", "2010-01-01", None),
        ("after 3 May 2014", "2014-05-04", None),
        ("before March 2013", None, "2013-03-01"),
        ("until June 2012", None, "2012-07-01"),
        ("since January 2013 until March 2013", "2013-01-01", "2013-04-01"),
        ("first week of June 2012", "2012-06-01", "2012-06-08"),
        ("the last two months of 2014", "2014-11-01", "2015-01-01"),
        ("early 2008", "2008-01-01", "2008-05-01"),
        ("yesterday", "2026-11-20", "2026-11-21"),
        ("last week", "2026-11-09", "2026-11-16"),
        ("last month", "2026-10-01", "2026-11-01"),
        ("past 30 days", "2026-10-23", "2026-11-22"),
        ("last summer", "2026-06-01", "2026-09-01"),
        ("3 days ago", "2026-11-18", "2026-11-19"),
        ("year to date", "2026-01-01", "2026-11-22"),
        ("how much did the price fall in 2008", "2008-01-01", "2009-01-01"),
        ("price above 2000 in 2008", "2008-01-01", "2009-01-01"),
    ],
)
def test_one_period(text: str, start: str | None, end: str | None) -> None:
    assert days(text) == [(start, end)]


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("compare June 2014 with June 2015", ["2014-06-01", "2015-06-01"]),
        ("June 2014 and 2015", ["2014-06-01", "2015-06-01"]),
        ("summers of 2012 and 2013", ["2012-06-01", "2013-06-01"]),
        ("Was June or July 2014 warmer?", ["2014-06-01", "2014-07-01"]),
        ("In 2015, how did June compare with July?", ["2015-06-01", "2015-07-01"]),
        ("the difference between 2012 and 2013", ["2012-01-01", "2013-01-01"]),
        ("compare 2012 to 2015", ["2012-01-01", "2015-01-01"]),
        ("in 2012, 2013 and 2014", ["2012-01-01", "2013-01-01", "2014-01-01"]),
        ("renewables in 2015 vs 2005", ["2015-01-01", "2005-01-01"]),
    ],
)
def test_several_periods_are_all_returned(text: str, starts: list[str]) -> None:
    assert [start for start, _ in days(text)] == starts


@pytest.mark.parametrize(
    "text",
    [
        "What is the average price?",
        "how many months had more than 2000 jobs",
        "rise and fall of prices",
        "which year was wettest",
        "what may have happened",
        "",
    ],
)
def test_a_question_without_time_covers_all_data(text: str) -> None:
    found = time_range_of(text, {})

    assert found.is_unrestricted
    assert found.label == "the whole data"


def test_recurring_times() -> None:
    assert time_range_of("average temperature in March", {}).months == [3]
    assert time_range_of("from November to February", {}).months == [11, 12, 1, 2]
    assert time_range_of("on 4 July", {}).days == ["07-04"]
    assert time_range_of("on weekends in 2010", {}).weekdays == [5, 6]
    assert time_range_of("load on Mondays at 3 pm", {}).hours == [15]
    assert time_range_of("between 6 am and 9 am", {}).hours == [6, 7, 8]
    assert time_range_of("from 10 to 12 pm", {}).hours == [10, 11]
    assert time_range_of("the last 5 years of the data", {}).window.amount == 5


def test_the_southern_summer() -> None:
    assert spans("summer 2015", TimeOptions(NOW.now, southern=True)) == [
        ("2014-12-01 00:00", "2015-03-01 00:00")
    ]


def test_a_time_of_day() -> None:
    assert spans("on January 5, 2010 at 13:00") == [("2010-01-05 13:00", "2010-01-05 14:00")]


@pytest.mark.parametrize("text", ["31 February 2015", "2015-02-31", "April 31, 2014", "31/4/2014"])
def test_an_impossible_date_is_named(text: str) -> None:
    with pytest.raises(ValidationError, match=text.split(",")[0]):
        parse_expressions(text, NOW)


def test_now_is_converted_to_the_time_zone() -> None:
    options = options_from_settings(
        {"now": "2024-03-01T01:00:00+00:00", "timezone": "America/New_York"}
    )

    assert options.now == datetime(2024, 2, 29, 20)
    with pytest.raises(ValidationError, match="Nowhere/City"):
        options_from_settings({"timezone": "Nowhere/City"})
    with pytest.raises(ValidationError, match="soon"):
        options_from_settings({"now": "soon"})


async def test_the_capability_reads_the_task_or_the_time_expression() -> None:
    from capgraph.capabilities.time_range_parsing import TimeRangeParsing

    run = await run_capability(
        TimeRangeParsing, task="rain yesterday", config={"now": "2020-05-02T12:00:00"}
    )
    stated = await run_capability(
        TimeRangeParsing, task="rain", parameters={"time_expression": "May 2012"}
    )

    assert run.output.start == datetime(2020, 5, 1)
    assert stated.output.get_summary() == "Time range: May 2012."
