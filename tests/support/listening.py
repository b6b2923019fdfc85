"""Servers that listen on loopback, for clients that bring a transport of their own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import build_graph
from capgraph.configs.settings import Settings
from capgraph.serve.app import create_app
from tests.support.served import ByHeader, OpenValve, read_level


@asynccontextmanager
async def listening(
    *capabilities: Any, saver: Any = None, registry: Any = None, **serve: Any
) -> AsyncIterator[str]:
    """Serve a graph; gives the address. Users name themselves by the header ``x-user``."""
    graph = build_graph(
        registry or capabilities or (read_level, OpenValve),
        checkpointer=saver or InMemorySaver(),
        settings=Settings(serve=serve),
    )
    app = await asyncio.to_thread(create_app, graph, auth=ByHeader(), host="127.0.0.1")
    async with on_loopback(lambda _: app) as url:
        yield url


@asynccontextmanager
async def on_loopback(make: Callable[[str], Any]) -> AsyncIterator[str]:
    """Serve an ASGI application on a free port; gives the address.

    Args:
        make: Makes the application, which may have to know its address.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        app = await asyncio.to_thread(make, url)
        options = {"lifespan": "auto", "timeout_graceful_shutdown": 1}
        # The parser of ``capgraph serve``; with httptools installed, uvicorn would choose that.
        config = uvicorn.Config(app, log_config=None, http="h11", **options)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield url
        finally:
            server.should_exit = True
            await task
