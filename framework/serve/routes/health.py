"""Health checks, metrics, and the OpenAPI document."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from capgraph.serve.openapi import ANY, TEXT, Operation, openapi_document
from capgraph.serve.runs import Runs


class _RunCollector:
    """Prometheus collector of run metrics."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def collect(self) -> list[CounterMetricFamily | GaugeMetricFamily]:
        """Return the current metrics."""
        runs = self._runs
        ended = CounterMetricFamily(
            "capgraph_runs_ended", "Number of runs that ended.", labels=["outcome"]
        )
        for outcome, number in runs.ended_counts.items():
            ended.add_metric([outcome], number)
        return [
            ended,
            GaugeMetricFamily(
                "capgraph_runs_open", "Number of active runs in this process.", runs.active_count
            ),
        ]


def routes(runs: Runs, name: str, registry: CollectorRegistry) -> list[Route]:
    """Return the routes for health checks and metrics.

    Args:
        runs: Runs of the served graph.
        name: Name of the agent.
        registry: Registry of the metrics.
    """
    registry.register(_RunCollector(runs))

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        ready = not runs.is_draining and await runs.is_reachable()
        return JSONResponse({"status": "ready" if ready else "not ready"}, 200 if ready else 503)

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(
            generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    async def openapi(request: Request) -> Response:
        # The version is read from a file, so not on the event loop.
        return JSONResponse(await asyncio.to_thread(openapi_document, name, request.app.routes))

    return [
        Route("/openapi.json", openapi),
        Operation("GET", "/healthz", healthz, "Check that the server is alive", ANY),
        Operation("GET", "/readyz", readyz, "Check that the server is ready", ANY),
        Operation("GET", "/metrics", metrics, "Get metrics", TEXT, media_type="text/plain"),
    ]
