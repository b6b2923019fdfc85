"""Agents for LangGraph's servers, which bring a saver and a store of their own."""

from __future__ import annotations

from typing import Any


def demo() -> Any:
    """Return the graph of the demonstration: weather of Seattle, no model.

    >>> "query_data" in demo().get_graph().nodes
    True
    """
    from capgraph.cli.agent import packaged_config

    return _graph(packaged_config("demo.yml"))


def configured() -> Any:
    """Return the graph of the agent that the file in ``CAPGRAPH_CONFIG`` describes."""
    return _graph()


def _graph(*files: Any) -> Any:
    from capgraph.base.awaiting import waited
    from capgraph.configs.settings import load_settings
    from capgraph.graph import build_graph
    from capgraph.registry import Registry

    settings = load_settings(*files)
    graph = build_graph(Registry.from_settings(settings), settings=settings)
    # A server starts once and should answer its first request as fast as any other. It may call
    # this from its event loop.
    waited(graph.warm_up())
    return graph
