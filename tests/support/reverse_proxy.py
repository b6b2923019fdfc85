"""Reverse proxy that mounts a server below a path."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.support.listening import on_loopback

_HOP_HEADERS = frozenset({"connection", "host", "keep-alive", "transfer-encoding"})
_METHODS = ["GET", "POST", "PATCH", "DELETE"]


@asynccontextmanager
async def proxied(
    servers: Callable[[], Sequence[str]], *, prefix: str = "", is_stripped: bool = True
) -> AsyncIterator[str]:
    """Run a proxy and yield its URL, which ends with the prefix.

    Args:
        servers: Returns the URLs of the servers, which answer the requests in turn. A server that
            refuses the connection is skipped.
        prefix: Path at which the server is mounted.
        is_stripped: True if the proxy removes the prefix from paths and sends it as a header.
    """
    count = 0
    async with httpx.AsyncClient(timeout=60) as http:

        async def forward(request: Request) -> Response:
            nonlocal count
            path = request.url.path.removeprefix(prefix) if is_stripped else request.url.path
            headers = [(n, v) for n, v in request.headers.items() if n not in _HOP_HEADERS]
            headers += [("x-forwarded-host", request.headers["host"])]
            headers += [("x-forwarded-proto", "https")]
            headers += [("x-forwarded-prefix", prefix)] if is_stripped else []
            body = await request.body()
            for _ in range(2 * len(servers())):
                count += 1
                url = servers()[count % len(servers())].rstrip("/")
                target = f"{url}{path}?{request.url.query}"
                sent = http.build_request(request.method, target, headers=headers, content=body)
                try:
                    answer = await http.send(sent, stream=True)
                except httpx.ConnectError:
                    continue
                except (httpx.ReadError, httpx.RemoteProtocolError):
                    # A server that ends closes idle connections; proxies repeat safe requests.
                    if request.method != "GET":
                        raise
                    continue
                break
            else:
                return Response("No server answers.", 502)

            async def chunks() -> AsyncIterator[bytes]:
                try:
                    async for chunk in answer.aiter_raw():
                        yield chunk
                finally:
                    await answer.aclose()

            response = StreamingResponse(chunks(), answer.status_code)
            response.raw_headers = [
                (name.lower(), value)
                for name, value in answer.headers.raw
                if name.lower().decode() not in _HOP_HEADERS
            ]
            return response

        app = Starlette(routes=[Route("/{path:path}", forward, methods=_METHODS)])
        async with on_loopback(lambda _: app) as url:
            yield f"{url}{prefix}"
