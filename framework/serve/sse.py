"""Server-sent events: numbered, in the order in which they were written down."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from starlette.responses import StreamingResponse

from capgraph.serve.problems import BadRequestError

EventPages = AsyncIterator[list[tuple[int, str]]]
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_KEEP_ALIVE = b": \n\n"


def parse_last_event_id(value: str | None) -> int:
    """Read ``Last-Event-ID``.

    Raises:
        BadRequestError: It is no number.

    >>> parse_last_event_id("7")
    7
    """
    if value is None or not value.strip():
        return 0
    if not value.strip().isdecimal() or len(value) > 18:
        raise BadRequestError(
            f"{value[:40]!r} is no id of an event.", fix="Send the last one's id."
        )
    return int(value)


def event_stream(pages: EventPages) -> StreamingResponse:
    """Return an answer that streams events.

    Args:
        pages: Their numbers and what they say, as JSON; an empty page shows that the stream lives.
    """
    return StreamingResponse(_encode_pages(pages), headers=_HEADERS, media_type="text/event-stream")


async def _encode_pages(pages: EventPages) -> AsyncIterator[bytes]:
    async with aclosing(pages):  # type: ignore[type-var]
        async for page in pages:
            yield b"".join(f"id: {n}\ndata: {text}\n\n".encode() for n, text in page) or _KEEP_ALIVE
