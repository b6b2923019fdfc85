"""Everything that works becomes a capability: tools, graphs, agents, servers; and the other way."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framework.adapters.a2a import agent_card
    from framework.adapters.as_tools import as_tool
    from framework.adapters.graphs import agent_capability, graph_capability
    from framework.adapters.mcp import McpCapabilities, mcp_capabilities
    from framework.adapters.mcp_server import as_mcp_server
    from framework.adapters.remote import remote_capability
    from framework.adapters.tools import tool_capability

__all__ = [
    "McpCapabilities",
    "agent_capability",
    "agent_card",
    "as_mcp_server",
    "as_tool",
    "graph_capability",
    "mcp_capabilities",
    "remote_capability",
    "tool_capability",
]

_IN = {
    "McpCapabilities": "mcp",
    "agent_capability": "graphs",
    "agent_card": "a2a",
    "as_mcp_server": "mcp_server",
    "as_tool": "as_tools",
    "graph_capability": "graphs",
    "mcp_capabilities": "mcp",
    "remote_capability": "remote",
    "tool_capability": "tools",
}

_EXTRAS = {"a2a": ("a2a.client", "a2a"), "mcp": ("mcp", "mcp"), "mcp_server": ("mcp", "mcp")}
"""Part to the module that it needs, and the extra that brings it."""


def __getattr__(name: str) -> Any:
    if name not in _IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _IN[name] in _EXTRAS:
        from framework.base.errors import require_extra

        require_extra(*_EXTRAS[_IN[name]])
    return getattr(importlib.import_module(f"{__name__}.{_IN[name]}"), name)
