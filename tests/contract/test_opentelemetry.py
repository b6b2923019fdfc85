"""Spans and metrics of whole graphs, by the real SDK (T26)."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from capgraph import BaseCapability, CapabilityContext, build_graph, capability_node
from capgraph.base import CapabilityError, ErrorSeverity, MissingExtraError
from capgraph.behaviors import CircuitBreakerBehavior
from capgraph.telemetry import AgentEvent, OpenTelemetrySink
from capgraph.testing import FakeClock, ScriptedModel

SECRET = "the patient has the flu"


class Level(CapabilityContext):
    litres: float


class Sum(CapabilityContext):
    litres: float


class Wiring:
    """A sink with the SDK's in-memory exporters behind it."""

    def __init__(self, **options: Any) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        meter_provider = MeterProvider([self.reader])
        self.sink = OpenTelemetrySink(self.tracer_provider, meter_provider, **options)

    async def spans(self) -> list[ReadableSpan]:
        await self.sink.flush()  # type: ignore[misc]
        return list(self.exporter.get_finished_spans())

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def wiring() -> Wiring:
    return Wiring()


def tree(spans: list[ReadableSpan]) -> dict[str, list[str]]:
    """Return the names on the way from the root to each span, by its name and place."""
    by_id = {span.context.span_id: span for span in spans}

    def way(span: ReadableSpan) -> list[str]:
        above = by_id.get(span.parent.span_id) if span.parent is not None else None
        return [*(way(above) if above is not None else []), span.name]

    return {"/".join(way(span)): way(span) for span in spans}


@tool
def weigh(what: str) -> str:
    """Weigh something."""
    return f"1 kg of {what}"


def answered(text: str) -> AIMessage:
    usage: Any = {"input_tokens": 7, "output_tokens": 5, "total_tokens": 12}
    return AIMessage(content=text, usage_metadata=usage)


@capability_node
class Read(BaseCapability):
    name = "read"
    description = "Read a level"
    provides = [Level]

    async def execute(self) -> Level:
        await asyncio.sleep(0)
        model = self.chat_model()
        if model is not None:
            await model.ainvoke(SECRET)
            await weigh.ainvoke({"what": SECRET})
        return Level(litres=1.0)


@capability_node
class Add(BaseCapability):
    name = "add"
    description = "Add levels"
    requires = [Level]
    provides = [Sum]

    async def execute(self) -> Sum:
        return Sum(litres=2.0)


def step(key: str, capability: str, **more: Any) -> dict[str, Any]:
    return {"context_key": key, "capability": capability, "task_objective": SECRET, **more}


PLAN = {
    "steps": [step("a", "read"), step("b", "add", inputs=[{"LEVEL": "a"}]), step("z", "respond")]
}
GIVEN: Any = {"messages": [("user", SECRET)], "planning_execution_plan": PLAN}


async def test_events_name_their_trace(wiring: Wiring) -> None:
    around = TracerProvider().get_tracer("outside")
    model = ScriptedModel(responses=lambda _: answered("x"))
    graph = build_graph([Level, Sum, Read, Add], model=model, sinks=[wiring.sink])
    with around.start_as_current_span("request") as span:
        told = [event async for event in graph.astream(GIVEN, stream_mode="custom")]
    found = {f"{one.context.trace_id:032x}" for one in await wiring.spans()}
    assert found == {f"{span.get_span_context().trace_id:032x}"}
    assert {event["trace_id"] for event in told} == found


@pytest.mark.row("T26")
async def test_a_run_is_one_trace_with_one_root(wiring: Wiring) -> None:
    model = ScriptedModel(responses=lambda _: answered(SECRET))
    graph = build_graph([Level, Sum, Read, Add], model=model, sinks=[wiring.sink])
    await graph.ainvoke(GIVEN)
    spans = await wiring.spans()
    assert len({span.context.trace_id for span in spans}) == 1
    [root] = [span for span in spans if span.parent is None]
    assert root.name == "invoke_agent capgraph agent"
    ways = tree(spans)
    assert "invoke_agent capgraph agent/plan/step a/attempt 1/chat scripted" in ways
    assert "invoke_agent capgraph agent/plan/step a/attempt 1/execute_tool weigh" in ways
    assert "invoke_agent capgraph agent/plan/step b/attempt 1" in ways
    for span in spans:
        above = next(
            (s for s in spans if span.parent and s.context.span_id == span.parent.span_id), None
        )
        if above is not None:
            assert above.start_time <= span.start_time, (above.name, span.name)
            assert span.end_time <= above.end_time, (above.name, span.name)


