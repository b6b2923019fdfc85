"""Spans and metrics against the published registry of the GenAI conventions."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langsmith import Client, tracing_context
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as registry
from opentelemetry.trace import SpanKind

from capgraph import build_graph
from capgraph.adapters import tool_capability
from capgraph.configs.settings import Settings
from capgraph.testing import ScriptedModel
from tests.contract.test_opentelemetry import Wiring

REQUIRED = {
    "invoke_agent": {"gen_ai.provider.name", "gen_ai.agent.name", "gen_ai.conversation.id"},
    "chat": {
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.response.model",
        "gen_ai.response.finish_reasons",
        "gen_ai.response.id",
        "gen_ai.conversation.id",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
    },
    "execute_tool": {"gen_ai.tool.name", "gen_ai.tool.type"},
}
"""Attributes that the conventions require, or require when available, by operation."""
NAMES = {
    "invoke_agent": "gen_ai.agent.name",
    "chat": "gen_ai.request.model",
    "execute_tool": "gen_ai.tool.name",
}
KNOWN = {value for name, value in vars(registry).items() if name.startswith("GEN_AI_")}
OPERATIONS = {one.value for one in registry.GenAiOperationNameValues}


@tool
def weigh(what: str = "salt") -> str:
    """Weigh something."""
    return f"1 kg of {what}"


def check(attributes: Any) -> None:
    """Check that the registry knows the attributes."""
    assert {name for name in attributes if name.startswith("gen_ai.")} <= KNOWN
    if "gen_ai.token.type" in attributes:
        assert attributes["gen_ai.token.type"] in {
            one.value for one in registry.GenAiTokenTypeValues
        }


async def test_spans_have_the_required_attributes_and_names() -> None:
    wiring = Wiring()
    answer = AIMessage(
        "One kilogram.",
        response_metadata={
            "id": "answer-1",
            "finish_reason": "stop",
            "model_name": "scripted-2026",
        },
        usage_metadata={"input_tokens": 7, "output_tokens": 5, "total_tokens": 12},
    )
    graph = build_graph(
        [tool_capability(weigh, examples=["weigh the salt"])],
        {"answer": ScriptedModel(responses=[answer])},
        InMemorySaver(),
        settings=Settings(name="scales"),
        sinks=[wiring.sink],
    )
    config: Any = {"configurable": {"thread_id": "t"}}
    await graph.ainvoke({"messages": [("user", "Weigh the salt")]}, config)
    spans = [span for span in await wiring.spans() if "gen_ai.operation.name" in span.attributes]
    seen = {}
    for span in spans:
        attributes = dict(span.attributes or {})
        check(attributes)
        operation = str(attributes["gen_ai.operation.name"])
        assert operation in OPERATIONS
        assert not REQUIRED[operation] - attributes.keys()
        assert span.name == f"{operation} {attributes[NAMES[operation]]}"
        assert span.kind is (SpanKind.CLIENT if operation == "chat" else SpanKind.INTERNAL)
        seen[operation] = attributes
    assert seen.keys() >= {"invoke_agent", "chat"}
    assert seen["invoke_agent"]["gen_ai.agent.name"] == "scales"
    assert seen["chat"]["gen_ai.response.finish_reasons"] == ("stop",)
    assert seen["chat"]["gen_ai.response.id"] == "answer-1"
    for name in ("gen_ai.client.token.usage", "gen_ai.client.operation.duration"):
        for point in wiring.points(name):
            check(point.attributes)
            required = {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"}
            assert not required - point.attributes.keys()
            assert "gen_ai.response.id" not in point.attributes


@pytest.mark.parametrize(
    ("provider", "name"),
    [("google_genai", "gcp.gemini"), ("openai", "openai"), ("azure", "azure.ai.openai")],
)
async def test_providers_have_the_names_of_the_conventions(provider: str, name: str) -> None:
    assert name in {one.value for one in registry.GenAiProviderNameValues}
    wiring = Wiring()
    wiring.sink.emit(
        {"event_type": "usage", "run_id": "r", "model": "m", "provider": provider, "role": "answer"}
    )
    wiring.sink.run_ended({"run_id": "r"})
    (chat,) = [span for span in await wiring.spans() if span.name == "chat m"]
    assert chat.attributes is not None
    assert chat.attributes["gen_ai.provider.name"] == name


@pytest.mark.parametrize("has_outer_span", [True, False])
async def test_one_trace_with_openinference(has_outer_span: bool) -> None:
    openinference = pytest.importorskip("openinference.instrumentation.langchain")
    wiring = Wiring()
    graph = build_graph([tool_capability(weigh, examples=["weigh the salt"])], sinks=[wiring.sink])
    instrumentor = openinference.LangChainInstrumentor()
    instrumentor.instrument(tracer_provider=wiring.tracer_provider)
    try:
        tracer = wiring.tracer_provider.get_tracer("application")
        outer = tracer.start_as_current_span("outer") if has_outer_span else nullcontext()
        with outer:
            await graph.ainvoke({"messages": [("user", "Weigh the salt")]})
    finally:
        instrumentor.uninstrument()
    spans = await wiring.spans()
    names = {span.name for span in spans}
    assert {"invoke_agent capgraph agent", "router"} <= names
    assert len({span.context.trace_id for span in spans}) == 1


@contextmanager
def langsmith_server() -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """Serve the endpoints to which LangSmith's client sends runs; gives the URL and the runs."""
    runs: dict[str, dict[str, Any]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply()

        def do_POST(self) -> None:
            run = json.loads(self.rfile.read(int(self.headers["content-length"])))
            runs.setdefault(run.get("id") or self.path.rpartition("/")[2], {}).update(run)
            self.reply()

        do_PATCH = do_POST

        def reply(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", runs
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.may_block  # the client sends each run at once
async def test_one_trace_with_langsmith() -> None:
    wiring = Wiring()
    model = ScriptedModel(responses=[AIMessage("One kilogram.")])
    graph = build_graph(
        [tool_capability(weigh, examples=["weigh the salt"])],
        {"answer": model},
        sinks=[wiring.sink],
    )
    with langsmith_server() as (url, runs):
        # Without batches, no thread of the client outlives the test.
        client = Client(api_url=url, api_key="unused", auto_batch_tracing=False)
        try:
            with tracing_context(enabled=True, client=client):
                await graph.ainvoke({"messages": [("user", "Weigh the salt")]})
        finally:
            await asyncio.to_thread(client.cleanup, timeout=5)
    roots = [run for run in runs.values() if run.get("parent_run_id") is None]
    assert [run["name"] for run in roots] == ["capgraph agent"]
    assert {run["trace_id"] for run in runs.values()} == {roots[0]["id"]}
    assert {("answer", "llm"), ("weigh", "tool")} <= {
        (run["name"], run["run_type"]) for run in runs.values()
    }
    assert all(run.get("end_time") for run in runs.values())
    spans = await wiring.spans()
    assert {"invoke_agent capgraph agent", "chat scripted"} <= {span.name for span in spans}
    assert len({span.context.trace_id for span in spans}) == 1
