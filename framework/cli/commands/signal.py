"""``capgraph signal``: an event from outside, for a step that waits for it."""

from __future__ import annotations

from typing import Annotated

import typer

from framework.cli.exit_codes import EXIT_CODES_HELP, ExitCode
from framework.cli.options import Config, Database, Json, Model, read_value

app = typer.Typer()


@app.command("signal", epilog=EXIT_CODES_HELP)
def signal_(
    thread: Annotated[str, typer.Argument(help="Thread id.")],
    key: Annotated[str, typer.Argument(help="Key of the event, as the step's wait_for has it.")],
    value: Annotated[
        str | None, typer.Argument(help="What comes with it: JSON, or else text.")
    ] = None,
    later: Annotated[
        bool, typer.Option("--later", help="Only keep it; whoever serves the thread wakes it.")
    ] = False,
    config: Config = None,
    db: Database = None,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Tell a thread that an event came. The step that waits for it goes on here.

    One that comes before a step waits for it is kept. The same one again changes nothing.
    """
    from framework.cli.session import open_session
    from framework.cli.show import make_view
    from framework.cli.terminal import say
    from framework.graph import signal

    view = make_view(as_json=as_json)
    with open_session(
        view,
        ("capgraph", "ask"),
        config=config,
        model=model,
        db=db,
        data=None,
        thread=thread,
    ) as session:
        sent = signal(session.agent.graph, thread, key, read_value(value), run=False)
        waited = session.runner.run(sent)
        if waited and not later:
            end = session.turn(None, None, None)
            raise typer.Exit(ExitCode.of_status(end.status))
    if not as_json:
        say("A step waits for it." if waited else "No step waits for it now; it is kept.")
