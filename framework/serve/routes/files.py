"""Files: bringing them along, and having what steps made. Everything is named by an id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import BinaryIO
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from capgraph.serve.files import Artifacts, Uploads, media_type
from capgraph.serve.identity import caller_of
from capgraph.serve.openapi import ANY, ARTIFACT, BYTES, COUNT, FILE, TEXT, Operation, page_schema
from capgraph.serve.problems import BadRequestError, TooLargeError
from capgraph.serve.routes.api import THREAD_PATH, page_response, query_int

UPLOADS_PATH = "/api/files"
"""Where bodies may be longer than elsewhere."""

_LIST_SUMMARY = "List the files that one brought along"
_CHUNK_BYTES = 1 << 18
_LINGER_SECONDS = 5.0
_SANDBOX_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"
"""Whatever is in a file, opened as a page it can do nothing."""


def routes(uploads: Uploads | None, artifacts: Artifacts) -> list[Operation]:
    """Return the routes of files.

    Args:
        uploads: What people brought along; ``None`` where they may not.
        artifacts: What steps made.
    """
    return [*_upload_routes(uploads), *_artifact_routes(artifacts)]


def _upload_routes(uploads: Uploads | None) -> list[Operation]:
    async def nothing(_: Request) -> Response:
        return JSONResponse({"items": [], "next": None, "uploads": None})

    if uploads is None:
        return [Operation("GET", UPLOADS_PATH, nothing, _LIST_SUMMARY, page_schema(FILE))]

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
        items, left = await uploads.list_files(caller), await uploads.remaining_bytes(caller)
        return JSONResponse({"items": items, "next": None, "uploads": {**may, "left": left}})

    async def get(request: Request) -> Response:
        name, file, size = await uploads.open(caller_of(request), request.path_params["id"])
        return _file_response(name, media_type(name), file, size)

    async def delete(request: Request) -> Response:
        await uploads.remove(caller_of(request), request.path_params["id"])
        return Response(status_code=204)

    return [
        Operation("POST", UPLOADS_PATH, add, "Bring a file along", FILE, 201, query={"name": TEXT},
                  body=BYTES, body_media_type="application/octet-stream"),
        Operation("GET", UPLOADS_PATH, listed, _LIST_SUMMARY, page_schema(FILE)),
        Operation("GET", f"{UPLOADS_PATH}/{{id}}", get, "Have a file", BYTES, media_type="*/*"),
        Operation("DELETE", f"{UPLOADS_PATH}/{{id}}", delete, "Drop a file", None, 204),
    ]  # fmt: skip


def _artifact_routes(artifacts: Artifacts) -> list[Operation]:
    async def things(request: Request) -> Response:
        found = await artifacts.list_artifacts(caller_of(request), request.path_params["id"])
        return page_response(([one.to_dict() for one in found], None))

    async def thing(request: Request) -> Response:
        asked = request.path_params
        found = await artifacts.get(caller_of(request), asked["id"], asked["file_id"])
        return _file_response(found.name, found.media_type, *await asyncio.to_thread(found.open))

    async def rows(request: Request) -> Response:
        asked = request.path_params
        found = await artifacts.get(caller_of(request), asked["id"], asked["file_id"])
        begin = query_int(request, "after", 0)
        end = begin + min(max(query_int(request, "limit", 50), 1), 1000)
        following = str(end) if end < len(found.rows) else None
        return page_response(([dict(row) for row in found.rows[begin:end]], following))

    thread = f"{THREAD_PATH}/files"
    return [
        Operation("GET", thread, things, "List what steps of a thread made", page_schema(ARTIFACT)),
        Operation("GET", f"{thread}/{{file_id}}", thing, "Have a file, or a table as CSV", BYTES,
                  media_type="*/*"),
        Operation("GET", f"{thread}/{{file_id}}/rows", rows, "Read a table", page_schema(ANY),
                  query={"limit": COUNT, "after": COUNT}),
    ]  # fmt: skip


def _file_response(name: str, content_type: str, file: BinaryIO, size: int) -> Response:
    """Send a file to be saved, never to be shown as a page."""
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "content-length": str(size),
        "content-security-policy": _SANDBOX_POLICY,
    }
    return StreamingResponse(_iter_chunks(file, size), headers=headers, media_type=content_type)


async def _iter_chunks(file: BinaryIO, size: int) -> AsyncIterator[bytes]:
    """Yield so many bytes as were promised, also of a file that somebody still writes to."""
    with file:
        while size > 0 and (part := await asyncio.to_thread(file.read, min(_CHUNK_BYTES, size))):
            size -= len(part)
            yield part
