"""Where people find things of the server."""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request

from capgraph.configs.settings import ServeSettings


def server_url(settings: ServeSettings, request: Request) -> str:
    """Return the address of the server, without a slash at its end."""
    return (settings.base_url or str(request.base_url)).rstrip("/")


def thread_link(settings: ServeSettings, request: Request, thread_id: str) -> str:
    """Return the address of a thread in the console."""
    return f"{server_url(settings, request)}/{thread_query(thread_id)}"


def thread_query(thread_id: str) -> str:
    """Return what the address of the console ends with to show a thread.

    >>> thread_query("a b")
    '?thread=a%20b'
    """
    return f"?thread={quote(thread_id, safe='')}"
