"""Adapters between capabilities and tools, graphs, agents, and remote servers."""

from typing import TYPE_CHECKING, Any

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.adapters.a2a import agent_card as agent_card
    from capgraph.adapters.as_tools import as_tool as as_tool
    from capgraph.adapters.authorization import AuthorizationCode as AuthorizationCode
    from capgraph.adapters.authorization import (
        AuthorizationRequiredError as AuthorizationRequiredError,
    )
    from capgraph.adapters.credentials import Credentials as Credentials
    from capgraph.adapters.credentials import TokenExchange as TokenExchange
    from capgraph.adapters.credentials import signed_subject as signed_subject
    from capgraph.adapters.graphs import agent_capability as agent_capability
    from capgraph.adapters.graphs import graph_capability as graph_capability
    from capgraph.adapters.mcp import McpCapabilities as McpCapabilities
    from capgraph.adapters.mcp import mcp_capabilities as mcp_capabilities
    from capgraph.adapters.mcp_server import as_mcp_server as as_mcp_server
    from capgraph.adapters.remote import remote_capability as remote_capability
    from capgraph.adapters.settings_registry import open_registry as open_registry
    from capgraph.adapters.tools import tool_capability as tool_capability

_MCP = ("mcp", "mcp")
_EXTRAS = {
    "McpCapabilities": _MCP,
    "agent_card": ("a2a.client", "a2a"),
    "as_mcp_server": _MCP,
    "mcp_capabilities": _MCP,
}
"""Exported names that require an optional package, with the module to import and the extra."""

_get, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.adapters.a2a": ("agent_card",),
        "capgraph.adapters.as_tools": ("as_tool",),
        "capgraph.adapters.authorization": ("AuthorizationCode", "AuthorizationRequiredError"),
        "capgraph.adapters.credentials": ("Credentials", "TokenExchange", "signed_subject"),
        "capgraph.adapters.settings_registry": ("open_registry",),
        "capgraph.adapters.graphs": ("agent_capability", "graph_capability"),
        "capgraph.adapters.mcp": ("McpCapabilities", "mcp_capabilities"),
        "capgraph.adapters.mcp_server": ("as_mcp_server",),
        "capgraph.adapters.remote": ("remote_capability",),
        "capgraph.adapters.tools": ("tool_capability",),
    },
)


def __getattr__(name: str) -> Any:
    if name in _EXTRAS:
        from capgraph.base.errors import require_extra

        require_extra(*_EXTRAS[name])
    return _get(name)
