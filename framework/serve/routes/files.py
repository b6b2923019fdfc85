"""Routes for uploads and for artifacts that steps produced."""

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
"""Path whose request bodies may exceed ``serve.max_body_bytes``."""

_LIST_SUMMARY = "List uploaded files"
_CHUNK_BYTES = 1 << 18
_LINGER_SECONDS = 5.0
_SANDBOX_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"
"""Content security policy that disables everything in a file opened as a page."""


def routes(uploads: Uploads | None, artifacts: Artifacts) -> list[Operation]:
    """Return the routes for uploaded files and for files that steps produced.

    Args:
        uploads: The users' uploads; ``None`` if uploads are disabled.
        artifacts: Artifacts that steps produced.
    """
    return [*_upload_routes(uploads), *_artifact_routes(artifacts)]


def _upload_routes(uploads: Uploads | None) -> list[Operation]:
    async def nothing(_: Request) -> Response:
        return JSONResponse({"items": [], "next": None, "uploads": None})

    if uploads is None:
        return [Operation("GET", UPLOADS_PATH, nothing, _LIST_SUMMARY, page_schema(FILE))]

    async def add(request: Request) -> Response:
        name = request.query_params.get("name", "")
        content_length = request.headers.get("content-length", "0")
        if not content_length.isdecimal() or len(content_length) > 15:
            raise BadRequestError(
                f"The Content-Length {content_length[:40]!r} is not a number.", fix="Send a number."
            )
        chunks = request.stream()
        try:
            stored = await uploads.add(caller_of(request), name, chunks, int(content_length))
        except TooLargeError:
            # A client that is still sending could lose the response with the connection.
            with suppress(TimeoutError, ClientDisconnect):
                async with asyncio.timeout(_LINGER_SECONDS):
                    async for _ in chunks:
                        pass
            raise
        except ClientDisconnect:
            raise BadRequestError("The upload is incomplete.", fix="Send it again.") from None
        return JSONResponse(stored, 201)

    async def listed(request: Request) -> Response:
        caller, settings = caller_of(request), uploads.settings
        limits = {"kinds": settings.kinds, "max_file_bytes": settings.max_file_bytes}
        items, left = await uploads.list_files(caller), await uploads.remaining_bytes(caller)
        return JSONResponse({"items": items, "next": None, "uploads": {**limits, "left": left}})

    async def get(request: Request) -> Response:
        name, file, size = await uploads.open(caller_of(request), request.path_params["id"])
        return _file_response(name, media_type(name), file, size)

    async def delete(request: Request) -> Response:
        await uploads.remove(caller_of(request), request.path_params["id"])
        return Response(status_code=204)

    return [
        Operation("POST", UPLOADS_PATH, add, "Upload a file", FILE, 201, query={"name": TEXT},
                  body=BYTES, body_media_type="application/octet-stream"),
        Operation("GET", UPLOADS_PATH, listed, _LIST_SUMMARY, page_schema(FILE)),
        Operation("GET", f"{UPLOADS_PATH}/{{id}}", get, "Download an upload", BYTES, media_type="*/*"),
        Operation("DELETE", f"{UPLOADS_PATH}/{{id}}", delete, "Delete an upload", None, 204),
    ]  # fmt: skip


def _artifact_routes(artifacts: Artifacts) -> list[Operation]:
    async def things(request: Request) -> Response:
        artifact = await artifacts.list_artifacts(caller_of(request), request.path_params["id"])
        return page_response(([one.to_dict() for one in artifact], None))

    async def thing(request: Request) -> Response:
        parameters = request.path_params
        artifact = await artifacts.get(caller_of(request), parameters["id"], parameters["file_id"])
        return _file_response(
            artifact.name, artifact.media_type, *await asyncio.to_thread(artifact.open)
        )

    async def rows(request: Request) -> Response:
        parameters = request.path_params
        artifact = await artifacts.get(caller_of(request), parameters["id"], parameters["file_id"])
        start = query_int(request, "after", 0)
        end = start + min(max(query_int(request, "limit", 50), 1), 1000)
        next_cursor = str(end) if end < len(artifact.rows) else None
        return page_response(([dict(row) for row in artifact.rows[start:end]], next_cursor))

    thread = f"{THREAD_PATH}/files"
    return [
        Operation("GET", thread, things, "List the artifacts of a thread", page_schema(ARTIFACT)),
        Operation("GET", f"{thread}/{{file_id}}", thing, "Download an artifact; tables as CSV", BYTES,
                  media_type="*/*"),
        Operation("GET", f"{thread}/{{file_id}}/rows", rows, "Get rows of a table", page_schema(ANY),
                  query={"limit": COUNT, "after": COUNT}),
    ]  # fmt: skip


def _file_response(name: str, content_type: str, file: BinaryIO, size: int) -> Response:
    """Return a response that downloads a file as an attachment."""
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "content-length": str(size),
        "content-security-policy": _SANDBOX_POLICY,
    }
    return StreamingResponse(_iter_chunks(file, size), headers=headers, media_type=content_type)


async def _iter_chunks(file: BinaryIO, size: int) -> AsyncIterator[bytes]:
    """Yield at most ``size`` bytes of a file in chunks, even if the file is still growing."""
    with file:
        while size > 0 and (chunk := await asyncio.to_thread(file.read, min(_CHUNK_BYTES, size))):
            size -= len(chunk)
            yield chunk
