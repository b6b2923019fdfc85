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
    user: Annotated[str | None, typer.Option("--user", help="Stop the runs of this user.")] = None,
    all_runs: Annotated[bool, typer.Option("--all", help="Stop all runs.")] = False,
    should_clear: Annotated[bool, typer.Option("--clear", help="Clear the stop.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="List active stops.")] = False,
    reason: Annotated[
        str, typer.Option("--reason", help="Reason, recorded as the outcome of the turns.")
    ] = "",
) -> None:
    """Stop runs in all processes at their next safe point.

    With --clear, remove a stop; with --list, show the active stops.
    """
    from capgraph.governance import clear_stop, list_stops, stop

    if show_list:
        stops = shared.run_with_database(lambda saver, _: list_stops(saver))
        rows = [
            (
                stop_record.kind,
                stop_record.name,
                _format_time(stop_record.since),
                stop_record.reason,
            )
            for stop_record in stops
        ]
        print_rows(("scope", "name", "since", "reason"), rows, empty_message="No active stops.")
    elif should_clear:
        was_stopped = shared.run_with_database(
            lambda saver, _: clear_stop(saver, thread=thread, user=user, all=all_runs)
        )
        print_text("Cleared." if was_stopped else "It was not stopped.")
    else:
        shared.run_with_database(
            lambda saver, _: stop(saver, thread=thread, user=user, all=all_runs, reason=reason)
        )
        print_text("Stopped.")


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
