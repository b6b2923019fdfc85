"""``capgraph serve``: one server for people and for other agents."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from capgraph.cli.agent import database_url
from capgraph.cli.exit_codes import ExitCode
from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import is_interactive
from capgraph.configs.errors import ConfigurationError

app: typer.Typer = typer.Typer()
REQUIRED_MODULES = ("starlette", "uvicorn", "prometheus_client", "ag_ui")
"""Modules of the extra ``serve``."""


@app.command("serve")
@with_shared_options("config", "model", "db", "engine", "temporal")
def serve(
    shared: SharedOptions,
    host: Annotated[
        str,
        typer.Option("--host", help="Address to listen on; another than loopback needs --auth."),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65_535, help="Port; 0 any that is free; else 8123 if that is free."
        ),
    ] = None,
    auth: Annotated[
        Path | None,
        typer.Option("--auth", help="File of tokens ('capgraph token'); without it, a link."),
    ] = None,
    thread: Annotated[
        str | None,
        typer.Option("--thread", "-t", help="Thread that the one-time link opens."),
    ] = None,
    worker_count: Annotated[
        int,
        typer.Option("--workers", min=0, help="Have so many processes of their own run the turns."),
    ] = 0,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Do not open the console in a browser.")
    ] = False,
) -> None:
    """Serve the agent: a console, a JSON API, AG-UI and more; SIGTERM hands over what runs."""
    from capgraph.base.errors import require_extra
    from capgraph.configs.logger import configure_logging

    for module in REQUIRED_MODULES:
        require_extra(module, "serve")
    from capgraph.serve.security import is_loopback

    level = logging.getLogger("capgraph").getEffectiveLevel()
    configure_logging(min(level, logging.INFO), json_lines=True)
    settings = shared.settings()
    if auth is not None or settings.serve.authenticates_users:
        settings = shared.settings(is_shared=True)
    elif not is_loopback(host):
        raise ConfigurationError(
            f"Everybody who reaches {host!r} could use the agent.",
            fix="Add --auth FILE; 'capgraph token NAME --auth FILE' makes one.",
        )
    if auth is not None and not auth.is_file():
        raise ConfigurationError(
            f"The file of tokens {str(auth)!r} does not exist.",
            fix=f"capgraph token NAME --auth {auth}",
        )
    ran = asyncio.run(
        _serve(shared, settings, worker_count, thread, not no_open, host, port, auth=auth)
    )
    raise typer.Exit(ExitCode.ANSWERED if ran else ExitCode.FAILED)


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
                named = {"engine": shared.engine, "temporal": shared.temporal}
                engine = await connect(url, saver, settings.scale, **named)
                options["engine"] = engine
                stack.push_async_callback(engine.close)
                words = shared.to_arguments("config", "model", "db", "engine", "temporal")
                await stack.enter_async_context(worker_processes(worker_count, words))
            application = create_app(agent.graph, settings=agent.settings, host=host, **options)
            address, link = socket_url(listening), application.state.link
            if thread is not None and link is None:
                raise ConfigurationError(
                    "There is no one-time link that could open a thread.",
                    fix=f"Log in, and open {address}{thread_query(thread)}",
                )

            def ready() -> None:
                shown = f" {address}login?link={link}" if link else ""
                shown += f"&{thread_query(thread)[1:]}" if thread is not None else ""
                # Whoever started the process reads this line to know that it answers.
                print(f"serving {address}{shown}", flush=True)  # noqa: T201
                if link and open_browser and is_interactive():
                    typer.launch(shown.strip())

            return await Server(application, listening, ready).listen()
