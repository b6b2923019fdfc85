"""``capgraph serve``: one server for people and for other agents."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from configs.errors import ConfigurationError
from framework.cli.exit_codes import ExitCode
from framework.cli.options import Config, Database, Engine, Model, Temporal

if TYPE_CHECKING:
    from configs.settings import Settings

app = typer.Typer()
NEEDED = ("starlette", "uvicorn", "prometheus_client", "ag_ui")
"""Modules of the extra ``serve``."""


@app.command("serve")
def serve(
    config: Config = None,
    model: Model = None,
    db: Database = None,
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
    engine: Engine = None,
    temporal: Temporal = None,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Do not open the console in a browser.")
    ] = False,
) -> None:
    """Serve the agent: a console, a JSON API, AG-UI and more; SIGTERM hands over what runs."""
    import asyncio

    from configs.logger import configure_logging
    from framework.base.errors import require_extra
    from framework.cli.agent import read_settings

    for module in NEEDED:
        require_extra(module, "serve")
    from framework.serve.shield import is_loopback

    level = logging.getLogger("capgraph").getEffectiveLevel()
    configure_logging(min(level, logging.INFO), json_lines=True)
    settings = read_settings(config)
    known = settings.serve.proxy or settings.serve.oidc
    if auth is not None or known is not None:
        settings = read_settings(config, shared=True)
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
    opens = not no_open
    given = {"--config": config, "--model": model, "--db": db, "--engine": engine}
    given["--temporal"] = temporal
    words = [word for name, value in given.items() if value for word in (name, str(value))]
    crew = _Crew(workers, words, engine, temporal) if workers or engine else None
    ran = asyncio.run(_serve(settings, model, db, host, port, auth, thread, crew, opens=opens))
    raise typer.Exit(ExitCode.ANSWERED if ran else ExitCode.FAILED)


class _Crew(NamedTuple):
    """Who runs the turns in place of the server.

    Attributes:
        number: So many processes of its own.
        words: What each is told.
        engine: What ``--engine`` says.
        temporal: What ``--temporal`` says.
    """

    number: int
    words: list[str]
    engine: str | None
    temporal: str | None


async def _serve(
    settings: Settings,
    model: str | None,
    db: str | None,
    host: str,
    port: int | None,
    auth: Path | None,
    thread: str | None,
    crew: _Crew | None,
    *,
    opens: bool,
) -> bool:
    from framework.cli.agent import database_url, open_agent
    from framework.cli.terminal import is_interactive
    from framework.cli.workers import working
    from framework.scale import connect
    from framework.serve.app import create_app
    from framework.serve.links import opened
    from framework.serve.server import Server, address_of, listen_on

    with listen_on(host, port) as listening:
        async with contextlib.AsyncExitStack() as stack:
            agent = await stack.enter_async_context(open_agent(settings, model=model, db=db))
            engine = None
            if crew is not None:
                url = database_url(db, settings)
                engine = await connect(
                    url,
                    agent.graph.checkpointer,
                    settings.scale,
                    engine=crew.engine,
                    temporal=crew.temporal,
                )
                stack.push_async_callback(engine.close)
                await stack.enter_async_context(working(crew.number, crew.words))
            application = create_app(
                agent.graph, settings=agent.settings, auth=auth, host=host, engine=engine
            )
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
