"""Names that a model, a caller, or a server chose, in spans and metrics."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from capgraph.telemetry import OpenTelemetrySink

FOREIGN = ["a\nb", "x" * 5_000, "level\u202e", "{}<script>", "\x1b[31m"]


class Wiring:
    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.sink = OpenTelemetrySink(tracers, MeterProvider([self.reader]))

    async def ended(self) -> None:
        await self.sink.flush()  # type: ignore[misc]
        self.sink.run_ended({"run_id": "r0"})

    def label_values(self) -> set[str]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            str(value)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            for value in (point.attributes or {}).values()
        }


def events(name: str, number: int = 0) -> list[dict[str, Any]]:
    common = {"run_id": f"r{number}", "thread_id": "t", "plan_id": "p", "seq": number}
    call = {"model": name, "provider": name, "input_tokens": 1, "duration": 0.1, "error": name}
    return [
        {
            **common,
            "event_type": "step_failed",
            "step_id": name,
            "capability": name,
            "category": name,
        },
        {**common, "event_type": "usage", **call},
        {**common, "event_type": "retry", "name": name},
        {**common, "event_type": "circuit_changed", "name": name, "state": "open"},
        {**common, "event_type": "tool_called", "name": name, "duration": 0.1},
    ]


@pytest.mark.parametrize("name", FOREIGN)
async def test_unusual_names_are_no_span_names_and_no_labels(name: str) -> None:
    wiring = Wiring()
    for event in events(name):
        wiring.sink.emit(event)
    await wiring.ended()
    spans = wiring.exporter.get_finished_spans()
    assert {"step other", "chat other", "execute_tool other"} <= {span.name for span in spans}
    assert all(name not in span.name for span in spans)
    assert name not in wiring.label_values()
    assert name in {(span.attributes or {}).get("capgraph.step") for span in spans}


async def test_names_without_end_make_no_time_series_without_end() -> None:
    wiring = Wiring()
    for number in range(1_000):
        for event in events(f"name{number}", number):
            wiring.sink.emit(event)
        await wiring.sink.flush()  # type: ignore[misc]
    await wiring.ended()
    values = wiring.label_values()
    assert "name0" in values
    assert "other" in values
    assert len(values) < 300
