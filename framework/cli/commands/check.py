"""``capgraph check``: what would fail, before anything runs, and how to mend it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict
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
from capgraph.cli.exit_codes import ExitCode
from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.configs.errors import CapgraphError, ConfigurationError

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings
    from capgraph.graph.diagnostics import Finding

app: typer.Typer = typer.Typer()
MODEL_SECONDS = 20.0
"""How long a model has to answer."""

_LEVEL_SIGNS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


@app.command("check")
@with_shared_options("config", "model", "db", "as_json")
def check(
    shared: SharedOptions,
    ask_models: Annotated[
        bool,
        typer.Option("--ask-models/--no-ask-models", help="Ask every model for one word."),
    ] = True,
    show_methods: Annotated[
        bool,
        typer.Option("--models", help="Show how the model of each role keeps a form, and why."),
    ] = False,
) -> None:
    """Say what would fail, and how to mend it.

    Looks at configuration, registry, extras, models and database without running anything. With --db
    it also says which waiting threads, plans and approvals this code could not go on with.
    """
    found = list(iter_findings(shared, ask_models=ask_models, show_methods=show_methods))
    if shared.as_json:
        typer.echo(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        _print(found)
    failed = any(finding.level == "error" for finding in found)
    raise typer.Exit(ExitCode.USAGE if failed else ExitCode.ANSWERED)


def iter_findings(
    shared: SharedOptions, *, ask_models: bool, show_methods: bool = False
) -> Iterator[Finding]:
    """Look at everything that the options name.

    Args:
        shared: The options.
        ask_models: Whether to ask the models; that costs a few tokens.
        show_methods: True to show how each model keeps a form; servers of which this is unknown are
            probed again.
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
    yield from check_registry(settings, offline=not configured, url=url)
    yield from check_extras(settings, offline=not configured)
    yield from asyncio.run(check_models(configured, ask_models=ask_models))
    if show_methods and configured:
        yield from asyncio.run(check_methods(configured, probe_unknown=ask_models))
    if not database_exists(shared.db):
        told = f"There is no database {shared.db!r}, so nothing waits in it; a first run makes it."
        yield Finding("database", "warning", told, "Check the path of --db.")
    elif url:
        found = asyncio.run(check_database(url, settings))
        yield found
        if shared.db and found.level == "ok":
            yield from asyncio.run(check_waiting_threads(url, settings))


def check_registry(settings: Settings, *, offline: bool, url: str) -> Iterator[Finding]:
    """Load modules and recipes; one that is broken does not hide the next.

    Args:
        settings: All settings.
        offline: Whether no model plans.
        url: Where threads are kept; empty when that is nowhere.
    """
    from capgraph.base import RegistryError
    from capgraph.graph.diagnostics import Finding, collect_findings

    problems: list[CapgraphError] = []
    try:
        registry = read_registry(settings, problems)
    except RegistryError as exc:
        yield Finding.from_error("registry", exc)
        return
    try:
        registry.freeze()  # its recipes have what they use
    except CapgraphError as exc:
        problems.append(exc)
    yield from (Finding.from_error("registry", exc) for exc in problems)
    yield from _check_adapters(settings, problems)
    saved = url not in ("", MEMORY_DATABASE)
    yield from collect_findings(registry, settings, offline=offline, has_saver=saved)


def _check_adapters(settings: Settings, problems: list[CapgraphError]) -> Iterator[Finding]:
    """Find the tools, graphs, agents and MCP servers of the settings that became capabilities."""
    from capgraph.graph.diagnostics import Finding

    named = {name: getattr(settings, name) for name in ("tools", "graphs", "agents")}
    entries = [
        (f"{section}[{place}]", f"{entry.get('import')} is a capability")
        for section, found in named.items()
        for place, entry in enumerate(found)
    ]
    entries += [
        (f"mcp[{place}]", f"{server.url or (server.command or [''])[0]} answered with its tools")
        for place, server in enumerate(settings.mcp)
    ]
    for where, text in entries:
        if not any(problem.message.startswith(where) for problem in problems):
            yield Finding(where, "ok", text)


