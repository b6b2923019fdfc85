"""``capgraph signal``: an event from outside, for a step that waits for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from capgraph.cli.exit_codes import EXIT_CODES_HELP, ExitCode
from capgraph.cli.options import SharedOptions, parse_value, with_shared_options
from capgraph.cli.terminal import print_text

app: typer.Typer = typer.Typer()


@app.command("signal", epilog=EXIT_CODES_HELP)
@with_shared_options("config", "db", "model", "as_json")
def signal_(
    shared: SharedOptions,
    thread: Annotated[str, typer.Argument(help="Thread id.")],
    key: Annotated[str, typer.Argument(help="Key of the event, as the step's wait_for has it.")],
    value: Annotated[
        str | None, typer.Argument(help="What comes with it: JSON, or else text.")
    ] = None,
    later: Annotated[
        bool, typer.Option("--later", help="Only keep it; whoever serves the thread wakes it.")
    ] = False,
) -> None:
    """Tell a thread that an event came. The step that waits for it goes on here.

    One that comes before a step waits for it is kept. The same one again changes nothing.
    """
    from capgraph.cli.session import open_session
    from capgraph.cli.views import make_view
    from capgraph.graph import signal

    shared.require_database()
    view = make_view(as_json=shared.as_json)
    with open_session(view, ("capgraph", "ask"), replace(shared, thread=thread)) as session:
        sent = signal(session.agent.graph, thread, key, parse_value(value), run=False)
        waited = session.runner.run(sent)
        if waited and not later:
            end = session.run_turn(None, None, None)
            raise typer.Exit(ExitCode.of_status(end.status))
    if not shared.as_json:
        print_text("A step waits for it." if waited else "No step waits for it now; it is kept.")