@pytest.mark.row("T26")
async def test_the_conventions_and_the_metrics(wiring: Wiring) -> None:
    model = ScriptedModel(responses=lambda _: answered("x"))
    graph = build_graph([Level, Sum, Read, Add], model=model, sinks=[wiring.sink])
    await graph.ainvoke(GIVEN)
    chat = next(s for s in await wiring.spans() if s.name.startswith("chat"))
    assert chat.attributes["gen_ai.operation.name"] == "chat"
    assert chat.attributes["gen_ai.usage.input_tokens"] == 7
    assert chat.attributes["gen_ai.usage.output_tokens"] == 5
    assert chat.kind.name == "CLIENT"
    tokens = wiring.points("gen_ai.client.token.usage")
    assert {p.attributes["gen_ai.token.type"] for p in tokens} == {"input", "output"}
    assert {p.sum / p.count for p in tokens} == {7, 5}
    assert wiring.points("gen_ai.client.operation.duration")
    durations = wiring.points("capgraph.step.duration")
    assert {p.attributes["capgraph.capability"] for p in durations} == {"read", "add"}
    assert wiring.points("capgraph.run.duration")[0].count == 1


@pytest.mark.row("T26")
@pytest.mark.parametrize("content", [False, True])
async def test_content_is_off_unless_asked(content: bool) -> None:
    wiring = Wiring(content=content)
    model = ScriptedModel(responses=lambda _: answered(SECRET))
    graph = build_graph([Level, Sum, Read, Add], model=model, sinks=[wiring.sink])
    await graph.ainvoke(GIVEN)
    said = "".join(json.dumps(json.loads(span.to_json())) for span in await wiring.spans())
    assert (SECRET in said) is content


@pytest.mark.row("T26")
async def test_runs_side_by_side_never_share_a_span(wiring: Wiring) -> None:
    graph = build_graph([Level, Sum, Read, Add], checkpointer=InMemorySaver(), sinks=[wiring.sink])
    wide = {"steps": [*(step(f"a{n}", "read") for n in range(5)), step("z", "respond")]}
    given = {**GIVEN, "planning_execution_plan": wide}
    await asyncio.gather(
        *(graph.ainvoke(given, {"configurable": {"thread_id": str(n)}}) for n in range(20))
    )
    spans = await wiring.spans()
    traces: dict[int, list[ReadableSpan]] = {}
    for span in spans:
        traces.setdefault(span.context.trace_id, []).append(span)
    assert len(traces) == 20
    for found in traces.values():
        assert len([span for span in found if span.parent is None]) == 1
        ids = {span.context.span_id for span in found}
        assert all(span.parent.span_id in ids for span in found if span.parent is not None)
        assert {f"invoke_agent capgraph agent/plan/step a{n}/attempt 1" for n in range(5)} <= set(
            tree(found)
        )


async def test_a_further_try_is_a_span_of_its_own(wiring: Wiring) -> None:
    @capability_node
    class Shaky(BaseCapability):
        name = "shaky"
        description = "Fails once"
        provides = [Level]
        tries: ClassVar[list[int]] = []

        async def execute(self) -> Level:
            self.tries.append(1)
            if len(self.tries) == 1:
                raise CapabilityError(SECRET, severity=ErrorSeverity.RETRIABLE)
            return Level(litres=1.0)

    plan = {"steps": [step("a", "shaky"), step("z", "respond")]}
    graph = build_graph([Level, Shaky], sinks=[wiring.sink], clock=FakeClock())
    await graph.ainvoke({**GIVEN, "planning_execution_plan": plan})
    spans = await wiring.spans()
    tries = {s.name: s for s in spans if s.name.startswith("attempt")}
    assert tries["attempt 1"].status.status_code.name == "ERROR"
    assert tries["attempt 2"].status.is_ok or tries["attempt 2"].status.status_code.name == "UNSET"
    assert tries["attempt 1"].parent.span_id == tries["attempt 2"].parent.span_id
    [one] = [s for s in spans if s.name == "step a"]
    assert one.status.status_code.name == "UNSET"
    [retries] = wiring.points("capgraph.retries")
    assert retries.value == 1
    assert SECRET not in "".join(span.to_json() for span in spans)


