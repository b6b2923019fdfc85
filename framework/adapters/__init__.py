"""Everything that works becomes a capability: tools, graphs, agents, servers; and the other way."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framework.adapters.mcp import McpCapabilities, mcp_capabilities
    from framework.adapters.tools import tool_capability

__all__ = ["McpCapabilities", "mcp_capabilities", "tool_capability"]

_IN = {
    "McpCapabilities": "mcp",
    "mcp_capabilities": "mcp",
    "tool_capability": "tools",
}


def __getattr__(name: str) -> Any:
    if name not in _IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_IN[name]}"), name)
