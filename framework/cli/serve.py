"""Graph factories for the LangGraph Agent Server and Studio; ``langgraph.json`` names them."""

from __future__ import annotations

import asyncio
from importlib import resources
from typing import Any

from langchain_core.runnables import RunnableConfig

from configs.settings import load_settings
from framework.graph import build_graph
from framework.registry import Registry


async def demo(config: RunnableConfig) -> Any:  # noqa: ARG001, RUF100 - the server passes it
    """Return the demonstration agent. The server brings saver and store."""
    return await asyncio.to_thread(agent, "demo.yml")


async def configured(config: RunnableConfig) -> Any:  # noqa: ARG001, RUF100
    """Return the agent that the file in ``CAPGRAPH_CONFIG`` describes."""
    return await asyncio.to_thread(agent, None)


def agent(packaged: str | None) -> Any:
    """Build the graph of a packaged configuration, or of ``CAPGRAPH_CONFIG`` alone.

    Args:
        packaged: File name inside the package ``configs``.
    """
    if packaged is None:
        settings = load_settings()
    else:
        with resources.as_file(resources.files("configs").joinpath(packaged)) as file:
            settings = load_settings(file)
    return build_graph(Registry.from_settings(settings), settings=settings)
