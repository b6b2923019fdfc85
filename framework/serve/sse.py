"""Server-sent events with sequence numbers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from starlette.responses import StreamingResponse

from capgraph.serve.problems import BadRequestError

EventPages = AsyncIterator[list[tuple[int, str]]]
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_KEEP_ALIVE = b": \n\n"


def parse_last_event_id(value: str | None) -> int:
    """Parse a ``Last-Event-ID`` header; 0 if it is missing.

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
    """Return a response that streams events.

    Args:
        pages: Lists of sequence numbers and JSON texts. An empty list sends a keep-alive comment.
    """
    return StreamingResponse(_encode_pages(pages), headers=_HEADERS, media_type="text/event-stream")


async def _encode_pages(pages: EventPages) -> AsyncIterator[bytes]:
    async with aclosing(pages):  # type: ignore[type-var]
        async for page in pages:
            yield b"".join(f"id: {n}\ndata: {text}\n\n".encode() for n, text in page) or _KEEP_ALIVE
