"""Client of MCP's conformance suite: a graph with the tools of the suite's server."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from capgraph import build_graph
from capgraph.adapters import mcp_capabilities

_REDIRECT_URI = "http://localhost:3000/callback"
_METADATA_URL = "https://conformance-test.local/client-metadata.json"
_LEGACY_REVISION = "2025-11-25"
_ARGUMENTS: dict[str, dict[str, Any]] = {"add_numbers": {"a": 5, "b": 3}}


class Storage:
    """Token storage in memory."""

    def __init__(self, client: OAuthClientInformationFull | None) -> None:
        self._client = client
        self._tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


def make_auth(url: str, context: dict[str, Any]) -> OAuthClientProvider:
    """Return the authentication of a user who accepts each request."""
    result: dict[str, str] = {}

    async def open_page(authorization_url: str) -> None:
        async with httpx2.AsyncClient() as http:
            response = await http.get(authorization_url, follow_redirects=False)
        query = parse_qs(urlsplit(response.headers["location"]).query)
        result.update({name: values[0] for name, values in query.items()})

    async def read_callback() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(
            code=result["code"], state=result.get("state"), iss=result.get("iss")
        )

    client = None
    if "client_id" in context:
        secret = context.get("client_secret")
        client = OAuthClientInformationFull(
            client_id=context["client_id"],
            client_secret=secret,
            redirect_uris=[_REDIRECT_URI],
            token_endpoint_auth_method="client_secret_basic" if secret else "none",
        )
    metadata = OAuthClientMetadata(client_name="capgraph", redirect_uris=[_REDIRECT_URI])
    return OAuthClientProvider(
        url,
        metadata,
        Storage(client),
        redirect_handler=open_page,
        callback_handler=read_callback,
        client_metadata_url=_METADATA_URL,
    )


def example_value(schema: dict[str, Any]) -> Any:
    """Return a value of a simple schema."""
    values = {"number": 1, "integer": 1, "boolean": True, "array": [], "object": {}}
    return schema.get("default", values.get(str(schema.get("type")), "text"))


async def call_tool(graph: Any, name: str, arguments: dict[str, Any]) -> None:
    """Run one step and accept each form without values."""
    config = {"configurable": {"thread_id": f"{name} {json.dumps(arguments)}"}}
    plan = {"steps": [{"context_key": "call", "capability": name, "parameters": arguments}]}
    graph_input: Any = {"messages": [("user", name)], "planning_execution_plan": plan}
    for _ in range(5):
        out = await graph.ainvoke(graph_input, config)
        if not out.get("__interrupt__"):
            break
        question = out["__interrupt__"][0].value
        schema = question.get("schema") or {}
        answers = {
            field: example_value(schema["properties"][field])
            for field in schema.get("required", ())
        }
        graph_input = Command(resume=answers)


async def echo_schema(graph: Any, tools: Any) -> None:
    """Send the schema of the first tool to the second one."""
    focal, echo = tools
    schema = focal.capability_spec.parameters.model_json_schema()
    await call_tool(graph, echo.capability_spec.name, {"schema": schema})


async def run_scenario(url: str, scenario: str, context: dict[str, Any], revision: str) -> None:
    """Make the calls that the scenario names, and call each other tool of the server once.

    Args:
        url: URL of the server.
        scenario: Name of the scenario.
        context: Data of the scenario.
        revision: Revision of the protocol.
    """
    options: dict[str, Any] = {"mode": "legacy" if revision <= _LEGACY_REVISION else "auto"}
    if scenario.startswith("auth/"):
        options["auth"] = make_auth(url, context)
    async with await mcp_capabilities(
        url, timeout_seconds=15, effects={}, requires_approval=False, **options
    ) as tools:
        graph = build_graph(tools, checkpointer=InMemorySaver())
        calls = context.get("toolCalls") or []
        for call in calls:
            # A null that the tool's own schema forbids would be refused before the call.
            arguments = {n: v for n, v in call.get("arguments", {}).items() if v is not None}
            await call_tool(graph, call["name"], arguments)
        if scenario.startswith("json-schema-"):
            await echo_schema(graph, tools)
            return
        for tool in tools:
            spec = tool.capability_spec
            if any(call["name"] == spec.name for call in calls):
                continue
            schema = spec.parameters.model_json_schema() if spec.parameters else {}
            required = {
                name: example_value(schema["properties"].get(name, {}))
                for name in schema.get("required", ())
            }
            await call_tool(graph, spec.name, _ARGUMENTS.get(spec.name) or required)
