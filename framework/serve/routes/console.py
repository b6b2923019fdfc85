"""The console: static files that ship with the package."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from capgraph.serve.routes.login import login_page, not_found

CONSOLE_FOLDER = Path(__file__).parents[1] / "console"
_MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}


@dataclass(frozen=True, slots=True)
class _File:
    """Static file held in memory, with a compressed copy.

    Attributes:
        media_type: Media type of the file.
        content: Bytes of the file.
        gzipped: Compressed bytes.
        etag: Hash of the content.
    """

    media_type: str
    content: bytes
    gzipped: bytes
    etag: str

    def to_response(self, request: Request, cache_control: str) -> Response:
        headers = {
            "etag": self.etag,
            "cache-control": cache_control,
            "vary": "accept-encoding, cookie",
        }
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        body = self.content
        if "gzip" in request.headers.get("accept-encoding", ""):
            body, headers["content-encoding"] = self.gzipped, "gzip"
        return Response(body, headers=headers, media_type=self.media_type)


def _load_file(path: Path) -> _File:
    plain = path.read_bytes()
    tag = f'"{hashlib.sha256(plain).hexdigest()[:32]}"'
    return _File(_MEDIA_TYPES[path.suffix], plain, gzip.compress(plain, mtime=0), tag)


def routes(*, oidc: bool = False) -> list[Route]:
    """Return the routes of the web console.

    Args:
        oidc: True if the login page links to an OpenID Connect provider.

    >>> [route.path for route in routes()]
    ['/', '/console/{file}']
    """
    # Requested names are dictionary keys, never paths on disk.
    files = {
        path.name: _load_file(path)
        for path in sorted(CONSOLE_FOLDER.iterdir())
        if path.suffix in _MEDIA_TYPES
    }
    page = files.pop("index.html")

    async def index(request: Request) -> Response:
        if request.scope.get("capgraph.caller") is None:
            return login_page(request, oidc=oidc, thread=request.query_params.get("thread"))
        return page.to_response(request, "private, no-cache")

    async def file(request: Request) -> Response:
        found = files.get(request.path_params["file"])
        if found is None:
            return not_found(request)
        return found.to_response(request, "private, no-cache")

    return [
        Route("/", index, methods=["GET"]),
        Route("/console/{file}", file, methods=["GET"]),
    ]