@pytest.mark.row("T26")
@pytest.mark.parametrize("elsewhere", [False, True], ids=["", "in another process"])
async def test_a_resumed_run_links_to_the_one_before(wiring: Wiring, elsewhere: bool) -> None:
    @capability_node
    class Pour(BaseCapability):
        name = "pour"
        description = "Pours"
        provides = [Level]
        requires_approval = True

        async def execute(self) -> Level:
            return Level(litres=1.0)

    saver = InMemorySaver()
    graph = build_graph([Level, Pour], checkpointer=saver, sinks=[wiring.sink])
    plan = {"steps": [step("a", "pour"), step("z", "respond")]}
    config: Any = {"configurable": {"thread_id": "1"}}
    out = await graph.ainvoke({**GIVEN, "planning_execution_plan": plan}, config)
    assert "__interrupt__" in out
    [first] = [s for s in await wiring.spans() if s.parent is None]
    if elsewhere:  # nothing is known of the first run but what the thread keeps
        wiring = Wiring()
        graph = build_graph([Level, Pour], checkpointer=saver, sinks=[wiring.sink])
    await graph.ainvoke(Command(resume={"a": {"decision": "approve"}}), config)
    spans = await wiring.spans()
    [second] = [s for s in spans if s.parent is None and s is not first]
    assert second.context.trace_id != first.context.trace_id
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    for name in ("gen_ai.conversation.id", "capgraph.turn.id"):
        assert first.attributes[name] == second.attributes[name]
    inside = [s for s in spans if s.context.trace_id == second.context.trace_id]
    assert "invoke_agent capgraph agent/plan/step a/attempt 1" in tree(inside)


async def test_a_run_stands_below_the_span_of_whoever_calls_it(wiring: Wiring) -> None:
    graph = build_graph([Level, Sum, Read, Add], sinks=[wiring.sink])
    tracer = wiring.sink._tracer
    with tracer.start_as_current_span("POST /ask") as outer:
        await graph.ainvoke(GIVEN)
    spans = await wiring.spans()
    [root] = [s for s in spans if s.name == "invoke_agent capgraph agent"]
    assert root.parent.span_id == outer.get_span_context().span_id
    assert len({s.context.trace_id for s in spans}) == 1


@pytest.mark.row("T26")
async def test_an_attempt_inside_another_stands_below_it(wiring: Wiring) -> None:
    @capability_node
    class Outer(BaseCapability):
        name = "outer"
        description = "Asks for another"
        provides = [Sum]

        async def execute(self) -> Sum:
            await inner_node({**self.state, "planning_execution_plan": None})
            return Sum(litres=1.0)

    graph = build_graph([Level, Sum, Read, Outer], sinks=[wiring.sink])
    inner_node = graph.services.node(Read)  # type: ignore[union-attr]
    plan = {"steps": [step("o", "outer"), step("z", "respond")]}
    out = await graph.ainvoke({**GIVEN, "planning_execution_plan": plan})
    assert out["execution_outcome"]["status"] == "completed", out["execution_outcome"]
    ways = tree(await wiring.spans())
    below = [way for way in ways.values() if way[-1] == "attempt 1" and "step o" in way]
    assert ["invoke_agent capgraph agent", "plan", "step o", "attempt 1"] in below
    inner = [way for way in below if len(way) > 4]
    assert inner
    assert inner[0][:4] == ["invoke_agent capgraph agent", "plan", "step o", "attempt 1"]


async def test_what_calls_cost_is_a_metric() -> None:
    from capgraph.telemetry import ModelPricing, PriceTable

    wiring = Wiring(prices=PriceTable({"scripted": ModelPricing(1_000_000.0, 0.0)}))
    model = ScriptedModel(responses=lambda _: answered("x"))
    graph = build_graph([Level, Sum, Read, Add], model=model, sinks=[wiring.sink])
    await graph.ainvoke(GIVEN)
    await wiring.spans()
    points = wiring.points("capgraph.cost")
    assert (
        sum(p.value for p in points)
        == 7.0 * sum(p.count for p in wiring.points("gen_ai.client.token.usage")) / 2
    )


