"""``capgraph serve``: run the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capgraph.cli.agent import database_url
from capgraph.cli.exit_codes import ExitCode
from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import is_interactive, one_line, print_text
from capgraph.configs.errors import ConfigurationError

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings

app: typer.Typer = typer.Typer()
HostOption = Annotated[
    str,
    typer.Option("--host", help="Address to listen on; other than loopback requires --auth."),
]
AuthOption = Annotated[
    Path | None,
    typer.Option("--auth", help="Token file ('capgraph token'); without it, log in by link."),
]
REQUIRED_MODULES = ("starlette", "uvicorn", "prometheus_client", "ag_ui")
"""Modules of the extra ``serve``."""
_SERVED = {
    "console": "/",
    "JSON API": "/api",
    "AG-UI": "/agui",
    "MCP": "/mcp",
    "A2A": "/a2a",
    "OpenAI": "/v1",
}


@app.command("serve")
@with_shared_options("config", "model", "db", "engine", "temporal")
def serve(
    shared: SharedOptions,
    host: HostOption = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65_535, help="Port; 0 for a free one (default: 8123 if free)."
        ),
    ] = None,
    auth: AuthOption = None,
    thread: Annotated[
        str | None,
        typer.Option("--thread", "-t", help="Thread that the one-time link opens."),
    ] = None,
    worker_count: Annotated[
        int,
        typer.Option("--workers", min=0, help="Number of worker processes that run the turns."),
    ] = 0,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Do not open the console in a browser.")
    ] = False,
) -> None:
    """Run the server for the console, JSON API, AG-UI, MCP, A2A.

    On SIGTERM, running turns are handed over to other processes.
    """
    from capgraph.base.errors import require_extra
    from capgraph.configs.logger import configure_logging

    for module in REQUIRED_MODULES:
        require_extra(module, "serve")
    level = logging.getLogger("capgraph").getEffectiveLevel()
    # People read a terminal; log collectors read JSON lines.
    configure_logging(min(level, logging.INFO), json_lines=not is_interactive())
    settings = server_settings(shared, host, auth)
    if is_interactive():
        typer.echo(f"Starting {one_line(settings.name)} …", err=True)
    has_started = asyncio.run(
        _serve(shared, settings, worker_count, thread, not no_open, host, port, auth=auth)
    )
    raise typer.Exit(ExitCode.ANSWERED if has_started else ExitCode.FAILED)


def server_settings(shared: SharedOptions, host: str, auth: Path | None) -> Settings:
    """Return the server settings, with stricter defaults if the server has several users.

    Args:
        shared: Shared options.
        host: Address to listen on.
        auth: Token file, or ``None``.

    Raises:
        ConfigurationError: The address requires authentication, or the token file does not
            exist.
    """
    from capgraph.serve.security import is_loopback

    settings = shared.settings()
    if auth is not None or settings.serve.authenticates_users:
        settings = shared.settings(is_shared=True)
    elif not is_loopback(host):
        raise ConfigurationError(
            f"Listening on {host!r} requires authentication.",
            fix="Pass --auth FILE; create it with 'capgraph token NAME --auth FILE'.",
        )
    if auth is not None and not auth.is_file():
        raise ConfigurationError(
            f"The token file {str(auth)!r} does not exist.",
            fix=f"Create it: capgraph token NAME --auth {auth}",
        )
    return settings


async def _serve(
    shared: SharedOptions,
    settings: Any,
    worker_count: int,
    thread: str | None,
    open_browser: bool,
    host: str,
    port: int | None,
    **options: Any,
) -> bool:
    from capgraph.cli.workers import worker_processes
    from capgraph.scale import connect
    from capgraph.serve.app import create_app
    from capgraph.serve.links import thread_query
    from capgraph.serve.server import Server, open_listening_socket, socket_url

    with open_listening_socket(host, port) as listening:
        async with contextlib.AsyncExitStack() as stack:
            agent = await stack.enter_async_context(shared.open_agent(settings))
            if worker_count or shared.engine:
                url, saver = database_url(shared.db, settings), agent.graph.checkpointer
                engine_options = {"engine": shared.engine, "temporal": shared.temporal}
                engine = await connect(url, saver, settings.scale, **engine_options)
                options["engine"] = engine
                stack.push_async_callback(engine.close)
                arguments = shared.to_arguments("config", "model", "db", "engine", "temporal")
                await stack.enter_async_context(worker_processes(worker_count, arguments))
            application = create_app(agent.graph, settings=agent.settings, host=host, **options)
            address, link = socket_url(listening), application.state.link
            if thread is not None and link is None:
                raise ConfigurationError(
                    "--thread requires the one-time link, which --auth disables.",
                    fix=f"Log in and open {address}{thread_query(thread)}",
                )

            def ready() -> None:
                login = f"{address}login?link={link}" if link else ""
                login += f"&{thread_query(thread)[1:]}" if thread is not None else ""
                if is_interactive():
                    paths = [getattr(route, "path", "") for route in application.routes]
                    print_text(_format_banner(address, login, paths))
                    if link and open_browser:
                        typer.launch(login)
                else:
                    # The parent process reads this line to know that the server is ready.
                    print(f"serving {address} {login}".rstrip(), flush=True)  # noqa: T201

            return await Server(application, listening, ready).listen()


def _format_banner(address: str, login: str, paths: Iterable[str]) -> str:
    """Return the startup message with the login link and the address of each service."""
    rows = [f"serving {address}", *([f"  log in    {login}"] if login else [])]
    rows += [
        f"  {name:<10}{address}{prefix[1:]}"
        for name, prefix in _SERVED.items()
        if any(path.startswith(prefix) for path in paths)
    ]
    return "\n".join([*rows, "Press Ctrl-C to stop."])
