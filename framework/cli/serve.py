"""Graph factories for LangGraph servers, which provide their own saver and store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any


def demo() -> AbstractAsyncContextManager[Any]:
    """Open the graph of the demo agent, which answers weather questions without a model.

    >>> async def nodes():
    ...     async with demo() as graph:
    ...         return list(graph.get_graph().nodes)
    >>> "query_data" in asyncio.run(nodes())
    True
    """
    from capgraph.cli.agent import packaged_config

    return _open(packaged_config("demo.yml"))


def configured() -> AbstractAsyncContextManager[Any]:
    """Open the graph of the agent configured by the ``CAPGRAPH_CONFIG`` environment variable."""
    return _open()


@asynccontextmanager
async def _open(*files: Any) -> AsyncIterator[Any]:
    from capgraph.configs.settings import load_settings
    from capgraph.graph import open_graph

    settings = await asyncio.to_thread(load_settings, *files)
    # The server provides the saver and the store.
    elsewhere = settings.persistence.model_copy(update={"url": None})
    settings = settings.model_copy(update={"persistence": elsewhere})
    async with open_graph(settings=settings) as graph:
        # The server opens the graph for each run, so initialization must not delay the first step.
        await graph.warm_up()
        yield graph
