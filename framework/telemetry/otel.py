"""OpenTelemetry spans and metrics of runs, with the GenAI semantic conventions.

Each run is a trace with one root span, or a child of the application's current span. Its
descendants are the plan, the steps, their attempts, and the calls of models and tools. The parents
follow from the IDs in events rather than from the current context, so they are correct for
concurrent runs. A resumed run is a separate trace that links to the previous run, or, in another
process, to the run in which the turn started. (A custom graph without turns has no such link.) Both
traces have the same ``gen_ai.conversation.id`` and ``capgraph.turn.id``.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from capgraph.base.errors import require_extra
from capgraph.configs.bounded_dict import BoundedDict
from capgraph.helpers.clock import utc_now_text
from capgraph.telemetry.agent_events import AgentEvent, AgentEventName
from capgraph.telemetry.builtin_sinks import FlushableSink
from capgraph.telemetry.usage import PriceTable, UsageSnapshot

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, SpanContext, TracerProvider

_SERVICE_NAME = "capgraph"
_MAX_RUNS = 1000
_MAX_LABEL_VALUES = 200
"""Maximum number of different values of one metric label."""
_NAME = re.compile(r"[\w.:/@+\[\] -]{1,100}", re.ASCII)
_OTHER = "other"
_Key = tuple[str | None, ...]
_ROOT: _Key = ("run",)
_TERMINAL_EVENTS = (AgentEventName.AGENT_COMPLETED, AgentEventName.AGENT_FAILED)
_PROVIDERS = {
    "amazon_bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "google_genai": "gcp.gemini",
    "google_vertexai": "gcp.vertex_ai",
    "ibm": "ibm.watsonx.ai",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""Provider name in the GenAI conventions by LangChain's name. Other names are equal in both."""
_BREAKER_STATES = {"closed": 0, "half_open": 1, "open": 2}


@dataclass(slots=True)
class _OpenSpan:
    """Open span, with its start time and the time of its last event, both in nanoseconds."""

    span: Span
    began: int
    last: int
    ended: bool = False
    failed: str | None = None


@dataclass(slots=True)
class _OpenRun:
    """Open spans of a run."""

    spans: dict[_Key, _OpenSpan] = field(default_factory=dict)
    turn: tuple[str | None, str] | None = None


def _format_span_name(kind: str, name: object) -> str:
    r"""Format the name of a span. Names with unusual characters are replaced by ``other``.

    >>> _format_span_name("step", "level"), _format_span_name("step", "a\nb")
    ('step level', 'step other')
    """
    if not name:
        return kind
    return f"{kind} {name if _NAME.fullmatch(str(name)) else _OTHER}"


class CurrentTrace:
    """Trace that the spans of other OpenTelemetry instrumentations join during a run.

    Args:
        traceparent: IDs of the trace and span, as in the HTTP header ``traceparent``.
    """

    def __init__(self, traceparent: str) -> None:
        try:
            from opentelemetry import context
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:  # the sink of the trace does not use OpenTelemetry
            self._context = None
            return
        self._api = context
        carrier, outer = {"traceparent": traceparent}, context.get_current()
        self._context = TraceContextTextMapPropagator().extract(carrier, outer)

    def attach(self) -> None:
        """Make the span the current one."""
        if self._context is not None:
            self._token = self._api.attach(self._context)

    def detach(self) -> None:
        """Detach this trace and restore the previous span, unless a different span is current."""
        if self._context is not None and self._api.get_current() is self._context:
            self._api.detach(self._token)


