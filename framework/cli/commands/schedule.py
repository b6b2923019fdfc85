"""``capgraph schedule``: turns that begin by the clock."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from capgraph.cli.agent import check_thread_id, new_thread_id
from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import print_rows, print_text
from capgraph.configs.errors import ConfigurationError

app: typer.Typer = typer.Typer(
    name="schedule", help="Turns that begin by the clock.", no_args_is_help=True
)


@app.command("add")
@with_shared_options("config", "db", "engine", "temporal")
def add(
    shared: SharedOptions,
    cron: Annotated[str, typer.Argument(help="When, as five fields of cron in UTC.")],
    question: Annotated[str, typer.Argument(help="What is asked.")],
    thread: Annotated[
        str | None, typer.Option("--thread", "-t", help="In this thread (default: a new one each).")
    ] = None,
) -> None:
    """Ask a question again and again; prints the schedule's id."""
    from capgraph.scale.schedules import Schedule, Schedules

    named = check_thread_id(thread) if thread else ""
    schedule = Schedule(new_thread_id(), cron, question, named)
    shared.run_with_engine(lambda opened, saver: Schedules(saver).add(schedule, opened))
    typer.echo(schedule.id)


@app.command("list")
@with_shared_options("config", "db", "engine", "temporal", "as_json")
def list_(shared: SharedOptions) -> None:
    """List the schedules."""
    from capgraph.scale.schedules import Schedules

    found = shared.run_with_engine(lambda _, saver: Schedules(saver).list_all())
    rows = [
        (one.id, one.cron, one.thread or "a new one each", one.message or one.unreadable)
        for one in found
    ]
    print_rows(
        ("schedule", "when", "thread", "question"),
        rows,
        empty_message="There are no schedules.",
        data=[asdict(one) for one in found] if shared.as_json else None,
    )


@app.command("remove")
@with_shared_options("config", "db", "engine", "temporal")
def remove(
    shared: SharedOptions, schedule: Annotated[str, typer.Argument(help="Id of the schedule.")]
) -> None:
    """Forget a schedule."""
    from capgraph.scale.schedules import Schedules

    if not shared.run_with_engine(lambda opened, saver: Schedules(saver).remove(schedule, opened)):
        raise ConfigurationError(
            f"There is no schedule {schedule!r:.80}.", fix="See 'capgraph schedule list'."
        )
    print_text("It is gone.")
