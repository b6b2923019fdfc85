"""Queries that a model writes for questions that the parser does not understand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capgraph.base import ValidationError
from capgraph.capabilities.contexts import DataSource, QueryResult
from capgraph.capabilities.query_data import QueryData
from capgraph.testing import ScriptedModel, run_capability

WEATHER = DataSource(files=["vega:seattle-weather.csv"])
STOCKS = DataSource(files=["vega:stocks.csv"])


async def ask(
    question: str, reply: Any, source: DataSource = WEATHER
) -> tuple[QueryResult, ScriptedModel]:
    """Answer a question with a model whose only reply is the given query."""
    model = ScriptedModel(responses=[] if reply is None else [reply])
    run = await run_capability(QueryData, inputs={DataSource: source}, task=question, model=model)
    result: QueryResult = run.output
    return result, model


async def test_the_model_is_asked_only_if_the_parser_does_not_understand() -> None:
    result, model = await ask("mean wind in 2014", None)

    assert not model.calls
    assert result.answers[0].query.value == "wind"


async def test_a_query_of_the_model_gets_the_times_of_the_question() -> None:
    reply = {
        "aggregate": "rows",
        "where": [{"column": "weather", "op": "=", "value": "sun"}],
    }
    result, model = await ask("how many sunny days did 2014 have", reply)

    assert [call.schema for call in model.calls] == ["Query"]
    assert "'weather' category" in model.calls[0].prompt
    assert "211" in result.answers[0].text


async def test_invented_conditions_are_dropped() -> None:
    reply = {
        "aggregate": "rows",
        "where": [
            {"column": "weather", "op": "=", "value": "fog"},
            {"column": "temp_max", "op": ">", "value": 0},
            {"column": "temp_max", "op": "<", "value": 35.6},
        ],
    }
    result, _ = await ask("how many foggy days were there in 2015", reply)

    assert [one.column for one in result.answers[0].query.where] == ["weather"]


@pytest.mark.parametrize(
    ("question", "reply", "source"),
    [
        # The query omits the number of the question.
        (
            "when was the last day with more than 40 mm of rain",
            {"aggregate": "last", "value": "precipitation"},
            WEATHER,
        ),
        # The question does not mention the measured column.
        ("what's the air pressure in June 2012", {"aggregate": "mean", "value": "wind"}, WEATHER),
        # The query omits the condition that the days are rainy.
        ("average gusts on rainy days", {"aggregate": "mean", "value": "wind"}, WEATHER),
        # The condition's value is in the question, but not in the table.
        (
            "What was the price of TSLA in 2005?",
            {
                "aggregate": "values",
                "value": "price",
                "where": [{"column": "symbol", "op": "=", "value": "TSLA"}],
            },
            STOCKS,
        ),
        # The query has another direction than the question.
        (
            "When did we have the heaviest rain?",
            {"aggregate": "first", "value": "precipitation"},
            WEATHER,
        ),
        # An unknown word after "by" is a group that the query does not have.
        ("mean wind by decile", {"aggregate": "mean", "value": "wind"}, WEATHER),
        ("median sunshine", {"aggregate": "none"}, WEATHER),
        ("median sunshine", "I do not know.", WEATHER),
        ("median sunshine", ["not", "a", "query"], WEATHER),
    ],
)
async def test_a_query_that_does_not_fit_the_question_is_refused(
    question: str, reply: Any, source: DataSource
) -> None:
    with pytest.raises(ValidationError) as raised:
        await ask(question, reply, source)
    assert raised.value.facts["unparsed_words"]


async def test_without_a_model_the_question_is_refused() -> None:
    with pytest.raises(ValidationError) as raised:
        await run_capability(
            QueryData, inputs={DataSource: WEATHER}, task="how many sunny days were there"
        )
    assert raised.value.facts["unparsed_words"] == ["sunny"]


async def test_a_missing_file_is_no_question_for_the_model(tmp_path: Path) -> None:
    source = DataSource(files=[str(tmp_path / "missing.csv")])
    with pytest.raises(ValidationError, match=r"missing\.csv"):
        await ask("how many sunny days were there", None, source)


async def test_the_query_schema_allows_only_existing_columns(tmp_path: Path) -> None:
    for name, column in (("tanks", "level"), ("pumps", "hours")):
        (tmp_path / f"{name}.csv").write_text(
            f"site,{column}\n" + "".join(f"S{n},{n}\n" for n in range(9))
        )
    source = DataSource(files=[str(tmp_path / "tanks.csv"), str(tmp_path / "pumps.csv")])
    reply = {"aggregate": "max", "value": "hours", "table": "pumps.csv"}
    model = ScriptedModel(responses=[reply])
    run = await run_capability(
        QueryData,
        inputs={DataSource: source},
        task="peakiest hours",
        model=model,
        config={"data_folders": [str(tmp_path)]},
    )

    assert run.output.answers[0].table == "pumps.csv"
    assert "8" in run.output.answers[0].text
    assert json.dumps(model.calls[0].prompt).count("tanks.csv") == 1
