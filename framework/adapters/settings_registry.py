"""Tools, graphs, agents and MCP servers that settings name, as capabilities of a registry.

Settings give the same declarations as code: each key of an entry is a keyword of its adapter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from capgraph.base.approval_policy import ApprovalPolicy
from capgraph.base.capability import BaseCapability
from capgraph.base.declarations import YAML_FORMS, accepted_names, check_names
from capgraph.base.errors import require_extra
from capgraph.configs.errors import CapgraphError, ConfigurationError
from capgraph.engine.configured_objects import build_configured, import_attribute
from capgraph.registry import Registry

if TYPE_CHECKING:
    from capgraph.configs.settings import McpSettings, Settings

_REFERENCE_KEYS = frozenset(
    {"classify_error", "input", "output", "parameters_from", "provides", "requires", "undo"}
)
"""Keys whose values may be ``"module:attribute"`` references."""
_POLICY_FIELDS = tuple(field.name for field in fields(ApprovalPolicy))


@asynccontextmanager
async def open_registry(
    settings: Settings, problems: list[CapgraphError] | None = None
) -> AsyncIterator[Registry]:
    """Open the registry that settings describe, with its tools, graphs, agents and MCP servers.

    Connections to MCP servers are closed at the end of the block.

    Args:
        settings: All settings.
        problems: Receives each problem; the first one is raised without it.

    Raises:
        ConfigurationError: An entry of ``tools``, ``graphs``, ``agents`` or ``mcp`` cannot be used.
        ValidationError: A key of an entry is unknown, or its value does not fit.
        RegistryError: Something named cannot be imported, or does not fit together.
        MissingExtraError: ``mcp`` names a server, and the extra is not installed.

    >>> from capgraph.configs.settings import Settings
    >>> async def names():
    ...     async with open_registry(Settings(tools=[{"import": "textwrap:dedent"}])) as registry:
    ...         return list(registry.capabilities)
    >>> asyncio.run(names())
    ['dedent']
    """
    adapted: list[type[BaseCapability]] = []
    async with AsyncExitStack() as stack:
        # Modules are imported here, which reads files.
        adapted += await asyncio.to_thread(_adapt_sections, settings, problems)
        for place, server in enumerate(settings.mcp):
            try:
                adapted += await _open_server(stack, server, f"mcp[{place}]")
            except CapgraphError as exc:
                _report(_with_location(f"mcp[{place}]", exc), problems)
        yield await asyncio.to_thread(Registry.from_settings, settings, problems, adapted)


def _report(error: CapgraphError, problems: list[CapgraphError] | None) -> None:
    if problems is None:
        raise error
    problems.append(error)


def _with_location(location: str, error: CapgraphError) -> CapgraphError:
    """Return the error with the entry that caused it; its type and fix remain."""
    located = type(error)(f"{location}: {error.message}", fix=error.fix, severity=error.severity)
    located.__cause__ = error
    return located


# --- tools, graphs and agents --------------------------------------------------------------------


def _adapt_sections(
    settings: Settings, problems: list[CapgraphError] | None
) -> list[type[BaseCapability]]:
    made = []
    for section in ("tools", "graphs", "agents"):
        for place, entry in enumerate(getattr(settings, section)):
            where = f"{section}[{place}]"
            try:
                made.append(_adapt_entry(section, entry, where))
            except CapgraphError as exc:
                told = exc if exc.message.startswith(where) else _with_location(where, exc)
                _report(told, problems)
    return made


def _adapter_for(section: str) -> Callable[..., type[BaseCapability]]:
    # Each adapter imports the library that it adapts; an agent without tools needs none of it.
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
            f"{location}: the key {missing!r} is missing.",
            fix=f"Write {missing}: 'module:attribute'.",
        )
    target = _import_reference(entry["import"], f"{location}.import")
    given = {
        key: _resolve_value(key, value, f"{location}.{key}")
        for key, value in entry.items()
        if key != "import"
    }
    return _adapter_for(section)(target, **given)


def _import_reference(name: Any, location: str) -> Any:
    try:
        return import_attribute(name, location)
    except CapgraphError:
        raise
    except Exception as exc:  # a module may fail in any way; its error is the report
        raise ConfigurationError(
            f"{location}: {name!r} cannot be imported ({type(exc).__name__}: {exc}).",
            fix="Correct the module.",
        ) from exc


def _resolve_value(key: str, value: Any, location: str) -> Any:
    """Return what a value in YAML stands for: a reference, middleware, a gate, a policy, itself."""
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
    stack: AsyncExitStack, server: McpSettings, location: str
) -> Sequence[type[BaseCapability]]:
    require_extra("mcp", "mcp")
    from mcp import StdioServerParameters

    from capgraph.adapters.mcp import mcp_capabilities

    written = server.model_dump(exclude_unset=True, exclude={"command", "url", "env", "headers"})
    # References are imported here, which reads files.
    options = await asyncio.to_thread(_server_options, written, location)
    if server.headers:
        options["headers"] = {
            name: value.get_secret_value() for name, value in server.headers.items()
        }
    target: Any = server.url
    if server.command is not None:
        program, *arguments = server.command
        target = StdioServerParameters(command=program, args=arguments, env=server.env)
    return await stack.enter_async_context(await mcp_capabilities(target, **options))


def _server_options(declared: dict[str, Any], location: str) -> dict[str, Any]:
    """Return the keywords of ``mcp_capabilities``: values for all tools, or tool name to value."""
    approve = declared.pop("approve", None)
    options = {}
    for key, value in declared.items():
        by_tool = isinstance(value, Mapping) and not _is_single_value(key, value)
        options[key] = (
            {
                name: _resolve_value(key, one, f"{location}.{key}.{name}")
                for name, one in value.items()
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
    """Tell whether a mapping describes one value for all tools, not a value for each tool."""
    return (key == "gate" and "use" in value) or (
        key == "requires_approval" and bool(value) and set(value) <= set(_POLICY_FIELDS)
    )
