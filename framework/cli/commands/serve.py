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
from capgraph.cli.options import Shared, takes
from capgraph.cli.terminal import is_interactive
from capgraph.configs.errors import ConfigurationError

app: typer.Typer = typer.Typer()
NEEDED = ("starlette", "uvicorn", "prometheus_client", "ag_ui")
"""Modules of the extra ``serve``."""


@app.command("serve")
@takes("config", "model", "db", "engine", "temporal")
def serve(
    shared: Shared,
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
    workers: Annotated[
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

    for module in NEEDED:
        require_extra(module, "serve")
    from capgraph.serve.shield import is_loopback

    level = logging.getLogger("capgraph").getEffectiveLevel()
    configure_logging(min(level, logging.INFO), json_lines=True)
    settings = shared.settings()
    if auth is not None or settings.serve.has_logins:
        settings = shared.settings(shared=True)
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
    ran = asyncio.run(_serve(shared, settings, workers, thread, not no_open, host, port, auth=auth))
    raise typer.Exit(ExitCode.ANSWERED if ran else ExitCode.FAILED)


async def _serve(
    shared: Shared,
    settings: Any,
    workers: int,
    thread: str | None,
    opens: bool,
    host: str,
    port: int | None,
    **options: Any,
) -> bool:
    from capgraph.cli.workers import working
    from capgraph.scale import connect
    from capgraph.serve.app import create_app
    from capgraph.serve.links import opened
    from capgraph.serve.server import Server, address_of, listen_on

    with listen_on(host, port) as listening:
        async with contextlib.AsyncExitStack() as stack:
            agent = await stack.enter_async_context(shared.open_agent(settings))
            if workers or shared.engine:
                url, saver = database_url(shared.db, settings), agent.graph.checkpointer
                named = {"engine": shared.engine, "temporal": shared.temporal}
                engine = await connect(url, saver, settings.scale, **named)
                options["engine"] = engine
                stack.push_async_callback(engine.close)
                words = shared.words("config", "model", "db", "engine", "temporal")
                await stack.enter_async_context(working(workers, words))
            application = create_app(agent.graph, settings=agent.settings, host=host, **options)
            address, link = address_of(listening), application.state.link
            if thread is not None and link is None:
                raise ConfigurationError(
                    "There is no one-time link that could open a thread.",
                    fix=f"Log in, and open {address}{opened(thread)}",
                )

            def ready() -> None:
                shown = f" {address}login?link={link}" if link else ""
                shown += f"&{opened(thread)[1:]}" if thread is not None else ""
                # Whoever started the process reads this line to know that it answers.
                print(f"serving {address}{shown}", flush=True)  # noqa: T201
                if link and opens and is_interactive():
                    typer.launch(shown.strip())

            return await Server(application, listening, ready).listen()
