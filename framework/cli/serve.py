"""Agents for LangGraph's servers, which bring a saver and a store of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any


def demo() -> AbstractAsyncContextManager[Any]:
    """Open the graph of the demonstration: weather of Seattle, no model.

    >>> async def nodes():
    ...     async with demo() as graph:
    ...         return list(graph.get_graph().nodes)
    >>> "query_data" in asyncio.run(nodes())
    True
    """
    from capgraph.cli.agent import packaged_config

    return _open(packaged_config("demo.yml"))


def configured() -> AbstractAsyncContextManager[Any]:
    """Open the graph of the agent that the file in ``CAPGRAPH_CONFIG`` describes."""
    return _open()


@asynccontextmanager
async def _open(*files: Any) -> AsyncIterator[Any]:
    from capgraph.configs.settings import load_settings
    from capgraph.graph import open_graph

    settings = await asyncio.to_thread(load_settings, *files)
    # The server's own saver and store replace those of the graph.
    elsewhere = settings.persistence.model_copy(update={"url": None})
    settings = settings.model_copy(update={"persistence": elsewhere})
    async with open_graph(settings=settings) as graph:
        # The server opens the graph for each run, which must be as fast as any other.
        await graph.warm_up()
        yield graph
