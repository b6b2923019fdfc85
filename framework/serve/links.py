"""URLs of the server and of threads in the console."""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request

from capgraph.configs.settings import ServeSettings


def server_url(settings: ServeSettings, request: Request) -> str:
    """Return the public base URL of the server without a trailing slash."""
    return (settings.base_url or str(request.base_url)).rstrip("/")


def thread_link(settings: ServeSettings, request: Request, thread_id: str) -> str:
    """Return the URL that opens a thread in the web console."""
    return f"{server_url(settings, request)}/{thread_query(thread_id)}"


def thread_query(thread_id: str) -> str:
    """Return the URL query string that opens a thread in the web console.

    >>> thread_query("a b")
    '?thread=a%20b'
    """
    return f"?thread={quote(thread_id, safe='')}"
