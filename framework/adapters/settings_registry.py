"""Registry of the tools, graphs, agents, and MCP servers in the settings.

The settings accept the same declarations as code: each key of an entry is a keyword argument of
the entry's adapter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from capgraph.adapters.authorization import AuthorizationCode
from capgraph.adapters.credentials import TokenExchange, signed_subject
from capgraph.base.approval_policy import ApprovalPolicy
from capgraph.base.capability import BaseCapability
from capgraph.base.declarations import YAML_FORMS, accepted_names, check_names
from capgraph.base.errors import CapabilityError, require_extra
from capgraph.configs.errors import CapgraphError, ConfigurationError
from capgraph.engine.configured_objects import build_configured, import_attribute
from capgraph.registry import Registry

if TYPE_CHECKING:
    from capgraph.adapters.mcp import McpCapabilities
    from capgraph.configs.settings import (
        AuthorizationSettings,
        CredentialsSettings,
        McpSettings,
        Settings,
    )

_REFERENCE_KEYS = frozenset(
    {"classify_error", "input", "output", "parameters_from", "provides", "requires", "undo"}
)
"""Keys whose values may be ``"module:attribute"`` references."""
_TRANSPORT_FIELDS = {"command", "url", "env", "headers", "credentials", "authorization"}
_POLICY_FIELDS = tuple(field.name for field in fields(ApprovalPolicy))


@asynccontextmanager
async def open_registry(
    settings: Settings, problems: list[CapgraphError] | None = None
) -> AsyncIterator[Registry]:
    """Context manager: open the settings' registry with its tools, graphs, agents, and MCP servers.

    Connections to MCP servers are closed at the end of the block.

    Args:
        settings: Settings of the agent.
        problems: List to which errors are added. Without it, the first error is raised.

    Raises:
        ConfigurationError: An entry of ``tools``, ``graphs``, ``agents``, or ``mcp`` is invalid.
        ValidationError: An entry has an unknown key or an invalid value.
        RegistryError: A reference cannot be imported, or the capabilities do not fit together.
        MissingExtraError: ``mcp`` contains a server, but the extra is not installed.

    >>> from capgraph.configs.settings import Settings
    >>> async def names():
    ...     async with open_registry(Settings(tools=[{"import": "textwrap:dedent"}])) as registry:
    ...         return list(registry.capabilities)
    >>> asyncio.run(names())
    ['dedent']
    """
    adapted: list[type[BaseCapability]] = []
    async with AsyncExitStack() as stack:
        # Importing modules reads files, so it runs in a thread.
        adapted += await asyncio.to_thread(_adapt_sections, settings, problems)
        for index, server in enumerate(settings.mcp):
            try:
                capabilities = await _open_server(
                    stack, server, f"mcp[{index}]", settings.serve.base_url
                )
                adapted += capabilities
                if problems is not None:  # otherwise, it was logged as a warning
                    problems += _list_omitted_tools(capabilities, f"mcp[{index}]")
            except CapgraphError as exc:
                _report(_add_location(f"mcp[{index}]", exc), problems)
        yield await asyncio.to_thread(Registry.from_settings, settings, problems, adapted)


def _report(error: CapgraphError, problems: list[CapgraphError] | None) -> None:
    if problems is None:
        raise error
    problems.append(error)


def _add_location(location: str, error: CapgraphError) -> CapgraphError:
    """Prefix an error message with the location of the settings entry that caused the error.

    The new error keeps the original type, fix, and severity.
    """
    located = type(error)(f"{location}: {error.message}", fix=error.fix, severity=error.severity)
    located.__cause__ = error
    return located


# --- tools, graphs and agents --------------------------------------------------------------------


def _adapt_sections(
    settings: Settings, problems: list[CapgraphError] | None
) -> list[type[BaseCapability]]:
    capabilities = []
    for section in ("tools", "graphs", "agents"):
        for index, entry in enumerate(getattr(settings, section)):
            location = f"{section}[{index}]"
            try:
                capabilities.append(_adapt_entry(section, entry, location))
            except CapgraphError as exc:
                located = exc if exc.message.startswith(location) else _add_location(location, exc)
                _report(located, problems)
    return capabilities


def _find_adapter(section: str) -> Callable[..., type[BaseCapability]]:
    # Imported on demand: each adapter imports the library that it adapts.
    if section == "tools":
        from capgraph.adapters.tools import tool_capability

        return tool_capability
    from capgraph.adapters.graphs import agent_capability, graph_capability

    return graph_capability if section == "graphs" else agent_capability


def _adapt_entry(section: str, entry: Mapping[str, Any], location: str) -> type[BaseCapability]:
    check_names(location, entry, accepted_names(YAML_FORMS[section], yaml=True))
    needed = ("import", "input", "output") if section == "graphs" else ("import",)
    missing = next((key for key in needed if key not in entry), None)
    if missing is not None:
        raise ConfigurationError(
            f"{location}: the required key {missing!r} is missing.",
            fix=f"Write {missing}: 'module:attribute'.",
        )
    target = _import_reference(entry["import"], f"{location}.import")
    options = {
        key: _resolve_value(key, value, f"{location}.{key}")
        for key, value in entry.items()
        if key != "import"
    }
    return _find_adapter(section)(target, **options)


def _import_reference(name: Any, location: str) -> Any:
    try:
        return import_attribute(name, location)
    except CapgraphError:
        raise
    except Exception as exc:  # importing a module may raise any exception
        raise ConfigurationError(
            f"{location}: the module of {name!r} cannot be imported ({type(exc).__name__}: {exc}).",
            fix="Fix the error in the module.",
        ) from exc


def _resolve_value(key: str, value: Any, location: str) -> Any:
    """Convert a value from a YAML settings file to the object that it describes.

    Depending on the key, the object is an imported reference, middleware, a gate, or an
    approval policy. Other values are returned unchanged.
    """
    if key in _REFERENCE_KEYS:
        return _resolve_references(value, location)
    if key == "behaviors":
        return build_configured(value, location)
    if key == "gate":
        [gate] = build_configured([value], location, "gate")
        return gate
    if key == "requires_approval" and isinstance(value, Mapping):
        try:
            return ApprovalPolicy(**value)
        except (TypeError, ValueError) as exc:
            raise ConfigurationError(
                f"{location}: {exc}", fix=f"Use {', '.join(_POLICY_FIELDS)}."
            ) from exc
    return value


def _resolve_references(value: Any, location: str) -> Any:
    if isinstance(value, list):
        return [_resolve_references(item, location) for item in value]
    return _import_reference(value, location) if isinstance(value, str) and ":" in value else value


# --- MCP servers ---------------------------------------------------------------------------------


async def _open_server(
    stack: AsyncExitStack, server: McpSettings, location: str, base_url: str | None
) -> McpCapabilities:
    require_extra("mcp", "mcp")
    from mcp import StdioServerParameters

    from capgraph.adapters.mcp import mcp_capabilities

    written = server.model_dump(exclude_unset=True, exclude=_TRANSPORT_FIELDS)
    # Importing references reads files, so it runs in a thread.
    options = await asyncio.to_thread(_build_server_options, written, location)
    if server.headers:
        options["headers"] = {
            name: value.get_secret_value() for name, value in server.headers.items()
        }
    if server.credentials is not None:
        options["credentials"] = await asyncio.to_thread(
            _build_credentials, server.credentials, f"{location}.credentials"
        )
    if server.authorization is not None:
        options["credentials"] = await asyncio.to_thread(
            _build_authorization, server.authorization, base_url
        )
    target: Any = server.url
    if server.command is not None:
        program, *arguments = server.command
        target = StdioServerParameters(command=program, args=arguments, env=server.env)
    return await stack.enter_async_context(await mcp_capabilities(target, **options))


def _build_credentials(settings: CredentialsSettings | str, location: str) -> Any:
    if isinstance(settings, str):
        return _import_reference(settings, location)
    subject_token = signed_subject(
        settings.signing_key.get_secret_value(),
        issuer=settings.issuer,
        audience=settings.token_url,
        algorithm=settings.algorithm,
        key_id=settings.key_id,
    )
    secret = settings.client_secret
    return TokenExchange(
        settings.token_url,
        client_id=settings.client_id,
        client_secret=secret.get_secret_value() if secret is not None else None,
        subject_token=subject_token,
        audience=settings.audience,
        resource=settings.resource,
        scope=settings.scope,
    )


def _build_authorization(
    settings: AuthorizationSettings, base_url: str | None
) -> AuthorizationCode:
    values = settings.model_dump()
    for name in ("client_secret", "encryption_key"):
        secret = values[name]
        values[name] = secret.get_secret_value() if secret is not None else None
    return AuthorizationCode(**values, base_url=base_url)


def _list_omitted_tools(capabilities: McpCapabilities, location: str) -> list[CapgraphError]:
    return [
        CapabilityError(
            f"{location}: the tool {name!r} is omitted. {reason}",
            fix="List the tools to use under 'allow'.",
            facts={"omitted_tool": name},
        )
        for name, reason in capabilities.omitted_tools.items()
    ]


def _build_server_options(declared: dict[str, Any], location: str) -> dict[str, Any]:
    """Build the keyword arguments of ``mcp_capabilities`` from an MCP server's settings.

    Each setting is one value for all tools of the server, or a mapping of values by tool name.
    """
    approve = declared.pop("approve", None)
    options = {}
    for key, value in declared.items():
        by_tool = isinstance(value, Mapping) and not _is_single_value(key, value)
        options[key] = (
            {
                name: _resolve_value(key, tool_value, f"{location}.{key}.{name}")
                for name, tool_value in value.items()
            }
            if by_tool
            else _resolve_value(key, value, f"{location}.{key}")
        )
    if approve is not None:
        options["requires_approval"] = (
            approve if isinstance(approve, bool) else dict.fromkeys(approve, True)
        )
    return options


def _is_single_value(key: str, value: Mapping[str, Any]) -> bool:
    """Return True if a settings mapping is a single value for all tools.

    Return False if the mapping contains values by tool name.
    """
    return (key == "gate" and "use" in value) or (
        key == "requires_approval" and bool(value) and set(value) <= set(_POLICY_FIELDS)
    )
