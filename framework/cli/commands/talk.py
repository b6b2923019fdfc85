"""``capgraph ask`` and ``capgraph chat``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from framework.cli.commands.options import Config, Database, Model, Thread
from framework.cli.exit_codes import ExitCode

Data = Annotated[
    list[str] | None,
    typer.Option("--data", "-d", help="Data file that the question is about; may be repeated."),
]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of a picture that redraws.")]


def ask(
    question: Annotated[
        str | None,
        typer.Argument(help="What you want to know; leave it out to go on with --thread."),
    ] = None,
    data: Data = None,
    config: Config = None,
    model: Model = None,
    thread: Thread = None,
    db: Database = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One event per line as JSON; the last is the result.")
    ] = False,
    timeline: Annotated[
        Path | None,
        typer.Option("--timeline", help="Write the steps over time to this SVG file."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="Run the plan of this file instead of making one."),
    ] = None,
    answer: Annotated[
        bool | None,
        typer.Option("--yes/--no", help="Approve or reject whatever a person would be asked."),
    ] = None,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="End an unfinished turn of the thread and ask anew.")
    ] = False,
    plain: Plain = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the answer.")] = False,
) -> None:
    """Ask one question, and watch how the answer is found."""
    from framework.cli.ask import AskOptions, ask_once
    from framework.cli.terminal import is_interactive, print_error
    from framework.cli.views import make_view

    options = AskOptions(
        question=question,
        data=data or (),
        config=config,
        model=model,
        thread=thread,
        db=db,
        plan=plan,
        timeline=timeline,
        answer=answer,
        abandon=abandon,
        as_json=as_json,
        plain=plain,
        quiet=quiet,
    )
    view = make_view(as_json=as_json, plain=plain, quiet=quiet)
    asks = _ask_person if is_interactive() and not as_json else None
    end = ask_once(options, view, asks)
    if quiet and end.error is not None:
        print_error(end.error)
    raise typer.Exit(ExitCode.of_status(end.status))


def chat(
    thread: Thread = None,
    data: Data = None,
    config: Config = None,
    model: Model = None,
    db: Database = None,
    plain: Plain = False,
) -> None:
    """Talk with the agent; '/help' shows the commands."""
    from framework.cli.ask import AskOptions
    from framework.cli.chat import Chat

    options = AskOptions(
        data=data or (), config=config, model=model, thread=thread, db=db, plain=plain
    )
    raise typer.Exit(Chat(options).run())


def _ask_person(questions: dict[str, Any]) -> dict[str, Any]:
    from framework.cli.questions import ask_all
    from framework.cli.terminal import make_console

    return ask_all(questions, make_console())
