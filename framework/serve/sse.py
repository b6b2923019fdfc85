"""Server-sent events with sequence numbers."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import StreamingResponse

from capgraph.serve.problems import BadRequestError

EventPages = AsyncGenerator[list[tuple[int, str]]]
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_KEEP_ALIVE = b": \n\n"


def parse_last_event_id(value: str | None) -> int:
    """Parse a ``Last-Event-ID`` header. A missing header is parsed as 0.

    Raises:
        BadRequestError: The header is not a number.

    >>> parse_last_event_id("7")
    7
    """
    if value is None or not value.strip():
        return 0
    if not value.strip().isdecimal() or len(value) > 18:
        raise BadRequestError(
            f"Invalid Last-Event-ID {value[:40]!r}: expected a number.",
            fix="Send the ID of the last event received.",
        )
    return int(value)


def event_stream(pages: EventPages) -> StreamingResponse:
    """Return a streaming response that sends pages of events as server-sent events.

    Args:
        pages: Lists of sequence numbers and JSON texts. An empty list sends a keep-alive comment.
    """
    return StreamingResponse(_encode_pages(pages), headers=_HEADERS, media_type="text/event-stream")


def encode_event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    r"""Encode JSON data as one server-sent event.

    Args:
        data: JSON data of the event.
        name: Event type; ``None`` for the default type.

    >>> encode_event({"n": 1}, "count")
    b'event: count\ndata: {"n": 1}\n\n'
    """
    line = f"event: {name}\n" if name else ""
    return f"{line}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


async def _encode_pages(pages: EventPages) -> AsyncIterator[bytes]:
    async with aclosing(pages):
        async for page in pages:
            yield b"".join(f"id: {n}\ndata: {text}\n\n".encode() for n, text in page) or _KEEP_ALIVE
