"""``capgraph stop``: the kill switch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import print_rows, print_text

app: typer.Typer = typer.Typer()


@app.command("stop")
@with_shared_options("config", "db")
def stop_(
    shared: SharedOptions,
    thread: Annotated[str | None, typer.Argument(help="Thread to stop.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Stop this user's runs.")] = None,
    all_runs: Annotated[bool, typer.Option("--all", help="Stop all runs.")] = False,
    should_clear: Annotated[bool, typer.Option("--clear", help="Let it go on again.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="List what is stopped.")] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; the turns end with it.")] = "",
) -> None:
    """Stop runs in all processes at their next safe point, until it is taken back."""
    from capgraph.governance import clear_stop, list_stops, stop

    if show_list:
        found = shared.run_with_database(lambda saver, _: list_stops(saver))
        rows = [(one.kind, one.name, _format_time(one.since), one.reason) for one in found]
        print_rows(("what", "name", "since", "reason"), rows, empty_message="Nothing is stopped.")
    elif should_clear:
        was = shared.run_with_database(
            lambda saver, _: clear_stop(saver, thread=thread, user=user, all=all_runs)
        )
        print_text("It may go on." if was else "It was not stopped.")
    else:
        shared.run_with_database(
            lambda saver, _: stop(saver, thread=thread, user=user, all=all_runs, reason=reason)
        )
        print_text("Stopped.")


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
