"""Capabilities backed by tools of MCP servers, over stdio and streamable HTTP.

MCP servers are not trusted. Their results have the label ``untrusted``, and their texts are
sanitized and truncated. A tool without annotations has the effect ``once``. A tool that changed
since its review needs an approval.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar

import httpx2
from mcp import StdioServerParameters
from mcp.server import MCPServer, Server
from mcp_types import Tool
from pydantic import ConfigDict, Field

from capgraph.adapters.credentials import Credentials
from capgraph.adapters.external_text import (
    capability_name,
    is_http_url,
    sanitize_schema,
    sanitize_text,
)
from capgraph.adapters.mcp_calls import McpToolClient, PinCheck, tool_digest
from capgraph.adapters.mcp_connections import RemoteMcpServer
from capgraph.adapters.schema_capability import capability_from_schema
from capgraph.base.capability import BaseCapability
from capgraph.base.context import CapabilityContext
from capgraph.base.declarations import accepted_names, check_names
from capgraph.base.errors import ConfigurationError
from capgraph.base.errors import ValidationError as DeclarationError
from capgraph.base.ports import PermissionMode
from capgraph.base.spec import Effect
from capgraph.base.value_context import ValueContext
from capgraph.configs.logger import get_logger
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.planning.json_parameters import json_parameters


class ToolResult(CapabilityContext):
    """Result of a tool without an output schema.

    Attributes:
        text: All text of the result.
        content: Content blocks (text, images, resources) as the server sent them.
        DECLARED_FIELDS: Fields that planners may refer to.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")
    DECLARED_FIELDS: ClassVar[tuple[str, ...]] = ("text",)
    text: str = ""
    content: list[dict[str, Any]] = Field(default_factory=list)

    def get_summary(self) -> str:
        """Return the text of the result, or the content types if the result has no text."""
        types = ", ".join(str(block.get("type")) for block in self.content)
        return self.text or types or "nothing"


_NO_TOOLS: Mapping[str, str] = MappingProxyType({})


class McpCapabilities(list[type[BaseCapability]]):
    """Capabilities of one MCP server, which share a connection that is opened on demand.

    The connection is closed by ``aclose()``, at the end of ``async with``, and with the event loop.

    Attributes:
        pins: Digests of the tools, by tool name on the server. Store them and pass them to later
            calls of ``mcp_capabilities`` to detect changed tools.
        omitted_tools: Reasons why tools cannot be used as capabilities, by tool name on the
            server.
    """

    def __init__(
        self,
        capabilities: Collection[type[BaseCapability]],
        pins: Mapping[str, str],
        server: RemoteMcpServer,
        omitted_tools: Mapping[str, str] = _NO_TOOLS,
    ) -> None:
        super().__init__(capabilities)
        self.pins: dict[str, str] = dict(pins)
        self.omitted_tools: dict[str, str] = dict(omitted_tools)
        self._server = server

    async def aclose(self) -> None:
        """Close the connection to the MCP server. The next tool call opens a new connection."""
        await self._server.aclose()

    async def __aenter__(self) -> McpCapabilities:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


