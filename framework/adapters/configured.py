"""Tools, graphs, agents and MCP servers that settings name, as capabilities of a registry.

Settings give the same declarations as code: each key of an entry is a keyword of its adapter.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from capgraph.adapters.declare import declare
from capgraph.base.approval_policy import ApprovalPolicy
from capgraph.base.capability import BaseCapability
from capgraph.base.errors import require_extra
from capgraph.base.spec import DECLARED
from capgraph.configs.errors import CapgraphError, ConfigurationError
from capgraph.configs.near import nearest
from capgraph.engine.named import imported, named
from capgraph.registry import Registry

if TYPE_CHECKING:
    from capgraph.configs.settings import McpSettings, Settings

_REFERENCES = frozenset(
    {"classify_error", "input", "output", "parameters_from", "provides", "requires", "undo"}
)
"""Keys whose values may be ``"module:attribute"`` references."""


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
        adapted += await asyncio.to_thread(_declared, settings, problems)
        for place, server in enumerate(settings.mcp):
            try:
                adapted += await _open_server(stack, server)
            except CapgraphError as exc:
                _report(_located(f"mcp[{place}]", exc), problems)
        yield await asyncio.to_thread(Registry.from_settings, settings, problems, adapted)


def _report(error: CapgraphError, problems: list[CapgraphError] | None) -> None:
    if problems is None:
        raise error
    problems.append(error)


def _located(where: str, exc: CapgraphError) -> CapgraphError:
    """Return the error with the entry that caused it; its type and fix remain."""
    located = type(exc)(f"{where}: {exc.message}", fix=exc.fix, severity=exc.severity)
    located.__cause__ = exc
    return located


# --- tools, graphs and agents --------------------------------------------------------------------


def _declared(
    settings: Settings, problems: list[CapgraphError] | None
) -> list[type[BaseCapability]]:
    made = []
    for section in ("tools", "graphs", "agents"):
        for place, entry in enumerate(getattr(settings, section)):
            where = f"{section}[{place}]"
            try:
                made.append(_adapted(_adapter_of(section), entry, where))
            except CapgraphError as exc:
                told = exc if exc.message.startswith(where) else _located(where, exc)
                _report(told, problems)
    return made


def _adapter_of(section: str) -> Callable[..., type[BaseCapability]]:
    # Each adapter imports the library that it adapts; an agent without tools needs none of it.
    if section == "tools":
        from capgraph.adapters.tools import tool_capability

        return tool_capability
    from capgraph.adapters.graphs import agent_capability, graph_capability

    return graph_capability if section == "graphs" else agent_capability


def _adapted(
    adapter: Callable[..., type[BaseCapability]], entry: Mapping[str, Any], where: str
) -> type[BaseCapability]:
    keys = _keys_of(adapter)
    for key in entry:
        if key not in keys:
            near = nearest(key, keys)
            raise ConfigurationError(
                f"{where}: unknown key {key!r}.",
                fix=f"Write {near!r}." if near else f"Use one of: {', '.join(sorted(keys))}.",
            )
    needed = [key for key in keys if key in ("import", "input", "output") and key not in entry]
    if needed:
        raise ConfigurationError(
            f"{where}: the key {needed[0]!r} is missing.",
            fix=f"Write {needed[0]}: 'module:attribute'.",
        )
    target = _imported(entry["import"], f"{where}.import")
    given = {
        key: _value(key, value, f"{where}.{key}") for key, value in entry.items() if key != "import"
    }
    return adapter(target, **given)


def _imported(name: Any, where: str) -> Any:
    try:
        return imported(name, where)
    except CapgraphError:
        raise
    except Exception as exc:  # a module may fail in any way; its error is the report
        raise ConfigurationError(
            f"{where}: {name!r} cannot be imported ({type(exc).__name__}: {exc}).",
            fix="Correct the module.",
        ) from exc


def _keys_of(adapter: Callable[..., Any]) -> list[str]:
    """Return the keys that an entry may have: ``import``, and the keywords of its adapter."""
    own = list(inspect.signature(adapter).parameters.values())[1:]
    common = list(inspect.signature(declare).parameters.values())[4:]
    names = [one.name for one in (*own, *common) if one.kind is not one.VAR_KEYWORD]
    # Services are objects of a program: they have no form in YAML.
    declared = ["requires", "examples", *DECLARED]
    return [
        "import",
        *(name for name in dict.fromkeys([*names, *declared]) if name != "services"),
    ]


def _value(key: str, value: Any, where: str) -> Any:
    """Return what a value in YAML stands for: a reference, middleware, a gate, a policy, itself."""
    if key in _REFERENCES:
        return _resolved(value, where)
    if key == "behaviors":
        return named(value, where)
    if key == "gate":
        [gate] = named([value], where, "gate")
        return gate
    if key == "requires_approval" and isinstance(value, Mapping):
        try:
            return ApprovalPolicy(**value)
        except (TypeError, ValueError) as exc:
            known = ", ".join(inspect.signature(ApprovalPolicy).parameters)
            raise ConfigurationError(f"{where}: {exc}", fix=f"Use {known}.") from exc
    return value


def _resolved(value: Any, where: str) -> Any:
    if isinstance(value, list):
        return [_resolved(item, where) for item in value]
    return _imported(value, where) if isinstance(value, str) and ":" in value else value


# --- MCP servers ---------------------------------------------------------------------------------


async def _open_server(
    stack: AsyncExitStack, server: McpSettings
) -> Sequence[type[BaseCapability]]:
    require_extra("mcp", "mcp")
    from mcp import StdioServerParameters

    from capgraph.adapters.mcp import mcp_capabilities

    options = server.model_dump(
        exclude_unset=True, exclude={"command", "url", "env", "headers", "approve"}
    )
    approve = server.approve
    options["requires_approval"] = (
        approve if isinstance(approve, bool) else dict.fromkeys(approve, True)
    )
    if server.headers:
        options["headers"] = {
            name: value.get_secret_value() for name, value in server.headers.items()
        }
    target: Any = server.url
    if server.command is not None:
        program, *arguments = server.command
        target = StdioServerParameters(command=program, args=arguments, env=server.env)
    return await stack.enter_async_context(await mcp_capabilities(target, **options))
