"""``capgraph stop``: the kill switch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from capgraph.cli.options import Shared, takes
from capgraph.cli.terminal import say, show_rows

app: typer.Typer = typer.Typer()


@app.command("stop")
@takes("config", "db")
def stop_(
    shared: Shared,
    thread: Annotated[str | None, typer.Argument(help="Thread to stop.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Stop this user's runs.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Stop all runs.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Let it go on again.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="List what is stopped.")] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; the turns end with it.")] = "",
) -> None:
    """Stop runs in all processes at their next safe point, until it is taken back."""
    from capgraph.governance import clear_stop, list_stops, stop

    if listing:
        found = shared.on_database(lambda saver, _: list_stops(saver))
        rows = [(one.kind, one.name, _moment(one.since), one.reason) for one in found]
        show_rows(("what", "name", "since", "reason"), rows, none="Nothing is stopped.")
    elif clear:
        was = shared.on_database(
            lambda saver, _: clear_stop(saver, thread=thread, user=user, all=every)
        )
        say("It may go on." if was else "It was not stopped.")
    else:
        shared.on_database(
            lambda saver, _: stop(saver, thread=thread, user=user, all=every, reason=reason)
        )
        say("Stopped.")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
