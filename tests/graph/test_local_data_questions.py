"""Data questions with a small model on a local server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from capgraph import Registry, open_graph
from capgraph.capabilities.contexts import DataSource
from capgraph.capabilities.plotting import Plotting
from capgraph.capabilities.query_data import QueryData
from capgraph.capabilities.time_range_parsing import TimeRangeParsing
from tests.support.local_servers import FORM, TEXT, LocalServer, llama_cpp_server
from tests.support.openai_server import give

FILES = {"files": ["vega:seattle-weather.csv"]}


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with llama_cpp_server() as running:
        yield running


async def ask(server: LocalServer, question: str) -> Any:
    model = {
        "model": "openai:gpt-test",
        "base_url": server.url,
        "api_key": "none",
        "structured": "json_schema",
    }
    registry = Registry()
    registry.discover("capgraph.capabilities.contexts")
    registry.declare_provided(DataSource)
    for capability in (QueryData, TimeRangeParsing, Plotting):
        registry.register(capability)
    async with open_graph(registry, model={"default": model}) as graph:
        given = {"DATA_SOURCE": {"data": FILES}}
        return await graph.ainvoke(
            {"messages": [("user", question)], "capability_context_data": given}
        )


def forms(server: LocalServer) -> list[str]:
    return [body["response_format"]["json_schema"]["name"] for body in server.asked(FORM)]


async def test_a_small_model_plans_the_step_and_the_parser_reads_the_question(
    server: LocalServer,
) -> None:
    # The model passes words of the request as inputs, which name no result.
    step = {"capability": "query_data", "inputs": ["seattle-weather.csv", "wind"]}
    server.on(FORM, give({"steps": [step]}))
    out = await ask(server, "mean wind in 2014")

    # The result is an answer in words, so no model writes one.
    assert not server.asked(TEXT)
    assert out["messages"][-1].content == "The mean wind in 2014 was 3.388."
    assert forms(server) == ["ExecutionPlan"]
    prompt = server.prompt(FORM)
    assert "- query_data() -> QUERY_RESULT" in prompt
    assert "PLANNING GUIDELINES" not in prompt
    schema = server.asked(FORM)[0]["response_format"]["json_schema"]["schema"]
    variants = schema["properties"]["steps"]["items"]["anyOf"]
    assert not any("parameters" in variant["properties"] for variant in variants)
    # A small model may repeat an item endlessly.
    inputs = [v["properties"]["inputs"] for v in variants if "inputs" in v["properties"]]
    assert [part["maxItems"] for part in inputs] == [10, 10]


async def test_a_small_model_writes_the_query_that_the_parser_cannot(server: LocalServer) -> None:
    query = {
        "aggregate": "rows",
        "where": [{"column": "weather", "op": "=", "value": "sun"}],
    }
    server.on(FORM, give({"steps": [{"capability": "query_data"}]}), give(query))
    out = await ask(server, "how many sunny days did 2014 have")

    assert forms(server) == ["ExecutionPlan", "Query"]
    assert "211" in out["messages"][-1].content


async def test_a_question_that_nobody_understands_says_which_words(server: LocalServer) -> None:
    server.on(FORM, give({"steps": [{"capability": "query_data"}]}), give({"aggregate": "none"}))
    out = await ask(server, "median sunshine of the moons")

    assert out["execution_outcome"]["status"] == "failed"
    assert "'sunshine'" in out["messages"][-1].content