@validate_arguments
async def mcp_capabilities(
    server: StdioServerParameters | str | Any,
    *,
    prefix: str = "",
    allow: Collection[str] | None = None,
    effects: Mapping[str, Effect] | None = None,
    permission: PermissionMode | str | Mapping[str, PermissionMode | str] | None = None,
    pins: Mapping[str, str] | None = None,
    timeout_seconds: float = 60.0,
    sends_externally: bool = True,
    headers: Mapping[str, str] | None = None,
    auth: Any = None,
    credentials: Credentials | None = None,
    mode: str = "auto",
    **declarations: Any,
) -> McpCapabilities:
    """Connect to an MCP server and return its tools as capabilities.

    A tool whose schema is invalid or refers to another document is omitted with a warning,
    unless ``allow`` lists it. To use tools that the server adds later, build a new graph with the
    same checkpointer and ``registry.with_(*await mcp_capabilities(server))``.

    Args:
        server: ``StdioServerParameters``, the URL of a streamable HTTP server, a server object
            in this process, or a function that returns an ``mcp`` transport.
        prefix: Prefix of the capability names, to avoid clashes between servers.
        allow: Names of the tools to use. Default: all.
        effects: Effects by tool name. They override the tools' annotations.
        permission: Permission that callers need, for all tools or by tool name.
        pins: Digests of the reviewed tools; see :class:`McpCapabilities`. A step whose tool
            differs or is not listed needs an approval.
        timeout_seconds: Timeout for each call and for connecting to the server.
        sends_externally: True if the tools' arguments leave the organization.
        headers: HTTP headers for each request to a URL, such as ``Authorization``.
        auth: ``httpx2.Auth`` for each request to a URL, such as
            ``mcp.client.auth.OAuthClientProvider``.
        credentials: Provider of access tokens for the users on whose behalf the tools act. Each
            user has a separate connection whose requests carry the user's token. The tools are
            listed with ``headers`` and ``auth`` instead.
        mode: Protocol mode of ``mcp.Client``. Use ``legacy`` for a server whose tools elicit
            input while they run, which the newest protocol does not support.
        **declarations: Declarations of :class:`~capgraph.base.spec.Declarations`,
            ``max_attempts``, and so on, each as one value for all tools or values by tool name.
            ``examples`` must be given by tool name.

    Raises:
        CapabilityError: The server cannot be reached.
        ConfigurationError: The argument is not a server, or the server has no tool of a given
            name.
        ValidationError: A declaration is unknown or invalid, or a tool in ``allow`` has an
            invalid schema.
    """
    check_names("mcp_capabilities", declarations, accepted_names("mcp"))
    if not isinstance(declarations.get("examples", {}), Mapping):
        raise DeclarationError(
            f"mcp_capabilities: examples is {declarations['examples']!r:.80}: expected a mapping from"
            " tool names to examples.",
            fix='Pass examples={"tool": ["a request that needs it"]}.',
        )
    server_types = (StdioServerParameters, Server, MCPServer, AbstractAsyncContextManager)
    if not (is_http_url(server) or callable(server) or isinstance(server, server_types)):
        raise ConfigurationError(
            f"{server!r:.200} is not an MCP server.",
            fix="Pass StdioServerParameters, the URL of a server (http://…/mcp), or a server object.",
        )
    if auth is not None and not (is_http_url(server) and isinstance(auth, httpx2.Auth)):
        raise ConfigurationError(
            f"auth is {auth!r:.80}: expected httpx2.Auth and the URL of a server.",
            fix="Pass auth=OAuthClientProvider(…) with a URL, or remove it.",
        )
    if credentials is not None and not (
        is_http_url(server) and isinstance(credentials, Credentials)
    ):
        raise ConfigurationError(
            f"credentials is {type(credentials).__name__}: expected Credentials and the URL of a"
            " server.",
            fix="Pass credentials=TokenExchange(…) with a URL, or remove it.",
        )
    hub = RemoteMcpServer(server, timeout_seconds, headers or {}, auth, mode, credentials)
    declared = {
        **declarations,
        "permission": permission,
        "sends_externally": sends_externally,
        "timeout_seconds": timeout_seconds,
    }
    async with AsyncExitStack() as stack:
        stack.push_async_callback(hub.aclose)
        tools = await hub.list_tools()
        by_tool = [effects or {}, *(v for v in declared.values() if isinstance(v, Mapping))]
        if unknown := sorted({*(allow or ()), *chain(*by_tool)} - set(tools)):
            raise ConfigurationError(
                f"The MCP server has no tools named {unknown}. The available tools are "
                f"{sorted(tools)}.",
                fix="Use the server's names, without the prefix.",
            )
        omitted_tools = {} if allow is not None else _find_unusable_tools(tools, hub)
        chosen_names = {*tools} - {*omitted_tools} if allow is None else {*allow}
        selected = {name: tool for name, tool in tools.items() if name in chosen_names}
        digests = {name: tool_digest(tool) for name, tool in selected.items()}
        capabilities: dict[str, type[BaseCapability]] = {}
        for name, tool in selected.items():
            pin = digests[name] if pins is None else pins.get(name, "")
            own_name = capability_name(name, prefix, capabilities)
            client = McpToolClient(hub, name, pin, (effects or {}).get(name) or tool_effect(tool))
            capabilities[own_name] = _tool_to_capability(
                own_name, tool, client, _select_tool_declarations(name, declared)
            )
        stack.pop_all()
    return McpCapabilities(list(capabilities.values()), digests, hub, omitted_tools)


