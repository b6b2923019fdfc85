"""``capgraph schedule``: turns that begin by the clock."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from configs.errors import ConfigurationError
from framework.cli.options import Config, Database, Engine, Json, Temporal

app = typer.Typer(name="schedule", help="Turns that begin by the clock.", no_args_is_help=True)


@app.command("add")
def add(
    cron: Annotated[str, typer.Argument(help="When, as five fields of cron in UTC.")],
    question: Annotated[str, typer.Argument(help="What is asked.")],
    thread: Annotated[
        str | None, typer.Option("--thread", "-t", help="In this thread (default: a new one each).")
    ] = None,
    config: Config = None,
    db: Database = None,
    engine: Engine = None,
    temporal: Temporal = None,
) -> None:
    """Ask a question again and again; prints the schedule's id."""
    from framework.cli.agent import check_thread_id, new_thread_id
    from framework.cli.workers import with_engine
    from framework.scale.schedules import Schedule, Schedules

    named = check_thread_id(thread) if thread else ""
    schedule = Schedule(new_thread_id(), cron, question, named)
    with_engine(
        config, db, engine, temporal, lambda opened, saver: Schedules(saver).add(schedule, opened)
    )
    typer.echo(schedule.id)


@app.command("list")
def list_(
    config: Config = None,
    db: Database = None,
    engine: Engine = None,
    temporal: Temporal = None,
    as_json: Json = False,
) -> None:
    """List the schedules."""
    from framework.cli.terminal import show_rows
    from framework.cli.workers import with_engine
    from framework.scale.schedules import Schedules

    found = with_engine(config, db, engine, temporal, lambda _, saver: Schedules(saver).all())
    rows = [(one.id, one.cron, one.thread or "a new one each", one.message) for one in found]
    show_rows(
        ("schedule", "when", "thread", "question"),
        rows,
        none="There are no schedules.",
        data=[asdict(one) for one in found] if as_json else None,
    )


@app.command("remove")
def remove(
    schedule: Annotated[str, typer.Argument(help="Id of the schedule.")],
    config: Config = None,
    db: Database = None,
    engine: Engine = None,
    temporal: Temporal = None,
) -> None:
    """Forget a schedule."""
    from framework.cli.terminal import say
    from framework.cli.workers import with_engine
    from framework.scale.schedules import Schedules

    was = with_engine(
        config,
        db,
        engine,
        temporal,
        lambda opened, saver: Schedules(saver).remove(schedule, opened),
    )
    if not was:
        raise ConfigurationError(
            f"There is no schedule {schedule!r:.80}.", fix="See 'capgraph schedule list'."
        )
    say("It is gone.")
