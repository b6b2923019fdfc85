"""``capgraph check``: find configuration problems before anything runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capgraph.cli.agent import (
    MEMORY_DATABASE,
    config_files,
    database_exists,
    database_url,
    open_database,
    read_registry,
)
from capgraph.cli.commands.serve import (
    REQUIRED_MODULES,
    AuthOption,
    HostOption,
    server_settings,
)
from capgraph.cli.exit_codes import ExitCode
from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.configs.errors import CapgraphError, ConfigurationError

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings
    from capgraph.graph.diagnostics import Finding
    from capgraph.registry import Registry

app: typer.Typer = typer.Typer()
MODEL_SECONDS = 20.0
"""Timeout for the test request to a model."""

_LEVEL_SIGNS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


@app.command("check")
@with_shared_options("config", "model", "db", "as_json")
def check(
    shared: SharedOptions,
    ask_models: Annotated[
        bool,
        typer.Option("--ask-models/--no-ask-models", help="Send a test request to every model."),
    ] = True,
    show_methods: Annotated[
        bool,
        typer.Option(
            "--models", help="Show how the model of each role produces structured output, and why."
        ),
    ] = False,
    host: HostOption = "127.0.0.1",
    auth: AuthOption = None,
) -> None:
    """Check the configuration, packages, models, and database.

    No turn is run. With --db, also report waiting threads, plans, and approvals that the
    current code cannot resume. With --host or --auth, also check the server with these options.
    """
    results = list(
        iter_findings(
            shared, ask_models=ask_models, show_methods=show_methods, host=host, auth=auth
        )
    )
    if shared.as_json:
        typer.echo(json.dumps([asdict(finding) for finding in results], indent=2))
    else:
        _print(results)
    failed = any(finding.level == "error" for finding in results)
    raise typer.Exit(ExitCode.USAGE if failed else ExitCode.ANSWERED)


def iter_findings(
    shared: SharedOptions,
    *,
    ask_models: bool,
    show_methods: bool = False,
    host: str = "127.0.0.1",
    auth: Path | None = None,
) -> Iterator[Finding]:
    """Run the configuration checks selected by the command-line options.

    Args:
        shared: Shared options.
        ask_models: True to send a test request to each model, which costs a few tokens.
        show_methods: True to show how each model produces structured output. Servers for which
            this is unknown are probed again.
        host: Address of the server to check.
        auth: Token file of the server to check.
    """
    from capgraph.engine.strategies import resolve_models
    from capgraph.graph.diagnostics import Finding

    try:
        settings = shared.settings()
    except CapgraphError as exc:
        yield Finding.from_error("configuration", exc)
        return
    files = ", ".join(map(str, config_files(shared.config))) or "what CAPGRAPH_CONFIG names"
    yield Finding("configuration", "ok", f"read from {files}")
    url = ""
    try:
        url = database_url(shared.db, settings)
    except ConfigurationError as exc:
        yield Finding.from_error("database", exc)
    configured = resolve_models(shared.model, settings)
    registry = yield from check_registry(settings, offline=not configured, url=url)
    is_served = "serve" in settings.model_fields_set or auth is not None or host != "127.0.0.1"
    if registry is not None and is_served:
        try:
            served = server_settings(shared, host, auth)
        except CapgraphError as exc:
            yield Finding.from_error("serve", exc)
        else:
            yield from check_server(served, registry, host=host, auth=auth)
    yield from check_extras(settings, offline=not configured)
    yield from asyncio.run(check_models(configured, ask_models=ask_models))
    if show_methods and configured:
        yield from asyncio.run(check_methods(configured, probe_unknown=ask_models))
    if not database_exists(shared.db):
        text = f"{shared.db!r} does not exist; the first run creates it"
        yield Finding("database", "warning", text, "Check the path of --db.")
    elif url:
        database_finding = asyncio.run(check_database(url, settings))
        yield database_finding
        if shared.db and database_finding.level == "ok":
            yield from asyncio.run(check_waiting_threads(url, settings))


def check_registry(
    settings: Settings, *, offline: bool, url: str
) -> Generator[Finding, None, Registry | None]:
    """Load modules and recipes into a registry, and yield a finding for each problem.

    The generator returns the registry if it is complete.

    Args:
        settings: The settings.
        offline: True if the agent plans without a model.
        url: Database URL; empty if it is invalid.
    """
    from capgraph.base import RegistryError
    from capgraph.graph.diagnostics import Finding, collect_findings

    problems: list[CapgraphError] = []
    try:
        registry = read_registry(settings, problems)
    except RegistryError as exc:
        yield Finding.from_error("registry", exc)
        return None
    try:
        registry.freeze()  # checks that the recipes are complete
    except CapgraphError as exc:
        problems.append(exc)
    for problem in problems:
        finding = Finding.from_error("registry", problem)
        # The other tools of the server can be used.
        yield replace(finding, level="warning") if "omitted_tool" in problem.facts else finding
    yield from _check_adapters(settings, problems)
    saved = url not in ("", MEMORY_DATABASE)
    yield from collect_findings(registry, settings, offline=offline, has_saver=saved)
    return None if problems else registry


def check_server(
    settings: Settings, registry: Registry, *, host: str = "127.0.0.1", auth: Path | None = None
) -> Iterator[Finding]:
    """Create the server without starting it, and yield a finding if the settings are rejected."""
    from langgraph.checkpoint.memory import InMemorySaver

    from capgraph.graph import build_graph
    from capgraph.graph.diagnostics import Finding

    try:
        from capgraph.serve.app import create_app

        offline = settings.model_copy(update={"model": None, "models": {}})
        graph = build_graph(registry, checkpointer=InMemorySaver(), settings=offline)
        create_app(graph, auth=auth, host=host)
    except ImportError:
        return  # the check of the extras names the missing one
    except CapgraphError as exc:
        yield Finding.from_error("serve", exc)
    else:
        yield Finding("serve", "ok", "the server accepts the settings")


def _check_adapters(settings: Settings, problems: list[CapgraphError]) -> Iterator[Finding]:
    """Report the configured tools, graphs, agents, and MCP servers loaded as capabilities."""
    from capgraph.graph.diagnostics import Finding

    sections = {name: getattr(settings, name) for name in ("tools", "graphs", "agents")}
    entries = [
        (f"{section}[{place}]", f"{entry.get('import')} is a capability")
        for section, declarations in sections.items()
        for place, entry in enumerate(declarations)
    ]
    entries += [
        (f"mcp[{place}]", f"{server.url or (server.command or [''])[0]} answered with its tools")
        for place, server in enumerate(settings.mcp)
    ]
    for where, text in entries:
        if not any(problem.message.startswith(where) for problem in problems):
            yield Finding(where, "ok", text)


def check_extras(settings: Settings, *, offline: bool) -> Iterator[Finding]:
    """Check that optional packages imported only on first use are installed.

    Optional packages that are imported earlier are already checked when the registry is loaded.
    """
    from capgraph.base.errors import MissingExtraError, require_extra
    from capgraph.graph.diagnostics import Finding

    extras: dict[str, tuple[str, ...]] = {"offline": ("numpy",)} if offline else {}
    if any(f"{module}.".startswith("capgraph.capabilities.") for module in settings.modules):
        extras["data"] = ("duckdb",)
    serve = settings.serve
    if "serve" in settings.model_fields_set:
        extras |= {"serve": REQUIRED_MODULES, "mcp": ("mcp.server",), "a2a": ("a2a.server.routes",)}
        extras |= {"oidc": ("authlib", "itsdangerous")} if serve.oidc is not None else {}
    # Without these extras, the server omits their routes and logs a warning.
    left_out = {"a2a"} if serve.mcp.tools else {"a2a", "mcp"}
    for extra, modules in extras.items():
        try:
            for module in modules:
                require_extra(module, extra)
        except MissingExtraError as exc:
            if extra in left_out:
                yield Finding(
                    "extras", "warning", f"/{extra} is not served. {exc.message}", exc.fix or ""
                )
            else:
                yield Finding.from_error("extras", exc)
        else:
            yield Finding("extras", "ok", f"{extra}: installed")


async def check_database(url: str, settings: Settings) -> Finding:
    """Check that the configured database can be opened and read."""
    from capgraph.configs.logger import mask_secrets
    from capgraph.graph.diagnostics import Finding

    if url == MEMORY_DATABASE:
        return Finding("database", "ok", "in memory; threads end with the process")
    try:
        async with open_database(url, settings) as (saver, store):
            await saver.aget_tuple({"configurable": {"thread_id": "capgraph-check"}})
            await store.aget(("capgraph",), "check")
    except Exception as exc:
        return Finding.from_error("database", exc)
    return Finding("database", "ok", f"{mask_secrets(url)} can be read and written")


async def check_waiting_threads(url: str, settings: Settings) -> list[Finding]:
    """Report waiting threads that the current code cannot resume. The database is not modified."""
    from capgraph.adapters import open_registry
    from capgraph.evaluation import check_threads
    from capgraph.graph.diagnostics import Finding

    try:
        async with (
            open_registry(settings) as registry,
            open_database(url, settings) as (saver, store),
        ):
            report = await check_threads(saver, registry, settings=settings, store=store)
    except Exception as exc:
        return [Finding.from_error("threads", exc)]
    obstacles = [
        Finding(
            "threads",
            "warning" if obstacle.part == "rule" else "error",
            f"{obstacle.thread_id or 'every thread'}, {obstacle.part}: {obstacle.text}",
            obstacle.fix,
        )
        for obstacle in report.incompatibilities
    ]
    return obstacles or [
        Finding("threads", "ok", f"{report.threads} waiting or unfinished, can be resumed")
    ]


async def check_models(configured: Any, *, ask_models: bool) -> list[Finding]:
    """Create every configured model and optionally send a test request to each of them.

    Args:
        configured: Models in any form that ``build_graph`` accepts; empty for none.
        ask_models: True to send the requests.
    """
    from capgraph.graph.diagnostics import Finding

    if not configured:
        return [Finding("models", "ok", "none configured; the agent runs without one")]
    from capgraph.models import chat_models
    from capgraph.models.roles import model_name

    try:
        models_by_role = await asyncio.to_thread(chat_models, configured)
    except Exception as exc:
        return [Finding.from_error("models", exc)]
    roles: dict[int, list[str]] = {}
    for role, chat_model in models_by_role.items():
        roles.setdefault(id(chat_model), []).append(role)
    models = {id(chat_model): chat_model for chat_model in models_by_role.values()}
    requests = [
        _ask_model(
            models[number],
            f"{model_name(models[number])} for {', '.join(names)}",
            is_enabled=ask_models,
        )
        for number, names in roles.items()
    ]
    return await asyncio.gather(*requests)


async def check_methods(configured: Any, *, probe_unknown: bool) -> list[Finding]:
    """Report the structured output method of the model that each role uses.

    Args:
        configured: Models in any form that ``build_graph`` accepts.
        probe_unknown: True to probe model servers whose method is unknown.
    """
    from capgraph.graph.diagnostics import Finding
    from capgraph.models.probing import describe_methods, probe_models

    try:
        if probe_unknown:
            await probe_models(configured, force=True)
        methods = await asyncio.to_thread(describe_methods, configured)
    except CapgraphError:
        return []  # check_models has already reported the error
    return [
        Finding("models", "ok", f"{method.role}: {method.method} ({method.reason})")
        for method in methods
    ]


async def _ask_model(model: Any, name: str, *, is_enabled: bool) -> Finding:
    from capgraph.configs.logger import mask_secrets
    from capgraph.graph.diagnostics import Finding

    if not is_enabled:
        return Finding("models", "ok", f"{name}: created, not tested")
    try:
        async with asyncio.timeout(MODEL_SECONDS):
            await model.ainvoke("Answer with the one word: ready")
    except TimeoutError:
        text = f"{name}: no response within {MODEL_SECONDS:g} s"
        return Finding("models", "error", text, "Check base_url and the network.")
    except Exception as exc:
        text = f"{name}: {type(exc).__name__}: {mask_secrets(str(exc))}"
        return Finding("models", "error", text, "Check the model name, the API key, and base_url.")
    return Finding("models", "ok", f"{name}: answered")


def _print(findings: list[Finding]) -> None:
    from rich.text import Text

    from capgraph.cli.terminal import make_console, print_wrapped, to_printable

    console = make_console()
    for finding in findings:
        sign, style = _LEVEL_SIGNS[finding.level]
        label = finding.level if not console.is_terminal else sign
        line = Text.assemble((label, style), f" {finding.area}: {to_printable(finding.text)}")
        print_wrapped(console, line)
        if finding.fix:
            print_wrapped(console, f"  Fix: {to_printable(finding.fix)}")
    levels = [finding.level for finding in findings]
    console.print(f"{levels.count('error')} error(s), {levels.count('warning')} warning(s)")
