"""Whether the server lives, is ready, and what it has done."""

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
    """What there is to measure, read when somebody asks."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def collect(self) -> list[CounterMetricFamily | GaugeMetricFamily]:
        """Return the numbers of this moment."""
        runs = self._runs
        ended = CounterMetricFamily("capgraph_runs_ended", "Runs that ended.", labels=["outcome"])
        for outcome, number in runs.ended_counts.items():
            ended.add_metric([outcome], number)
        return [
            ended,
            GaugeMetricFamily("capgraph_runs_open", "Runs under way here.", runs.active_count),
        ]


def routes(runs: Runs, name: str, registry: CollectorRegistry) -> list[Route]:
    """Return the routes of whoever looks after the server.

    Args:
        runs: The runs.
        name: Name of the agent.
        registry: Where numbers are kept.
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
        # It names the version, which stands in a file.
        return JSONResponse(await asyncio.to_thread(openapi_document, name, request.app.routes))

    return [
        Route("/openapi.json", openapi),
        Operation("GET", "/healthz", healthz, "Whether the server lives", ANY),
        Operation("GET", "/readyz", readyz, "Whether the server is ready", ANY),
        Operation(
            "GET", "/metrics", metrics, "What the server has done", TEXT, media_type="text/plain"
        ),
    ]
