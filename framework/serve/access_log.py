"""Every request, counted and logged: what was asked, how it was answered, how long it took."""

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
    """ASGI middleware outside of everything else.

    Nothing that it keeps names a user, a thread or anything else that somebody chose.

    Args:
        app: What is inside.
        registry: Where the numbers are kept.
    """

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self._app = app
        labels = ["method", "route", "status"]
        self._count = Counter(
            "capgraph_requests", "Requests that were answered.", labels, registry=registry
        )
        self._seconds = Histogram(
            "capgraph_request_seconds",
            "How long requests took, streams excepted.",
            ["route"],
            registry=registry,
        )
        self._streams = Gauge("capgraph_streams_open", "Streams that are open.", registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and keep how it went."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, streams = time.perf_counter(), 500, False

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal status, streams
            if message["type"] == "http.response.start":
                status = message["status"]
                kinds = [v for k, v in message["headers"] if k == b"content-type"]
                if any(kind.startswith(b"text/event-stream") for kind in kinds):
                    streams = True
                    self._streams.inc()
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            seconds = time.perf_counter() - began
            route = _route_path(scope)
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._count.labels(method, route, str(status)).inc()
            if streams:
                self._streams.dec()
            else:
                self._seconds.labels(route).observe(seconds)
            told = {"method": method, "route": route, "status": status}
            told["milliseconds"] = round(1000 * seconds, 1)
            get_logger("serve", "request").info(
                "%s %s %s", method, route, status, extra={"fields": told}
            )


def _route_path(scope: Scope) -> str:
    """Return the path as it is declared; what nothing answers has no name of its own."""
    found = scope.get("endpoint", scope)
    return next(
        (one.path_format for one in scope["app"].routes if getattr(one, "endpoint", 0) is found),
        "other",
    )
