"""Server-sent events: numbered, in the order in which they were written down."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from starlette.responses import StreamingResponse

from capgraph.serve.problems import BadRequestError

Pages = AsyncIterator[list[tuple[int, str]]]
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_ALIVE = b": \n\n"


def after_of(given: str | None) -> int:
    """Read ``Last-Event-ID``.

    Raises:
        BadRequestError: It is no number.

    >>> after_of("7")
    7
    """
    if given is None or not given.strip():
        return 0
    if not given.strip().isdecimal() or len(given) > 18:
        raise BadRequestError(
            f"{given[:40]!r} is no id of an event.", fix="Send the last one's id."
        )
    return int(given)


def stream(pages: Pages) -> StreamingResponse:
    """Return an answer that streams events.

    Args:
        pages: Their numbers and what they say, as JSON; an empty page shows that the stream lives.
    """
    return StreamingResponse(_written(pages), headers=_HEADERS, media_type="text/event-stream")


async def _written(pages: Pages) -> AsyncIterator[bytes]:
    async with aclosing(pages):  # type: ignore[type-var]
        async for page in pages:
            yield b"".join(f"id: {n}\ndata: {text}\n\n".encode() for n, text in page) or _ALIVE
