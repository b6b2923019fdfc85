"""Schemas of plans as they leave the process, recorded on loopback behind each provider's client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from capgraph import CapabilityContext, build_graph, capability_node
from capgraph.configs.settings import ModelSettings
from tests.support.local_servers import llama_cpp_server
from tests.support.openai_server import OpenAIServer, give, openai_server, say
from tests.support.provider_servers import anthropic_server, google_server
from tests.unit.models.test_plan_schema import LIMITS

pytestmark = [
    pytest.mark.may_block,  # how the clients read certificates and keys is theirs to decide
    pytest.mark.filterwarnings("default"),
]
PLAN = give({"steps": [{"capability": "find_book", "parameters": {"title": "Emma"}}]})
BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "maxItems", "minItems"}


class Book(CapabilityContext):
    book_id: str


class Copy(BaseModel):
    book_id: str
    shelf: Literal["a", "b"] | None = None


@capability_node(examples=["find the book Emma"])
def find_book(title: str, year: int = Field(1900, ge=1400, le=2100)) -> Book:
    """Find a book."""
    return Book(book_id=f"{title}-{year}")


@capability_node(examples=["reserve the book B7 for two weeks"])
def reserve(book_id: str, weeks: Literal[1, 2, 4] = 2, copies: list[Copy] | None = None) -> str:
    """Reserve a book."""
    return f"{book_id} {weeks} {copies}"


async def sent(server: OpenAIServer, model: str, **more: Any) -> dict[str, Any]:
    """Run one turn and return the first request, which asks for the plan."""
    server.on("ExecutionPlan", PLAN, PLAN).on("text", PLAN, say("Done."))
    settings = ModelSettings(
        **{"model": model, "base_url": server.url, "api_key": "sk-test-0123456789", **more}
    )
    roles = {"selection": settings, "planning": settings}
    graph = build_graph([find_book, reserve], model=roles)
    await graph.ainvoke({"messages": [("user", "Find the book Emma.")]})
    return server.requests[0][1]


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and the schemas in it."""
    if isinstance(schema, dict):
        yield schema
        inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
        for part in [*inner, schema.get("items")]:
            yield from parts(part)


def forms(schema: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = schema["properties"]["steps"]["items"]["anyOf"]
    return found


def left_out(schema: dict[str, Any]) -> int:
    objects = [part for part in parts(schema) if "properties" in part]
    return sum(len(part["properties"]) - len(part.get("required", ())) for part in objects)


def unions(schema: dict[str, Any]) -> int:
    return sum("anyOf" in part or isinstance(part.get("type"), list) for part in parts(schema))


async def test_openai_gets_a_strict_schema_that_requires_every_property() -> None:
    with openai_server() as server:
        # An address with OpenAI's name counts as OpenAI's.
        body = await sent(server, "openai:gpt-5", base_url=f"{server.url}/api.openai.com")
    form = body["response_format"]["json_schema"]
    schema = form["schema"]
    assert form["strict"] is True
    assert "anyOf" not in schema
    names = [next(iter(one["properties"])) for one in forms(schema)]
    assert set(names) == {"capability"}
    assert [one["properties"]["capability"]["enum"] for one in forms(schema)] == [
        ["find_book"],
        ["reserve"],
        ["clarify"],
    ]
    for part in parts(schema):
        assert not BOUNDS & part.keys()
        if "properties" in part:
            assert part["required"] == list(part["properties"])
            assert part["additionalProperties"] is False
    limits, _ = LIMITS["strict"]
    assert sum(len(part.get("properties", ())) for part in parts(schema)) <= limits["properties"]
    assert sum(len(part.get("enum", ())) for part in parts(schema)) <= limits["values"]


vendors = pytest.mark.parametrize(
    ("package", "serve", "model"),
    [
        ("langchain_anthropic", anthropic_server, "anthropic:claude-test"),
        ("langchain_google_genai", google_server, "google_genai:gemini-test"),
    ],
    ids=["Anthropic", "Google"],
)


@vendors
async def test_anthropic_and_google_get_a_schema_without_bounds(
    package: str, serve: Any, model: str
) -> None:
    pytest.importorskip(package)
    running: AbstractContextManager[OpenAIServer] = serve()
    with running as server:
        body = await sent(server, model, structured="json_schema")
    if "output_config" in body:
        schema = body["output_config"]["format"]["schema"]
    else:
        schema = body["generationConfig"]["responseJsonSchema"]
    assert [one["properties"]["capability"]["enum"] for one in forms(schema)] == [
        ["find_book"],
        ["reserve"],
        ["clarify"],
    ]
    find = forms(schema)[0]["properties"]["parameters"]
    assert find["required"] == ["title"]
    for part in parts(schema):
        assert not BOUNDS & part.keys()
    limits, _ = LIMITS["optional"]
    assert left_out(schema) <= limits["left_out"]
    assert unions(schema) <= limits["unions"]


@vendors
async def test_anthropic_and_google_are_asked_for_a_call_by_default(
    package: str, serve: Any, model: str
) -> None:
    pytest.importorskip(package)
    running: AbstractContextManager[OpenAIServer] = serve()
    with running as server:
        body = await sent(server, model)
    [tool] = body["tools"]
    declared = tool["functionDeclarations"][0] if "functionDeclarations" in tool else tool
    assert declared["name"] == "ExecutionPlan"
    assert "strict" not in declared


async def test_a_grammar_server_gets_names_as_constants_and_a_longest_plan() -> None:
    with llama_cpp_server() as server:
        server.on("form", PLAN)
        body = await sent(server, "openai:local")
    form = body["response_format"]["json_schema"]
    schema = form["schema"]
    assert form["strict"] is False
    assert schema["properties"]["steps"]["maxItems"] == 10
    assert [one["properties"]["capability"] for one in forms(schema)] == [
        {"const": "find_book"},
        {"const": "reserve"},
        {"const": "clarify"},
    ]
    find, book, _ = forms(schema)
    assert find["properties"]["parameters"]["required"] == ["title"]
    year = find["properties"]["parameters"]["properties"]["year"]
    assert year == {"type": "integer", "minimum": 1400, "maximum": 2100}
    # The identifier of a book may be that of a result; the number of weeks may not.
    reserved = book["properties"]["parameters"]["properties"]
    assert "$from" in str(reserved["book_id"])
    assert "$from" not in str(reserved["weeks"])
    for part in parts(schema):
        if "properties" in part:
            assert part["additionalProperties"] is False
