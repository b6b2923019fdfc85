"""Public URL of a request behind a reverse proxy: scheme, host, and path prefix."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send

from capgraph.configs.settings import ServeSettings
from capgraph.serve.problems import problem_response

_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*/?")


class ForwardedMiddleware:
    """ASGI middleware that restores the public scheme, host, and path prefix of each request.

    ``X-Forwarded-Proto``, ``X-Forwarded-Host``, and ``X-Forwarded-Prefix`` are honored only if
    they come from a trusted proxy. The path of ``serve.base_url`` is the prefix of every
    request. The prefix becomes the ``root_path`` of the request, as if the server were mounted
    there.

    Args:
        app: The wrapped application.
        settings: Settings of the server.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self._app, self._proxy = app, settings.proxy
        self._prefix = urlsplit(settings.base_url or "").path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request with its public URL, or reject an invalid path prefix."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        client = scope.get("client")
        is_trusted = self._proxy is not None and client and self._proxy.trusts(client[0])

        def read(name: str) -> str:
            # Each proxy appends its value, so only the last one comes from the trusted proxy.
            values = headers.getlist(f"x-forwarded-{name}") if is_trusted else []
            return values[-1].rsplit(",", 1)[-1].strip() if values else ""

        forwarded = read("prefix")
        if _PREFIX.fullmatch(forwarded) is None:
            detail = f"The header X-Forwarded-Prefix {forwarded[:100]!r} is not a path."
            refusal = problem_response(400, "CG-VALIDATION", detail, "Correct the proxy.")
            await refusal(scope, receive, send)
            return
        public = dict(scope)
        if (scheme := read("proto")) in ("http", "https"):
            public["scheme"] = scheme
        if host := read("host"):
            public["headers"] = [*scope["headers"]]
            MutableHeaders(scope=public)["host"] = host
        _mount(public, self._prefix or forwarded.rstrip("/"), is_stripped=not self._prefix)
        await self._app(public, receive, send)


def _mount(scope: dict[str, Any], prefix: str, *, is_stripped: bool) -> None:
    """Adjust a request's ``root_path`` and path as if the server were mounted at a prefix.

    Args:
        scope: ASGI scope of the request, which is changed.
        prefix: Path prefix without a trailing slash; empty for none.
        is_stripped: True if the proxy removed the prefix from the path. Otherwise, the path may or
            may not begin with it.
    """
    if not prefix:
        return
    root = f"{prefix}{scope.get('root_path', '')}"
    path = scope["path"]
    if is_stripped or not (path == root or path.startswith(f"{root}/")):
        scope["path"] = f"{prefix}{path}"
    scope["root_path"] = root


def route_path(scope: Scope) -> str:
    """Return a request's path relative to the prefix at which the server is mounted.

    >>> route_path({"root_path": "/agent", "path": "/agent/login"})
    '/login'
    """
    root, path = str(scope.get("root_path") or ""), str(scope["path"])
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    return path or "/"
