"""Files: bringing them along, and having what steps made. Everything is named by an id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import BinaryIO
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from capgraph.serve.files import MadeFiles, Uploads, media_type
from capgraph.serve.identity import caller_of
from capgraph.serve.openapi import ANY, BYTES, COUNT, FILE, MADE, TEXT, Operation, list_of
from capgraph.serve.problems import BadRequestError, TooLargeError
from capgraph.serve.routes.api import THREAD, number_of, page

UPLOADS = "/api/files"
"""Where bodies may be longer than elsewhere."""

_BROUGHT = "List the files that one brought along"
_PART = 1 << 18
_LINGER_SECONDS = 5.0
_SANDBOX = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"
"""Whatever is in a file, opened as a page it can do nothing."""


def routes(uploads: Uploads | None, made: MadeFiles) -> list[Operation]:
    """Return the routes of files.

    Args:
        uploads: What people brought along; ``None`` where they may not.
        made: What steps made.
    """
    return [*_brought(uploads), *_made(made)]


def _brought(uploads: Uploads | None) -> list[Operation]:
    async def nothing(_: Request) -> Response:
        return JSONResponse({"items": [], "next": None, "uploads": None})

    if uploads is None:
        return [Operation("GET", UPLOADS, nothing, _BROUGHT, list_of(FILE))]

    async def add(request: Request) -> Response:
        name = request.query_params.get("name", "")
        said = request.headers.get("content-length", "0")
        if not said.isdecimal() or len(said) > 15:
            raise BadRequestError(f"The length {said[:40]!r} is none.", fix="Send a number.")
        parts = request.stream()
        try:
            found = await uploads.add(caller_of(request), name, parts, int(said))
        except TooLargeError:
            # Whoever still sends would lose the answer with the connection.
            with suppress(TimeoutError, ClientDisconnect):
                async with asyncio.timeout(_LINGER_SECONDS):
                    async for _ in parts:
                        pass
            raise
        except ClientDisconnect:
            raise BadRequestError("The file did not come whole.", fix="Send it again.") from None
        return JSONResponse(found, 201)

    async def listed(request: Request) -> Response:
        caller, known = caller_of(request), uploads.settings
        may = {"kinds": known.kinds, "max_file_bytes": known.max_file_bytes}
        items, left = await uploads.items(caller), await uploads.left(caller)
        return JSONResponse({"items": items, "next": None, "uploads": {**may, "left": left}})

    async def get(request: Request) -> Response:
        name, file, size = await uploads.open(caller_of(request), request.path_params["id"])
        return _sent(name, media_type(name), file, size)

    async def delete(request: Request) -> Response:
        await uploads.remove(caller_of(request), request.path_params["id"])
        return Response(status_code=204)

    return [
        Operation("POST", UPLOADS, add, "Bring a file along", FILE, 201, query={"name": TEXT},
                  body=BYTES, takes="application/octet-stream"),
        Operation("GET", UPLOADS, listed, _BROUGHT, list_of(FILE)),
        Operation("GET", f"{UPLOADS}/{{id}}", get, "Have a file", BYTES, media="*/*"),
        Operation("DELETE", f"{UPLOADS}/{{id}}", delete, "Drop a file", None, 204),
    ]  # fmt: skip


def _made(made: MadeFiles) -> list[Operation]:
    async def things(request: Request) -> Response:
        found = await made.items(caller_of(request), request.path_params["id"])
        return page(([one.as_data() for one in found], None))

    async def thing(request: Request) -> Response:
        asked = request.path_params
        found = await made.get(caller_of(request), asked["id"], asked["file_id"])
        return _sent(found.name, found.media_type, *await asyncio.to_thread(found.open))

    async def rows(request: Request) -> Response:
        asked = request.path_params
        found = await made.get(caller_of(request), asked["id"], asked["file_id"])
        begin = number_of(request, "after", 0)
        end = begin + min(max(number_of(request, "limit", 50), 1), 1000)
        following = str(end) if end < len(found.rows) else None
        return page(([dict(row) for row in found.rows[begin:end]], following))

    thread = f"{THREAD}/files"
    return [
        Operation("GET", thread, things, "List what steps of a thread made", list_of(MADE)),
        Operation("GET", f"{thread}/{{file_id}}", thing, "Have a file, or a table as CSV", BYTES,
                  media="*/*"),
        Operation("GET", f"{thread}/{{file_id}}/rows", rows, "Read a table", list_of(ANY),
                  query={"limit": COUNT, "after": COUNT}),
    ]  # fmt: skip


def _sent(name: str, kind: str, file: BinaryIO, size: int) -> Response:
    """Send a file to be saved, never to be shown as a page."""
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "content-length": str(size),
        "content-security-policy": _SANDBOX,
    }
    return StreamingResponse(_parts(file, size), headers=headers, media_type=kind)


async def _parts(file: BinaryIO, size: int) -> AsyncIterator[bytes]:
    """Yield so many bytes as were promised, also of a file that somebody still writes to."""
    with file:
        while size > 0 and (part := await asyncio.to_thread(file.read, min(_PART, size))):
            size -= len(part)
            yield part