class OpenTelemetrySink(FlushableSink):
    """Event sink that exports a graph's events, or a session's usage, as spans and metrics.

    Args:
        tracer_provider: Provider for spans. Defaults to the global tracer provider.
        meter_provider: Provider for metrics. Defaults to the global meter provider.
        content: True to include objectives and messages, which are user content.
        prices: Prices of models. Defaults to the process-wide table and ``genai-prices``.
        endpoint: OTLP/HTTP endpoint of a collector, such as ``http://localhost:4318``, which
            replaces ``tracer_provider``.

    Raises:
        MissingExtraError: OpenTelemetry or, with an endpoint, its exporter is not installed.

    >>> from capgraph import build_graph
    >>> graph = build_graph([], sinks=[OpenTelemetrySink()])
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        content: bool = False,
        prices: PriceTable | None = None,
        endpoint: str | None = None,
    ) -> None:
        super().__init__()
        if endpoint is not None:
            tracer_provider = _create_otlp_provider(endpoint)
        self._prices = prices or PriceTable.of_process()
        self._trace = require_extra("opentelemetry.trace", "otel")
        metrics = require_extra("opentelemetry.metrics", "otel")
        self._providers = (tracer_provider, meter_provider)
        self._content = content
        self._tracer = self._trace.get_tracer(_SERVICE_NAME, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_SERVICE_NAME, meter_provider=meter_provider)
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens per model call."
        )
        self._call_durations = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "Duration of model calls."
        )
        self._step_durations = meter.create_histogram(
            "capgraph.step.duration", "s", "Duration of step attempts."
        )
        self._run_durations = meter.create_histogram(
            "capgraph.run.duration", "s", "Duration of runs."
        )
        self._cost = meter.create_counter("capgraph.cost", "{USD}", "Cost of model calls.")
        self._retries = meter.create_counter("capgraph.retries", "{retry}", "Retries.")
        self._breakers = meter.create_gauge(
            "capgraph.breaker.state", "1", "Circuit breaker state: 0 closed, 1 half open, 2 open."
        )
        self._label_values: dict[str, set[str]] = {}
        self._runs: OrderedDict[str, _OpenRun] = OrderedDict()
        self._ended_runs: BoundedDict[Any, SpanContext] = BoundedDict(2 * _MAX_RUNS)

    def run_began(self, run_id: str, agent_name: str = "") -> str | None:
        """Start the root span of a run and return its ``traceparent`` value.

        The span is a child of the current span, if there is one.
        """
        around = self._trace.get_current_span().get_span_context()
        with self._lock:
            event = {"run_id": run_id, "agent_name": agent_name}
            run = self._run(event, _get_timestamp_ns({}), around if around.is_valid else None)
            found = run.spans[_ROOT].span.get_span_context()
        if not found.is_valid:
            return None
        trace, span = format(found.trace_id, "032x"), format(found.span_id, "016x")
        return f"00-{trace}-{span}-{found.trace_flags:02x}"

    def emit(self, event: Mapping[str, Any] | AgentEvent) -> None:
        """Record a graph event or agent event as spans and metrics."""
        with self._lock:
            if isinstance(event, AgentEvent):
                self._record_agent_event(event)
                return
            self._measure(event)
            if event.get("run_id"):
                self._record(event)

    def record(self, model: str, usage: UsageSnapshot, cost_usd: float | None) -> None:
        """Record the usage of one session turn as a span and metrics."""
        event = {
            "event_type": "usage",
            "model": model,
            "input_tokens": usage.prompt_tokens,
            "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cache_read_tokens,
            "cost_usd": cost_usd,
        }
        now = _get_timestamp_ns(event)
        with self._lock:
            self._measure(event)
            attributes = {**_get_model_attributes(event), "capgraph.cost.usd": cost_usd}
            self._start(_format_span_name("chat", model), attributes, None, now, client=True).end(
                now
            )

    def run_ended(self, event: Mapping[str, Any]) -> None:
        """End all open spans of a run."""
        with self._lock:
            run = self._runs.pop(str(event.get("run_id")), None)
            if run is not None:
                self._end(run, str(event["run_id"]), _get_timestamp_ns(event), event.get("error"))

    def _record_agent_event(self, event: AgentEvent) -> None:
        """Create a span for an agent event.

        Events with the same ``data["run_id"]`` become children of the same run span.
        """
        fields: dict[str, Any] = {"timestamp": event.emitted_at, **(event.data or {})}
        now, run = _get_timestamp_ns(fields), None
        if fields.get("run_id"):
            run = self._run(fields, now)
            run.spans[_ROOT].last = now
        parent = run.spans[_ROOT].span.get_span_context() if run is not None else None
        attributes = event.to_otel_attributes(detail=self._content)
        span = self._start(event.event.value, attributes, parent, now)
        failure = event.failure_class.value if event.failure_class is not None else None
        if failure is not None:
            self._fail(span, failure)
        span.end(now)
        if run is not None and event.event in _TERMINAL_EVENTS:
            self._end(self._runs.pop(str(fields["run_id"])), str(fields["run_id"]), now, failure)

    # --- spans ----------------------------------------------------------------------------

    def _record(self, event: Mapping[str, Any]) -> None:
        now = _get_timestamp_ns(event)
        run = self._run(event, now)
        path = self._open_span_path(run, event, now)
        deepest = path[-1]
        for opened in path:
            opened.last = max(opened.last, now)
        kind = str(event.get("event_type"))
        if kind in ("step_finished", "step_failed"):
            self._record_step_end(run, path, event, now)
        elif kind in ("usage", "model_called"):
            attributes = {
                **_get_model_attributes(event),
                "gen_ai.conversation.id": event.get("thread_id"),
                "gen_ai.response.id": event.get("response_id"),
                "gen_ai.response.finish_reasons": event.get("finish_reasons") or None,
            }
            name = _format_span_name("chat", str(attributes["gen_ai.request.model"] or ""))
            self._add_call_span(event, deepest, name, attributes, client=True)
        elif kind == "tool_called":
            attributes = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": event["name"],
                "gen_ai.tool.type": "function",
                "gen_ai.conversation.id": event.get("thread_id"),
            }
            self._add_call_span(
                event, deepest, _format_span_name("execute_tool", event["name"]), attributes
            )
        elif kind == "plan_made":
            stamp = (event.get("plan") or {}).get("stamp") or {}
            if stamp.get("id"):
                self._open_span_path(run, {**event, "plan_id": stamp["id"], "step_id": None}, now)
        elif kind == "turn_finished":
            self._record_turn_end(run, event)
        elif kind in ("retry", "replan", "reclassify", "approval_asked", "circuit_changed"):
            deepest.span.add_event(kind, self._get_attributes(event), timestamp=now)

    def _run(
        self, event: Mapping[str, Any], now: int, parent: SpanContext | None = None
    ) -> _OpenRun:
        name = str(event["run_id"])
        run = self._runs.get(name)
        if run is None:
            run = self._runs[name] = _OpenRun()
            agent = event.get("agent_name") or ""
            attributes = {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.provider.name": _SERVICE_NAME,
                "gen_ai.agent.name": agent,
                "gen_ai.conversation.id": event.get("thread_id"),
                "capgraph.run.id": name,
            }
            # A custom graph may continue the same run.
            root_parent = self._ended_runs.get(name) or parent
            self._open(run, _ROOT, f"invoke_agent {agent}".strip(), attributes, root_parent, now)
            if len(self._runs) > _MAX_RUNS:
                oldest, oldest_run = self._runs.popitem(last=False)
                self._end(oldest_run, oldest, now, "lost")
        if run.turn is None and event.get("turn_id"):
            run.turn = (event.get("thread_id"), str(event["turn_id"]))
            root = run.spans[_ROOT].span
            common = {"gen_ai.conversation.id": run.turn[0], "capgraph.turn.id": run.turn[1]}
            root.set_attributes({name: value for name, value in common.items() if value})
            previous = self._ended_runs.get(run.turn) or self._parse_traceparent(
                event.get("turn_trace")
            )
            if previous is not None and previous.span_id != root.get_span_context().span_id:
                root.add_link(previous, {"capgraph.link": "resumed"})
        return run

    def _parse_traceparent(self, parent: str | None) -> SpanContext | None:
        """Parse the ``traceparent`` of the span in which a turn started.

        The turn may have started in a different process.
        """
        if parent is None:
            return None
        _, trace, span, flags = parent.split("-")
        flag = self._trace.TraceFlags(int(flags, 16))
        found: SpanContext = self._trace.SpanContext(int(trace, 16), int(span, 16), True, flag)
        return found

    def _open_span_path(self, run: _OpenRun, event: Mapping[str, Any], now: int) -> list[_OpenSpan]:
        """Return the spans that an event belongs to, outermost first, opening missing spans."""
        path = [run.spans[_ROOT]]
        outer = event.get("parent_id")
        if outer and (outer_span := run.spans.get(("attempt", outer))) is not None:
            path.append(outer_span)
        plan, step, attempt = (event.get(n) for n in ("plan_id", "step_id", "attempt_id"))
        common: dict[str, Any] = {"capgraph.capability": event.get("capability")}
        if self._content:
            common["capgraph.objective"] = event.get("task_objective")
        levels: list[tuple[_Key, str, dict[str, Any]]] = []
        if plan:
            levels.append((("plan", outer, plan), "plan", {"capgraph.plan.id": plan}))
        if step:
            key: _Key = ("step", outer, plan, step)
            levels.append((key, _format_span_name("step", step), {"capgraph.step": step, **common}))
        if attempt:
            number = attempt.rpartition("/")[2]
            more = {"capgraph.attempt": int(number), **common}
            levels.append((("attempt", attempt), f"attempt {number}", more))
        for span_key, name, attributes in levels:
            span = run.spans.get(span_key)
            if span is None:
                parent = path[-1].span.get_span_context()
                span = self._open(run, span_key, name, attributes, parent, now)
            elif not span.ended:  # the first event of a step may have fewer attributes
                span.span.set_attributes({n: v for n, v in attributes.items() if v is not None})
            path.append(span)
        return path

    def _open(
        self,
        run: _OpenRun,
        key: _Key,
        name: str,
        attributes: Mapping[str, Any],
        parent: SpanContext | None,
        now: int,
    ) -> _OpenSpan:
        span = self._start(name, attributes, parent, now)
        opened = run.spans[key] = _OpenSpan(span, now, now)
        return opened

    def _start(
        self,
        name: str,
        attributes: Mapping[str, Any],
        parent: SpanContext | None,
        started_ns: int,
        *,
        client: bool = False,
    ) -> Span:
        trace = self._trace
        context = trace.set_span_in_context(
            trace.INVALID_SPAN if parent is None else trace.NonRecordingSpan(parent)
        )
        kind = trace.SpanKind.CLIENT if client else trace.SpanKind.INTERNAL
        known = {name: value for name, value in attributes.items() if value not in (None, "")}
        span: Span = self._tracer.start_span(
            name, context, kind=kind, attributes=known, start_time=started_ns
        )
        return span

    def _add_call_span(
        self,
        event: Mapping[str, Any],
        parent: _OpenSpan,
        name: str,
        attributes: Mapping[str, Any],
        *,
        client: bool = False,
    ) -> None:
        now = _get_timestamp_ns(event)
        began = max(parent.began, now - int((event.get("duration") or 0.0) * 1e9))
        context = parent.span.get_span_context()
        span = self._start(name, attributes, context, began, client=client)
        if event.get("error"):
            self._fail(span, str(event["error"]))
        span.end(max(now, began))

    def _record_step_end(
        self, run: _OpenRun, path: list[_OpenSpan], event: Mapping[str, Any], now: int
    ) -> None:
        failed = event.get("event_type") == "step_failed"
        failure = str(event.get("category") or event.get("severity") or "error") if failed else None
        keys = {id(opened): key[0] for key, opened in run.spans.items() if opened in path}
        for opened in path:
            if keys.get(id(opened)) in ("step", "attempt"):
                opened.failed = failure
        last = path[-1]
        if failed and self._content:
            last.span.set_attribute("capgraph.message", str(event.get("message")))
        # A failed step may be retried; it ends when it succeeds or with the run.
        ending = [last] if failed and keys.get(id(last)) == "attempt" else []
        if not failed:
            ending = [o for o in path[-2:] if keys.get(id(o)) in ("step", "attempt")]
        for opened in reversed(ending):
            self._close_span(opened, now)

    def _record_turn_end(self, run: _OpenRun, event: Mapping[str, Any]) -> None:
        status = (event.get("outcome") or {}).get("status")
        root = run.spans[_ROOT]
        root.span.set_attribute("capgraph.outcome", str(status))
        if status in ("failed", "stopped"):
            root.failed = str((event.get("outcome") or {}).get("code") or status)

    def _end(self, run: _OpenRun, name: str, now: int, error: str | None) -> None:
        root = run.spans[_ROOT]
        root.failed = error or root.failed
        for key, opened in reversed(list(run.spans.items())):
            self._close_span(opened, now if key == _ROOT else opened.last)
        self._run_durations.record((now - root.began) / 1e9, {"error.type": root.failed or "none"})
        for about in (name, run.turn):
            if about is not None:
                self._ended_runs[about] = root.span.get_span_context()

    def _close_span(self, opened: _OpenSpan, now: int) -> None:
        if not opened.ended:
            opened.ended = True
            if opened.failed is not None:
                self._fail(opened.span, opened.failed)
            opened.span.end(max(now, opened.last))

    def _fail(self, span: Span, error_type: str) -> None:
        span.set_attribute("error.type", error_type)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))

    def _get_attributes(self, event: Mapping[str, Any]) -> dict[str, Any]:
        names = ["name", "state", "attempt", "delay"] + ["message", "reason"] * self._content
        return {f"capgraph.{n}": event[n] for n in names if event.get(n) is not None}

    # --- metrics --------------------------------------------------------------------------

    def _limit_label_values(self, **labels: object) -> dict[str, str]:
        """Limit metric labels to a bounded number of values.

        Every distinct label value creates a time series, so further values become ``other``.
        """
        bounded = {}
        for label, value in labels.items():
            known, text = self._label_values.setdefault(label, set()), str(value)
            if len(known) < _MAX_LABEL_VALUES and _NAME.fullmatch(text):
                known.add(text)
            bounded[label] = text if text in known else _OTHER
        return bounded

    def _measure(self, event: Mapping[str, Any]) -> None:
        kind = event.get("event_type")
        if kind in ("usage", "model_called"):
            texts = {
                k: v for k, v in _get_model_attributes(event).items() if isinstance(v, str) and v
            }
            if event.get("error"):
                texts["error.type"] = event["error"]
            attributes = self._limit_label_values(**texts)
            if event.get("duration") is not None:
                self._call_durations.record(event["duration"], attributes)
            for side in ("input", "output"):
                if kind == "usage" and not event.get("estimated"):
                    tokens = int(event.get(f"{side}_tokens") or 0)
                    self._tokens.record(tokens, {**attributes, "gen_ai.token.type": side})
            is_reported = kind == "usage" and not event.get("estimated")
            if is_reported and (cost := self._compute_price(event)) is not None:
                self._cost.add(cost, attributes)
        elif kind in ("step_finished", "step_failed"):
            attributes = self._limit_label_values(
                **{"capgraph.capability": event.get("capability")}
            )
            if kind == "step_failed":
                error_type = event.get("category") or event.get("severity")
                attributes |= self._limit_label_values(**{"error.type": error_type})
            self._step_durations.record(float(event.get("duration") or 0.0), attributes)
        elif kind == "retry":
            self._retries.add(
                1, self._limit_label_values(**{"capgraph.capability": event.get("name")})
            )
        elif kind == "circuit_changed":
            state = _BREAKER_STATES.get(str(event.get("state")), 0)
            self._breakers.set(
                state, self._limit_label_values(**{"capgraph.breaker": event.get("name")})
            )

    def _compute_price(self, event: Mapping[str, Any]) -> float | None:
        if "cost_usd" in event:
            cost: float | None = event["cost_usd"]
            return cost
        cached = int(event.get("cached_tokens") or 0)
        used = UsageSnapshot(
            input_tokens=max(0, int(event.get("input_tokens") or 0) - cached),
            output_tokens=int(event.get("output_tokens") or 0),
            cache_read_tokens=cached,
        )
        return self._prices.cost(str(event.get("model") or ""), used)

    # --- the end --------------------------------------------------------------------------

    def _write_queue(self) -> None:
        for provider in self._providers:
            flush = getattr(provider, "force_flush", None)
            if flush is not None:
                flush()

    def _close(self) -> None:
        now = _get_timestamp_ns({"timestamp": utc_now_text()})
        while self._runs:
            name, run = self._runs.popitem(last=False)
            self._end(run, name, now, None)
        self._write_queue()


def _create_otlp_provider(endpoint: str) -> TracerProvider:
    sdk = require_extra("opentelemetry.sdk.trace", "otel")
    export = require_extra("opentelemetry.sdk.trace.export", "otel")
    resources = require_extra("opentelemetry.sdk.resources", "otel")
    otlp = require_extra("opentelemetry.exporter.otlp.proto.http.trace_exporter", "otel")
    named = {"service.name": os.environ.get("OTEL_SERVICE_NAME", _SERVICE_NAME)}
    # The provider sends the remaining spans when the process ends.
    provider: TracerProvider = sdk.TracerProvider(resource=resources.Resource.create(named))
    exporter = otlp.OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(export.BatchSpanProcessor(exporter))  # type: ignore[attr-defined]
    return provider


def _get_model_attributes(event: Mapping[str, Any]) -> dict[str, Any]:
    # The conventions cover only reported tokens.
    used = {} if event.get("estimated") else event
    provider = str(event.get("provider") or "unknown")
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
        "gen_ai.request.model": event.get("request_model") or event.get("model"),
        # A failed call has no response.
        "gen_ai.response.model": None if event.get("error") else event.get("model"),
        "capgraph.role": event.get("role"),
        "gen_ai.usage.input_tokens": used.get("input_tokens"),
        "gen_ai.usage.output_tokens": used.get("output_tokens"),
        "gen_ai.usage.cache_read.input_tokens": used.get("cached_tokens") or None,
    }


def _get_timestamp_ns(event: Mapping[str, Any]) -> int:
    moment = datetime.fromisoformat(str(event.get("timestamp") or utc_now_text()))
    return int(moment.timestamp() * 1_000_000) * 1000