@pytest.mark.row("T26")
async def test_events_of_a_session_are_spans(wiring: Wiring) -> None:
    for run in ("r1", "r2"):  # at once, of one role and phase
        wiring.sink.emit(AgentEvent.started("writer", "draft").with_data({"run_id": run}))
    for run in ("r1", "r2"):
        failed = AgentEvent.failed("writer", "draft", "llm_timeout", SECRET)
        wiring.sink.emit(failed.with_data({"run_id": run}))
    wiring.sink.emit(AgentEvent.phase_started("draft"))
    spans = await wiring.spans()
    roots = [s for s in spans if s.name == "invoke_agent"]
    assert len({s.context.trace_id for s in roots}) == 2
    for root in roots:
        below = [s for s in spans if s.parent and s.parent.span_id == root.context.span_id]
        assert [s.name for s in below] == ["agent.started", "agent.failed"]
        assert root.attributes["error.type"] == "llm_timeout"
    assert "phase.started" in [s.name for s in spans]
    assert SECRET not in "".join(span.to_json() for span in spans)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_call_without_usage_is_a_span_too(wiring: Wiring, fails: bool) -> None:
    class Silent(GenericFakeChatModel):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            if fails:
                raise ConnectionError(SECRET)
            return super()._generate(*args, **kwargs)

    silent = Silent(messages=iter([AIMessage(content="x")] * 5))
    graph = build_graph(
        [Level, Sum, Read, Add],
        model={"capability": silent},
        sinks=[wiring.sink],
        clock=FakeClock(),
    )
    await graph.ainvoke(GIVEN)
    chat, *_ = [s for s in await wiring.spans() if s.name.startswith("chat")]
    assert (chat.status.status_code.name == "ERROR") is fails
    assert chat.attributes.get("error.type") == ("ConnectionError" if fails else None)
    assert wiring.points("gen_ai.client.operation.duration")


@pytest.mark.row("T26")
async def test_the_state_of_breakers_is_a_metric(wiring: Wiring) -> None:
    @capability_node
    class Down(BaseCapability):
        name = "down"
        description = "Is always down"
        provides = [Level]
        behaviors = [CircuitBreakerBehavior(failure_threshold=1)]

        async def execute(self) -> Level:
            raise CapabilityError("It is down.", severity=ErrorSeverity.CRITICAL)

    plan = {"steps": [step("a", "down"), step("z", "respond")]}
    graph = build_graph([Level, Down], sinks=[wiring.sink])
    await graph.ainvoke({**GIVEN, "planning_execution_plan": plan})
    await wiring.spans()
    assert [point.value for point in wiring.points("capgraph.breaker.state")] == [2]


async def test_a_run_that_is_cancelled_ends_its_spans(wiring: Wiring) -> None:
    begun = asyncio.Event()

    @capability_node
    class Wait(BaseCapability):
        name = "wait"
        description = "Waits"
        provides = [Level]

        async def execute(self) -> Level:
            begun.set()
            await asyncio.Event().wait()
            return Level(litres=1.0)

    graph = build_graph([Level, Wait], sinks=[wiring.sink])
    plan = {"steps": [step("a", "wait"), step("z", "respond")]}
    run = asyncio.create_task(graph.ainvoke({**GIVEN, "planning_execution_plan": plan}))
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    [root] = [s for s in await wiring.spans() if s.parent is None]
    assert root.attributes["error.type"] == "CancelledError"


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    got: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.row("T26")
@pytest.mark.may_block
def test_spans_reach_a_collector() -> None:
    import gzip

    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    with collector() as (url, got):
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url)))
        sink = OpenTelemetrySink(provider)
        build_graph([Level, Sum, Read, Add], sinks=[sink]).invoke(GIVEN)
        sink.close()
        provider.shutdown()
    names, roots = set(), 0
    for body in got:
        body = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                names |= {span.name for span in scope.spans}
                roots += sum(not span.parent_span_id for span in scope.spans)
    assert {"invoke_agent capgraph agent", "plan", "step a", "step b", "attempt 1"} <= names
    assert roots == 1


def test_without_the_extra_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'capgraph\[otel\]'"):
        OpenTelemetrySink()


async def test_a_step_over_a_list_is_a_span_beside_those_of_its_copies(wiring: Wiring) -> None:
    @capability_node
    async def rows() -> list[int]:
        """Give rows."""
        return [1, 0]

    @capability_node(max_attempts=1)
    async def divide(by: int) -> float:
        """Divide by a row."""
        return 1 / by

    each = {"of": "r", "as": "row", "on_failure": "stop"}
    steps = [
        {"context_key": "r", "capability": "rows"},
        {
            "context_key": "d",
            "capability": "divide",
            "for_each": each,
            "parameters": {"by": {"$from": "row"}},
        },
    ]
    graph = build_graph([rows, divide], sinks=[wiring.sink])
    given = {"messages": [("user", "Divide")], "planning_execution_plan": {"steps": steps}}
    await graph.ainvoke(given)
    spans = {span.name: span for span in await wiring.spans()}
    assert {"step r", "step d", "step d[0]", "step d[1]"} <= spans.keys()
    assert spans["step d[1]"].parent == spans["step d"].parent
    assert spans["step d"].status.is_ok is False
    assert spans["step d[0]"].status.is_ok
