"""Everything that works becomes a capability: tools, graphs, agents, servers; and the other way."""

from typing import TYPE_CHECKING, Any

from configs.lazy import contents

if TYPE_CHECKING:
    from framework.adapters.a2a import agent_card as agent_card
    from framework.adapters.as_tools import as_tool as as_tool
    from framework.adapters.graphs import agent_capability as agent_capability
    from framework.adapters.graphs import graph_capability as graph_capability
    from framework.adapters.mcp import McpCapabilities as McpCapabilities
    from framework.adapters.mcp import mcp_capabilities as mcp_capabilities
    from framework.adapters.mcp_server import as_mcp_server as as_mcp_server
    from framework.adapters.remote import remote_capability as remote_capability
    from framework.adapters.tools import tool_capability as tool_capability

_MCP = ("mcp", "mcp")
_EXTRAS = {
    "McpCapabilities": _MCP,
    "agent_card": ("a2a.client", "a2a"),
    "as_mcp_server": _MCP,
    "mcp_capabilities": _MCP,
}
"""Name to the module that it needs, and the extra that brings it."""

_get, __dir__ = contents(__name__)


def __getattr__(name: str) -> Any:
    if name in _EXTRAS:
        from framework.base.errors import require_extra

        require_extra(*_EXTRAS[name])
    return _get(name)