def check_extras(settings: Settings, *, offline: bool) -> Iterator[Finding]:
    """Find the optional packages that a run loads late; loading tells of all others."""
    from capgraph.base.errors import MissingExtraError, require_extra
    from capgraph.cli.commands.serve import REQUIRED_MODULES
    from capgraph.graph.diagnostics import Finding

    wanted: dict[str, tuple[str, ...]] = {"offline": ("numpy",)} if offline else {}
    if any(f"{module}.".startswith("capgraph.capabilities.") for module in settings.modules):
        wanted["data"] = ("duckdb",)
    serve = settings.serve
    if "serve" in settings.model_fields_set:
        wanted |= {"serve": REQUIRED_MODULES, "mcp": ("mcp.server",), "a2a": ("a2a.server.routes",)}
        wanted |= {"oidc": ("authlib", "itsdangerous")} if serve.oidc is not None else {}
    # Without these the server leaves out what they serve, and says so.
    left_out = {"a2a"} if serve.mcp.tools else {"a2a", "mcp"}
    for extra, modules in wanted.items():
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
    """Open the database and read from it."""
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
    """Find what waits in the database and could not be taken over; only reads it."""
    from capgraph.adapters import open_registry
    from capgraph.evaluation import check_threads
    from capgraph.graph.diagnostics import Finding

    try:
        async with (
            open_registry(settings) as registry,
            open_database(url, settings) as (saver, store),
        ):
            found = await check_threads(saver, registry, settings=settings, store=store)
    except Exception as exc:
        return [Finding.from_error("threads", exc)]
    told = [
        Finding(
            "threads",
            "warning" if one.part == "rule" else "error",
            f"{one.thread_id or 'every thread'}, {one.part}: {one.text}",
            one.fix,
        )
        for one in found.incompatibilities
    ]
    return told or [
        Finding("threads", "ok", f"{found.threads} waiting or unfinished, can be taken over")
    ]


async def check_models(configured: Any, *, ask_models: bool) -> list[Finding]:
    """Make every configured model, and ask each one for a word.

    Args:
        configured: Whatever ``build_graph`` takes as ``model``; nothing to run without one.
        ask_models: Whether to ask.
    """
    from capgraph.graph.diagnostics import Finding

    if not configured:
        return [Finding("models", "ok", "none configured; the agent runs without one")]
    from capgraph.models import chat_models
    from capgraph.models.roles import model_name

    try:
        made = await asyncio.to_thread(chat_models, configured)
    except Exception as exc:
        return [Finding.from_error("models", exc)]
    roles: dict[int, list[str]] = {}
    for role, chat_model in made.items():
        roles.setdefault(id(chat_model), []).append(role)
    models = {id(chat_model): chat_model for chat_model in made.values()}
    asked = [
        _ask_model(
            models[number],
            f"{model_name(models[number])} for {', '.join(names)}",
            is_enabled=ask_models,
        )
        for number, names in roles.items()
    ]
    return await asyncio.gather(*asked)


async def check_methods(configured: Any, *, probe_unknown: bool) -> list[Finding]:
    """Show how the model of each role is made to keep a form.

    Args:
        configured: Whatever ``build_graph`` takes as ``model``.
        probe_unknown: True to probe servers of which this is unknown.
    """
    from capgraph.graph.diagnostics import Finding
    from capgraph.models.probing import describe_methods, probe_models

    try:
        if probe_unknown:
            await probe_models(configured, force=True)
        used = await asyncio.to_thread(describe_methods, configured)
    except CapgraphError:
        return []  # check_models has reported why the models cannot be made
    return [Finding("models", "ok", f"{one.role}: {one.method} ({one.reason})") for one in used]


async def _ask_model(model: Any, name: str, *, is_enabled: bool) -> Finding:
    from capgraph.configs.logger import mask_secrets
    from capgraph.graph.diagnostics import Finding

    if not is_enabled:
        return Finding("models", "ok", f"{name}: made, not asked")
    try:
        async with asyncio.timeout(MODEL_SECONDS):
            await model.ainvoke("Answer with the one word: ready")
    except TimeoutError:
        text = f"{name}: no answer within {MODEL_SECONDS:g} s"
        return Finding("models", "error", text, "Check base_url and the network.")
    except Exception as exc:
        text = f"{name}: {type(exc).__name__}: {mask_secrets(str(exc))}"
        return Finding("models", "error", text, "Check the model's name, its key and base_url.")
    return Finding("models", "ok", f"{name}: answered")


def _print(found: list[Finding]) -> None:
    from rich.text import Text

    from capgraph.cli.terminal import make_console, to_printable

    console = make_console()
    for finding in found:
        sign, style = _LEVEL_SIGNS[finding.level]
        words = finding.level if not console.is_terminal else sign
        line = Text.assemble((words, style), f" {finding.area}: {to_printable(finding.text)}")
        console.print(line, soft_wrap=True)
        if finding.fix:
            console.print(f"  Fix: {to_printable(finding.fix)}", soft_wrap=True)
    levels = [finding.level for finding in found]
    console.print(f"{levels.count('error')} error(s), {levels.count('warning')} warning(s)")
