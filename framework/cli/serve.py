"""The packaged agents for LangGraph's servers, which bring a saver and a store of their own."""

from __future__ import annotations

from typing import Any


def demo() -> Any:
    """Return the graph of the demonstration: weather of Seattle, no model.

    >>> "statistics" in demo().get_graph().nodes
    True
    """
    from configs.settings import load_settings
    from framework.cli.agent import packaged_config
    from framework.graph import build_graph
    from framework.registry import Registry

    settings = load_settings(packaged_config("demo.yml"))
    return build_graph(Registry.from_settings(settings), settings=settings)
