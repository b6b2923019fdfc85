"""Questions over real files, answered by the whole offline graph and checked with plain SQL.

Every expected value is computed here by DuckDB from the file itself, in SQL that shares nothing
with the code under test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
import vega_datasets

from capgraph import Registry, build_graph
from capgraph.configs.settings import load_settings

FOLDER = Path(vega_datasets.__file__).parent / "_data"
MODULES = [
    "capgraph.capabilities.contexts",
    "capgraph.capabilities.time_range_parsing",
    "capgraph.capabilities.query_data",
    "capgraph.capabilities.plotting",
]
WEATHER, TEMPS, STOCKS, JOBS, POWER, RIOTS, AIRPORTS, CARS = (
    "seattle-weather.csv", "seattle-temps.csv", "stocks.csv", "us-employment.csv",
    "iowa-electricity.csv", "la-riots.csv", "airports.csv", "cars.json",
)  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """A question, the SQL of what its answer must contain, and words that must be in it."""

    question: str
    files: str
    sql: str
    says: tuple[str, ...] = ()


def weather(select: str, where: str = "TRUE", rest: str = "") -> str:
    return f"SELECT {select} FROM '{FOLDER / WEATHER}' WHERE {where} {rest}"


def stocks(select: str, where: str = "TRUE", rest: str = "") -> str:
    table = f"(SELECT symbol, price, strptime(date, '%b %d %Y') AS d FROM '{FOLDER / STOCKS}')"
    return f"SELECT {select} FROM {table} WHERE {where} {rest}"


def jobs(select: str, where: str = "TRUE", rest: str = "") -> str:
    return f"SELECT {select} FROM '{FOLDER / JOBS}' WHERE {where} {rest}"


def power(select: str, where: str = "TRUE", rest: str = "") -> str:
    return f"SELECT {select} FROM '{FOLDER / POWER}' WHERE {where} {rest}"


def temps(select: str, where: str = "TRUE", rest: str = "") -> str:
    return f"SELECT {select} FROM '{FOLDER / TEMPS}' WHERE {where} {rest}"


def of(name: str, select: str, where: str = "TRUE", rest: str = "") -> str:
    return f"SELECT {select} FROM '{FOLDER / name}' WHERE {where} {rest}"


# What the rules without a model do not place, and the word that they must name.
REFUSED = {
    "How did Apple do in 2008?": "Apple",
    "What was the average price of Microsoft in 2006?": "Microsoft",
    "compare Amazon and IBM in 2005": "Amazon",
    "How many workers were in construction in 2009?": "workers",
    "By how much did nonfarm employment change from January 2008 to December 2009?": "nonfarm",
    "Compare construction and manufacturing jobs in 2010": "Compare",
    "What share of electricity came from renewables in 2015 vs 2005?": "electricity",
    "How many days above 70 degrees?": "day",
    "How many airports are in Texas?": "Texas",
    "Was it warmer in Seattle or San Francisco in July 2010?": "warmer",
}
SUMMER = "date BETWEEN '2015-06-01' AND '2015-08-31'"
QUESTIONS = [
    Asked(
        "What was the hottest day in Seattle in the summer of 2015, and how did daily highs move"
        " over those months?",
        WEATHER,
        weather("max(temp_max)", SUMMER)
        + " UNION ALL "
        + weather("avg(temp_max)", SUMMER, "GROUP BY month(date)"),
        ("19 July 2015", "35.0 °C", "June 2015", "August 2015"),
    ),
    Asked(
        "How much rain fell in 2012?", WEATHER, weather("sum(precipitation)", "year(date) = 2012")
    ),
    Asked(
        "What was the average daily low in March 2014?",
        WEATHER,
        weather("avg(temp_min)", "year(date) = 2014 AND month(date) = 3"),
    ),
    Asked(
        "Which month was the wettest?",
        WEATHER,
        weather(
            "sum(precipitation)", rest="GROUP BY date_trunc('month', date) ORDER BY 1 DESC LIMIT 1"
        ),
        ("December 2015",),
    ),
    Asked(
        "Compare rainfall in 2012 and 2013",
        WEATHER,
        weather("sum(precipitation)", "year(date) IN (2012, 2013)", "GROUP BY year(date)"),
        ("lower", "%"),
    ),
    Asked(
        "How many days above 30 degrees were there in 2015?",
        WEATHER,
        weather("count(*)", "temp_max > 30 AND year(date) = 2015"),
    ),
    Asked(
        "How many rainy days were there in 2013?",
        WEATHER,
        weather("count(*)", "precipitation > 0 AND year(date) = 2013"),
    ),
    Asked("How many snowy days were there?", WEATHER, weather("count(*)", "weather = 'snow'")),
    Asked(
        "On how many days did temperatures drop below freezing in 2013?",
        WEATHER,
        weather("count(*)", "temp_min < 0 AND year(date) = 2013"),
    ),
    Asked(
        "What was the median wind speed between January and March 2013?",
        WEATHER,
        weather("median(wind)", "date BETWEEN '2013-01-01' AND '2013-03-31'"),
    ),
    Asked(
        "90th percentile of precipitation in 2014",
        WEATHER,
        weather("quantile_cont(precipitation, 0.9)", "year(date) = 2014"),
    ),
    Asked(
        "Was 2013 warmer than 2012?",
        WEATHER,
        weather("avg(temp_max)", "year(date) IN (2012, 2013)", "GROUP BY year(date)"),
        ("2013", "2012", "temp_max", "temp_min"),
    ),
    Asked(
        "Which stock had the highest price in 2008?",
        STOCKS,
        stocks("max(price)", "year(d) = 2008"),
        ("GOOG", "May 2008"),
    ),
    Asked(
        "How did Apple do in 2008?",
        STOCKS,
        stocks("price", "symbol = 'AAPL' AND d IN ('2008-01-01', '2008-12-01')"),
        ("fell", "January 2008", "December 2008"),
    ),
    Asked(
        "What was the average price of Microsoft in 2006?",
        STOCKS,
        stocks("avg(price)", "symbol = 'MSFT' AND year(d) = 2006"),
    ),
    Asked(
        "When did GOOG first trade above 500?",
        STOCKS,
        stocks("arg_min(price, d)", "symbol = 'GOOG' AND price > 500"),
        ("January 2007",),
    ),
    Asked(
        "compare Amazon and IBM in 2005",
        STOCKS,
        stocks("avg(price)", "symbol IN ('AMZN', 'IBM') AND year(d) = 2005", "GROUP BY symbol"),
    ),
    Asked(
        "Lowest price of IBM ever",
        STOCKS,
        stocks("min(price)", "symbol = 'IBM'"),
        ("September 2002",),
    ),
    Asked(
        "How many workers were in construction in 2009?",
        JOBS,
        jobs("avg(construction)", "year(month) = 2009"),
    ),
    Asked(
        "When was manufacturing employment lowest?",
        JOBS,
        jobs("min(manufacturing)"),
        ("February 2010",),
    ),
    Asked(
        "By how much did nonfarm employment change from January 2008 to December 2009?",
        JOBS,
        jobs(
            "arg_max(nonfarm, month) - arg_min(nonfarm, month)",
            "month BETWEEN '2008-01-01' AND '2009-12-01'",
        ),
        ("fell",),
    ),
    Asked(
        "Compare construction and manufacturing jobs in 2010",
        JOBS,
        jobs("avg(construction)", "year(month) = 2010")
        + " UNION ALL "
        + jobs("avg(manufacturing)", "year(month) = 2010"),
    ),
    Asked(
        "What is the trend of government employment?",
        JOBS,
        jobs("regr_slope(government, epoch(month) / (365.25 * 86400))"),
    ),
    Asked(
        "What share of electricity came from renewables in 2015 vs 2005?",
        POWER,
        power(
            "100.0 * sum(net_generation) FILTER (source = 'Renewables') / sum(net_generation)",
            "year(year) IN (2005, 2015)",
            "GROUP BY year",
        ),
    ),
    Asked(
        "Which source generated the most in 2010?",
        POWER,
        power("max(net_generation)", "year(year) = 2010"),
        ("Fossil Fuels",),
    ),
    Asked(
        "In which year did renewables first exceed 10000?",
        POWER,
        power("min(net_generation)", "source = 'Renewables' AND net_generation > 10000"),
        ("2010",),
    ),
    Asked(
        "total electricity generation in 2012",
        POWER,
        power("sum(net_generation)", "year(year) = 2012"),
    ),
    Asked("What was the hottest hour?", TEMPS, temps("max(temp)"), ("28 July 2010 at 16:00", "°F")),
    Asked(
        "average temperature at noon in July 2010",
        TEMPS,
        temps("avg(temp)", "hour(date) = 12 AND month(date) = 7"),
    ),
    Asked(
        "How many days above 70 degrees?",
        TEMPS,
        temps("count(DISTINCT date::DATE)", "temp > 70"),
        ("days",),
    ),
    Asked(
        "monthly mean temperature",
        TEMPS,
        temps("avg(temp)", rest="GROUP BY month(date)"),
        ("August 2010",),
    ),
    Asked("average age by race", RIOTS, of(RIOTS, "avg(age)", "age IS NOT NULL", "GROUP BY race")),
    Asked(
        "how many people died on 30 April 1992",
        RIOTS,
        of(RIOTS, "count(*)", "death_date = '1992-04-30'"),
    ),
    Asked("How many airports are in Texas?", AIRPORTS, of(AIRPORTS, "count(*)", "state = 'TX'")),
    Asked(
        "average horsepower by origin", CARS, of(CARS, "avg(Horsepower)", rest="GROUP BY Origin")
    ),
    Asked(
        "correlation between weight and mpg",
        CARS,
        of(CARS, "corr(Weight_in_lbs, Miles_per_Gallon)"),
    ),
    Asked(
        "Was it warmer in Seattle or San Francisco in July 2010?",
        f"{TEMPS} sf-temps.csv",
        temps("avg(temp)", "month(date) = 7")
        + " UNION ALL "
        + of("sf-temps.csv", "avg(temp)", "month(date) = 7"),
    ),
    Asked(
        "highest price of IBM",
        f"{WEATHER} {STOCKS} {JOBS}",
        stocks("max(price)", "symbol = 'IBM'"),
        ("December 2009",),
    ),
]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("plots")
    settings = load_settings(
        modules=MODULES,
        provided_types=["DATA_SOURCE"],
        capabilities={"plotting": {"output_dir": str(folder)}},
    )
    return build_graph(Registry.from_settings(settings), settings=settings)


async def answer(graph, question: str, files: list[Path]) -> str:
    data = {"DATA_SOURCE": {"files": {"files": [str(file) for file in files]}}}
    out = await graph.ainvoke({"messages": [("user", question)], "capability_context_data": data})
    return str(out["messages"][-1].content)


def numbers_in(text: str) -> list[tuple[float, float]]:
    """Return the numbers of a text, each with half of its last digit."""
    found = []
    for match in re.finditer(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?", text):
        digits = match[0].replace(",", "")
        decimals = len(digits.partition(".")[2])
        found.append((abs(float(digits)), 0.5 * 10**-decimals * 1.001))
    return found


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: asked.question[:60])
async def test_answer_has_the_value_of_plain_sql(graph, asked: Asked) -> None:
    text = await answer(graph, asked.question, [FOLDER / name for name in asked.files.split()])
    if asked.question in REFUSED:
        assert REFUSED[asked.question] in text
        assert " was " not in text.partition("Fix:")[0]  # a proposal may follow
        return

    expected = [abs(float(row[0])) for row in duckdb.sql(asked.sql).fetchall()]
    said = numbers_in(text)
    assert expected, "the SQL of the test gives nothing"
    for value in expected:
        assert any(abs(value - number) <= slack for number, slack in said), (value, text)
    for words in asked.says:
        assert words in text


@pytest.mark.parametrize(
    ("question", "file", "words"),
    [
        ("average humidity in 2012", WEATHER, ["humidity", "temp_max", "precipitation"]),
        ("highest temperature in 2020", WEATHER, ["2020", "1 January 2012 to 31 December 2015"]),
        ("mean of `Wind Speed` in rooms", WEATHER, ["rooms", "wind"]),
        ("highest price of Tesla in 2008", STOCKS, ["Tesla"]),
        ("how much electricity came from coal in 2010?", POWER, ["coal"]),
        ("temperature on 31 February 2015", WEATHER, ["31 February 2015", "28 days"]),
        ("why did prices fall in 2008?", STOCKS, ["why"]),
    ],
)
async def test_what_cannot_be_answered_is_said_with_the_choices(
    graph, question: str, file: str, words: list[str]
) -> None:
    text = await answer(graph, question, [FOLDER / file])

    for word in words:
        assert word in text


async def test_a_second_question_is_not_answered_with_the_data_of_the_first(graph) -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    graph = graph.copy()
    graph.checkpointer = InMemorySaver()
    config = {"configurable": {"thread_id": "two questions"}}
    data = {"DATA_SOURCE": {"files": {"files": [str(FOLDER / WEATHER), str(FOLDER / STOCKS)]}}}
    await graph.ainvoke(
        {"messages": [("user", "How much rain fell in 2012?")], "capability_context_data": data},
        config,
    )

    out = await graph.ainvoke(
        {"messages": [("user", "What was the highest price of IBM?")]}, config
    )

    assert "130.32" in out["messages"][-1].content
    assert "2012" not in out["messages"][-1].content


async def test_a_caller_reads_no_file_outside_of_the_folders(graph, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("name,pay\nAda,900\n")

    text = await answer(graph, "total pay", [secret])

    assert "outside the folders" in text
    assert "900" not in text
    assert str(tmp_path) not in text


async def test_an_answer_names_the_values_that_it_lacks(tmp_path: Path) -> None:
    rows = "".join(f"2024-01-{day:02d},{day}\n" for day in range(1, 29))
    (tmp_path / "pay.csv").write_text(f"day,pay\n{rows}2024-01-29,broken\n")
    settings = load_settings(
        modules=MODULES, provided_types=["DATA_SOURCE"], data_folders=[str(tmp_path)]
    )
    graph = build_graph(Registry.from_settings(settings), settings=settings)

    text = await answer(graph, "total pay", [tmp_path / "pay.csv"])

    assert "406" in text
    assert "('broken') cannot be read as a number" in text


async def test_a_question_that_follows_is_about_the_same_data(graph) -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    graph = graph.copy()
    graph.checkpointer = InMemorySaver()
    config = {"configurable": {"thread_id": "following"}}
    data = {"DATA_SOURCE": {"files": {"files": [str(FOLDER / STOCKS)]}}}
    await graph.ainvoke(
        {"messages": [("user", "highest price of IBM in 2004")], "capability_context_data": data},
        config,
    )

    out = await graph.ainvoke({"messages": [("user", "and in 2005?")]}, config)

    (highest,) = duckdb.sql(stocks("max(price)", "symbol = 'IBM' AND year(d) = 2005")).fetchall()
    assert f"{highest[0]:.2f}" in out["messages"][-1].content
