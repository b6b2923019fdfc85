"""``capgraph signal``: send an external event to a waiting step."""

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
    thread: Annotated[str, typer.Argument(help="Thread ID.")],
    key: Annotated[str, typer.Argument(help="Key of the event, as in the step's wait_for.")],
    value: Annotated[str | None, typer.Argument(help="Value of the event: JSON or text.")] = None,
    later: Annotated[
        bool,
        typer.Option(
            "--later", help="Only store the event; the server or a worker resumes the thread."
        ),
    ] = False,
) -> None:
    """Send an event to the step of a thread that waits for it.

    An event that arrives before a step waits for it is stored. Sending the same event again has
    no effect.
    """
    from capgraph.cli.session import open_session
    from capgraph.cli.views import make_view
    from capgraph.graph import signal

    shared.require_database()
    view = make_view(as_json=shared.as_json)
    with open_session(view, ("capgraph", "ask"), replace(shared, thread=thread)) as session:
        sending = signal(session.agent.graph, thread, key, parse_value(value), run=False)
        was_waiting = session.runner.run(sending)
        if was_waiting and not later:
            end = session.run_turn(None, None, None)
            raise typer.Exit(ExitCode.of_status(end.status))
    if not shared.as_json:
        print_text(
            "The waiting step can continue." if was_waiting else "Stored: no step waits for it yet."
        )
