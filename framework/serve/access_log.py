"""Middleware that logs and counts every request."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from capgraph.configs.logger import get_logger

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class AccessLogMiddleware:
    """ASGI middleware that records request metrics and writes an access log.

    As the outermost middleware, it observes every response. Metrics and log lines contain no
    user, thread, or other client-supplied value.

    Args:
        app: The wrapped application.
        registry: Registry of the metrics.
    """

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self._app = app
        labels = ["method", "route", "status"]
        self._count = Counter("capgraph_requests", "Number of requests.", labels, registry=registry)
        self._seconds = Histogram(
            "capgraph_request_seconds",
            "Duration of requests in seconds, without streams.",
            ["route"],
            registry=registry,
        )
        self._streams = Gauge("capgraph_streams_open", "Number of open streams.", registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an HTTP request and record its status code and duration."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at, status, is_stream = time.perf_counter(), 500, False

        async def send_and_observe(message: MutableMapping[str, Any]) -> None:
            nonlocal status, is_stream
            if message["type"] == "http.response.start":
                status = message["status"]
                kinds = [v for k, v in message["headers"] if k == b"content-type"]
                if any(kind.startswith(b"text/event-stream") for kind in kinds):
                    is_stream = True
                    self._streams.inc()
            await send(message)

        try:
            await self._app(scope, receive, send_and_observe)
        finally:
            seconds = time.perf_counter() - started_at
            route = _route_path(scope)
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._count.labels(method, route, str(status)).inc()
            if is_stream:
                self._streams.dec()
            else:
                self._seconds.labels(route).observe(seconds)
            fields = {"method": method, "route": route, "status": status}
            fields["milliseconds"] = round(1000 * seconds, 1)
            get_logger("serve", "request").info(
                "%s %s %s", method, route, status, extra={"fields": fields}
            )


def _route_path(scope: Scope) -> str:
    """Return the path template of the matched route, or ``other`` if no route matched."""
    endpoint = scope.get("endpoint", scope)
    return next(
        (
            route.path_format
            for route in scope["app"].routes
            if getattr(route, "endpoint", 0) is endpoint
        ),
        "other",
    )
