"""What ``docs/guides/observe.md`` says, executed: a served agent, a collector, a reader of metrics."""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.test_opentelemetry import collector
from tests.support.serve_process import ROOT, serve_process, things_of

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals"),
    pytest.mark.may_block,
]
GUIDE = (ROOT / "docs/guides/observe.md").read_text(encoding="utf-8")
DASHBOARD = (ROOT / "docs/_static/grafana.json").read_text(encoding="utf-8")
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", GUIDE, re.S)]
NAME = re.compile(r"\bcapgraph_\w+")


def spans_of(bodies: list[bytes]) -> list[Any]:
    found = []
    for body in bodies:
        body = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            assert names["service.name"] == "capgraph"
            found += [span for scope in resource.scope_spans for span in scope.spans]
    return found


@pytest.mark.parametrize("block", [one for one in BLOCKS if "sinks" in one])
def test_a_configuration_sends_the_spans_of_served_runs(block: Any, tmp_path: Path) -> None:
    with collector() as (url, got):
        block["sinks"][0]["endpoint"] = url.removesuffix("/v1/traces")
        with serve_process(tmp_path, configured=block) as served:
            things = things_of(served, served.ann, "told")
    spans = spans_of(got)
    assert {"plan", "step level", "attempt 1"} <= {span.name for span in spans}
    roots = [span for span in spans if not span.parent_span_id]
    assert all(span.name.startswith("invoke_agent ") for span in roots)
    attributes = [{a.key: a.value.string_value for a in span.attributes} for span in roots]
    assert things.run in [one["capgraph.run.id"] for one in attributes]


def test_metrics_are_those_of_the_guide_and_of_the_dashboard(tmp_path: Path) -> None:
    with serve_process(tmp_path) as served:
        things_of(served, served.ann, "told")
        text = served.ask("GET", "/metrics", served.ann).body.decode()
        assert served.ask("GET", "/metrics").status == 401
    families = list(text_string_to_metric_families(text))
    samples = {sample.name: sample for family in families for sample in family.samples}
    known = samples.keys() | {family.name for family in families}
    queries = [
        target["expr"] for panel in json.loads(DASHBOARD)["panels"] for target in panel["targets"]
    ]
    asked = {name for query in queries for name in NAME.findall(query)}
    tabled = {
        name for line in GUIDE.splitlines() if line[:3] == "| `" for name in NAME.findall(line)
    }
    assert asked
    assert tabled
    assert asked | tabled <= known
    mine = {family.name for family in families if not family.name.endswith("_created")}
    assert mine <= {name.removesuffix("_total") for name in tabled}
    for query in queries:
        labels = {
            label.strip()
            for part in re.findall(r"by \((.*?)\)", query)
            for label in part.split(",")
        }
        assert all(labels - {"le"} <= samples[name].labels.keys() for name in NAME.findall(query))
