"""``capgraph schedule``: turns that start at scheduled times."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from capgraph.cli.agent import check_thread_id, new_thread_id
from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import print_rows, print_text
from capgraph.configs.errors import ConfigurationError

app: typer.Typer = typer.Typer(name="schedule", help="Schedule turns.", no_args_is_help=True)


@app.command("add")
@with_shared_options("config", "db", "engine", "temporal")
def add(
    shared: SharedOptions,
    cron: Annotated[str, typer.Argument(help="Cron expression with five fields, in UTC.")],
    question: Annotated[str, typer.Argument(help="Question to ask.")],
    thread: Annotated[
        str | None,
        typer.Option("--thread", "-t", help="Thread to use (default: a new one each time)."),
    ] = None,
) -> None:
    """Schedule a recurring question, and print the schedule ID."""
    from capgraph.pipeline.run_config import configured_caller
    from capgraph.scale.schedules import Schedule

    thread_id = check_thread_id(thread) if thread else ""
    settings = shared.settings()
    schedule = Schedule(new_thread_id(), cron, question, thread_id, configured_caller(settings))

    async def run() -> None:
        async with shared.open_client(settings) as (_, client):
            await client.schedule(schedule)

    asyncio.run(run())
    typer.echo(schedule.id)


@app.command("list")
@with_shared_options("config", "db", "engine", "temporal", "as_json")
def list_(shared: SharedOptions) -> None:
    """List the schedules."""
    from capgraph.scale.schedules import Schedules

    schedules = shared.run_with_engine(lambda _, saver: Schedules(saver).list_all())
    rows = [
        (one.id, one.cron, one.thread or "new each time", one.message or one.unreadable)
        for one in schedules
    ]
    print_rows(
        ("schedule", "when", "thread", "question"),
        rows,
        empty_message="No schedules.",
        data=[asdict(one) for one in schedules] if shared.as_json else None,
    )


@app.command("remove")
@with_shared_options("config", "db", "engine", "temporal")
def remove(
    shared: SharedOptions, schedule: Annotated[str, typer.Argument(help="ID of the schedule.")]
) -> None:
    """Delete a schedule, so that its question is no longer asked."""
    from capgraph.scale.schedules import Schedules

    if not shared.run_with_engine(lambda opened, saver: Schedules(saver).remove(schedule, opened)):
        raise ConfigurationError(
            f"The schedule {schedule!r:.80} does not exist.",
            fix="List schedules with 'capgraph schedule list'.",
        )
    print_text("Deleted.")
