"""``capgraph serve``: run the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from capgraph.cli.agent import database_url
from capgraph.cli.exit_codes import ExitCode
from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import is_interactive, one_line, print_text
from capgraph.configs.errors import CapgraphError, ConfigurationError
from capgraph.configs.logger import get_logger

if TYPE_CHECKING:
    import socket

    from capgraph.configs.settings import Settings
    from capgraph.serve.server import Server

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

    On SIGTERM, running turns are handed over to other processes. On SIGHUP, the server reads its
    settings again and continues the turns; in a terminal, SIGHUP ends it.
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
    options = _ServeOptions(shared, host, auth, worker_count, thread)
    has_started = asyncio.run(_serve(options, settings, port, open_browser=not no_open))
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
    from capgraph.serve.server import is_loopback

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


class _ServeOptions(NamedTuple):
    """Options of the command, which stay the same if the settings are read again."""

    shared: SharedOptions
    host: str
    auth: Path | None
    worker_count: int
    thread: str | None


async def _serve(
    options: _ServeOptions, settings: Settings, port: int | None, *, open_browser: bool
) -> bool:
    from capgraph.serve.server import open_listening_socket

    hangup = asyncio.Event()
    if not is_interactive():  # a terminal that closes sends SIGHUP, too
        with contextlib.suppress(AttributeError, NotImplementedError):  # Windows has no SIGHUP
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hangup.set)
    with open_listening_socket(options.host, port) as listening:
        while True:
            # Requests that arrive during a reload wait in the backlog of the listening socket.
            server = await _serve_settings(
                options, settings, listening, hangup, open_browser=open_browser
            )
            if not server.should_reload:
                return server.started
            settings = server_settings(options.shared, options.host, options.auth)
            open_browser = False


async def _serve_settings(
    options: _ServeOptions,
    settings: Settings,
    listening: socket.socket,
    hangup: asyncio.Event,
    *,
    open_browser: bool,
) -> Server:
    """Serve an agent with the given settings until the server ends or must reload."""
    from capgraph.cli.workers import worker_processes
    from capgraph.scale import connect
    from capgraph.serve.app import create_app
    from capgraph.serve.links import thread_query
    from capgraph.serve.server import Server, socket_url

    shared, thread = options.shared, options.thread
    app_options: dict[str, Any] = {"auth": options.auth, "host": options.host}
    async with contextlib.AsyncExitStack() as stack:
        agent = await stack.enter_async_context(shared.open_agent(settings))
        if options.worker_count or shared.engine:
            url, saver = database_url(shared.db, settings), agent.graph.checkpointer
            engine_options = {"engine": shared.engine, "temporal": shared.temporal}
            engine = await connect(url, saver, settings.scale, **engine_options)
            app_options["engine"] = engine
            stack.push_async_callback(engine.close)
            arguments = shared.to_arguments("config", "model", "db", "engine", "temporal")
            await stack.enter_async_context(worker_processes(options.worker_count, arguments))
        application = create_app(agent.graph, settings=agent.settings, **app_options)
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

        server = Server(application, listening.dup(), ready)
        graph: Any = agent.graph
        has_database = graph.persistence.tables is not None
        watcher = asyncio.create_task(
            _reload_on_hangup(server, hangup, options, has_database=has_database)
        )
        try:
            await server.listen()
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])
        return server


async def _reload_on_hangup(
    server: Server, hangup: asyncio.Event, options: _ServeOptions, *, has_database: bool
) -> None:
    """Reload the server after SIGHUP, unless the new settings are invalid."""
    from capgraph.serve.app import create_app

    host, auth = options.host, options.auth
    while True:
        await hangup.wait()
        hangup.clear()
        try:
            if not has_database:
                raise ConfigurationError(
                    "The threads are in memory: a reload would delete them.",
                    fix="Start the server with --db FILE.",
                )
            settings = await asyncio.to_thread(server_settings, options.shared, host, auth)
            async with options.shared.open_agent(settings) as agent:
                await asyncio.to_thread(
                    create_app, agent.graph, settings=agent.settings, host=host, auth=auth
                )
        except CapgraphError as exc:
            get_logger("cli", "serve").error("The server continues with its old settings: %s", exc)
        else:
            server.reload()
            return


def _format_banner(address: str, login: str, paths: Iterable[str]) -> str:
    """Return the startup message with the login link and the address of each service."""
    # The link has a line of its own, because it is almost as wide as a terminal.
    rows = [f"serving {address}", *(["Log in once with this link:", login] if login else [])]
    rows += [
        f"  {name:<10}{address}{prefix[1:]}"
        for name, prefix in _SERVED.items()
        if any(path.startswith(prefix) for path in paths)
    ]
    return "\n".join([*rows, "Press Ctrl-C to stop."])