def _find_unusable_tools(tools: Mapping[str, Tool], server: RemoteMcpServer) -> dict[str, str]:
    """Find tools whose schema is invalid, and return the reason for each tool name.

    A warning is logged for each of these tools.
    """
    reasons = {}
    for name, tool in tools.items():
        try:
            json_parameters(name, sanitize_schema(tool.input_schema))
        except DeclarationError as exc:
            reasons[name] = str(exc)
            get_logger("adapters", "mcp").warning(
                "The tool %r of %s is omitted: %s", name, server, exc
            )
    return reasons


def _select_tool_declarations(name: str, declared: Mapping[str, Any]) -> dict[str, Any]:
    """Select the declarations that apply to one tool.

    A mapping contains values by tool name. Any other value applies to all tools.
    """
    own_values = {}
    for declaration, value in declared.items():
        if not isinstance(value, Mapping):
            own_values[declaration] = value
        elif name in value:
            own_values[declaration] = value[name]
    return own_values


def _tool_to_capability(
    name: str, tool: Tool, client: McpToolClient, declared: dict[str, Any]
) -> type[BaseCapability]:
    # A plain string is passed on, because validation rejects it.
    for key, always in (("labels", "untrusted"), ("behaviors", PinCheck(client))):
        values = declared.get(key, ())
        declared[key] = (always, *values) if isinstance(values, (list, tuple, set)) else values
    return capability_from_schema(
        name,
        sanitize_text(tool.description or tool.title or "")
        or f"{name}, a tool of {client.server}.",
        sanitize_schema(tool.input_schema),
        client.call,
        provides=_result_type(name, tool.output_schema),
        credentials=client.server.credentials,
        effect=client.effect,
        **declared,
    )


def tool_effect(tool: Tool) -> Effect:
    """Derive the effect of a tool (``none``, ``idempotent``, or ``once``) from its annotations.

    Without annotations, the effect is ``once``.

    >>> from mcp_types import Tool, ToolAnnotations
    >>> hints = ToolAnnotations(idempotent_hint=True, destructive_hint=False)
    >>> tool_effect(Tool(name="put", input_schema={"type": "object"}, annotations=hints))
    'idempotent'
    """
    hints = tool.annotations
    if hints is None:
        return "once"
    if hints.read_only_hint:
        return "none"
    return "idempotent" if hints.idempotent_hint and not hints.destructive_hint else "once"


def _result_type(name: str, schema: Mapping[str, Any] | None) -> type[CapabilityContext]:
    context_type = f"{name}_result".replace("-", "_").upper()
    if schema is None:
        return type(name, (ToolResult,), {"CONTEXT_TYPE": context_type, "__module__": __name__})
    content_field = {"content": {"type": "array", "items": {"type": "object"}}}
    full_schema = {**schema, "properties": {**content_field, **schema.get("properties", {})}}
    if schema.get("type") != "object":
        full_schema = {
            "type": "object",
            "properties": {"value": schema},
            "$defs": schema.get("$defs", {}),
        }

    fields = tuple(schema.get("properties", ()))

    class StructuredResult(ValueContext if schema.get("type") != "object" else CapabilityContext):  # type: ignore[misc]
        CONTEXT_TYPE: ClassVar[str] = context_type
        DECLARED_FIELDS: ClassVar[tuple[str, ...]] = fields
        model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

        @classmethod
        def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
            return full_schema

    StructuredResult.__name__ = StructuredResult.__qualname__ = name
    return StructuredResult
