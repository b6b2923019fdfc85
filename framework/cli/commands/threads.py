"""``capgraph threads``: list, show, prune and fork what the database holds."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from configs.errors import ConfigurationError
from framework.cli.commands.database import with_saver
from framework.cli.commands.options import Config, Database, Json

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

    from configs.settings import PersistenceSettings
    from framework.stores import ThreadSummary

app = typer.Typer(name="threads", help="List, show, prune and fork threads.", no_args_is_help=True)
_Thread = Annotated[str, typer.Argument(help="Thread id.")]


@app.command("list")
def list_(
    config: Config = None,
    db: Database = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 50,
    after: Annotated[
        str | None, typer.Option("--after", help="Go on after this thread of the last page.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List threads, the one that was saved last first."""
    from framework.cli.terminal import show_rows

    async def read(saver: BaseCheckpointSaver[Any]) -> list[ThreadSummary]:
        from framework.stores import list_threads

        return await list_threads(saver, limit=limit, after=after)

    found = with_saver(config, db, read)
    if as_json:
        typer.echo(json.dumps([_data(item) for item in found], indent=2))
        return
    rows = [
        (item.thread_id, item.status, _moment(item), item.turns, item.task or "") for item in found
    ]
    headings = ("thread", "status", "saved", "turns", "last task")
    show_rows(headings, rows, none="There are no threads.")


@app.command("show")
def show(
    thread: _Thread, config: Config = None, db: Database = None, as_json: Json = False
) -> None:
    """Show what a thread has come to, with its messages."""
    from framework.cli.questions import question_lines
    from framework.cli.terminal import make_console, one_line, safe

    async def read(saver: BaseCheckpointSaver[Any]) -> tuple[ThreadSummary, list[Any]]:
        from framework.stores import thread_messages, thread_summary

        summary = await thread_summary(saver, thread)
        if summary is None:
            raise _no_such(thread)
        return summary, await thread_messages(saver, thread)

    summary, messages = with_saver(config, db, read)
    if as_json:
        said = [{"from": message.type, "text": message.text} for message in messages]
        typer.echo(json.dumps({**_data(summary), "conversation": said}, indent=2, default=str))
        return
    console = make_console()
    lines = [
        f"thread   {one_line(summary.thread_id)}",
        f"status   {one_line(summary.status)}",
        f"saved    {_moment(summary)}",
        f"turns    {summary.turns}",
        f"task     {one_line(summary.task or '-', 1000)}",
        f"done     {one_line(', '.join(summary.done) or '-', 1000)}",
        f"missing  {one_line(', '.join(summary.missing) or '-', 1000)}",
    ]
    lines += [f"reason   {one_line(summary.reason, 1000)}"] if summary.reason else []
    lines += [line for asked in summary.questions.values() for line in question_lines(asked)]
    for message in messages:
        who = "you" if message.type == "human" else "agent"
        lines.append(f"{who}> {safe(message.text)}")
    for line in lines:
        console.print(line, soft_wrap=True)


@app.command("prune")
def prune(
    thread: Annotated[list[str] | None, typer.Argument(help="Thread ids.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every thread.")] = False,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help="Drop threads not saved for so long, such as 30d."),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Drop the threads, not only their history.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before threads go.")] = False,
    config: Config = None,
    db: Database = None,
) -> None:
    """Drop the history of threads, or the threads.

    Without thread ids and options, do what the settings' persistence.keep_turns, keep_checkpoints
    and keep_days say.
    """
    from framework.cli.agent import read_settings
    from framework.cli.terminal import one_line

    kept = read_settings(config).persistence
    by_settings = not (thread or everything or older_than is not None or delete)
    steps = _by_settings(kept) if by_settings else _by_options(older_than, delete)
    if not steps or not (by_settings or thread or everything or older_than is not None):
        raise ConfigurationError(
            "It is not said which threads to prune.",
            fix="Name threads, give --all, or set persistence.keep_turns, keep_checkpoints or"
            " keep_days.",
        )
    if thread and everything:
        raise ConfigurationError("--all and thread ids are given.", fix="Give one of them.")
    age = next((step["older_than"] for step in steps if "older_than" in step), None)
    if (age or delete) and not yes:
        which = "every thread" if not thread else f"{len(thread)} thread(s)"
        which += f" not saved for {older_than or f'{kept.keep_days:g}d'}" if age else ""
        if not typer.confirm(f"Drop {which}? This cannot be undone."):
            raise typer.Exit(1)

    async def change(saver: BaseCheckpointSaver[Any]) -> list[str]:
        from framework.stores import prune_threads, thread_summary

        for name in thread or ():
            if await thread_summary(saver, name) is None:
                raise _no_such(name)
        found = [await prune_threads(saver, thread or None, **step) for step in steps]
        return sorted({name for names in found for name in names})

    for name in with_saver(config, db, change):
        typer.echo(one_line(name))


@app.command("fork")
def fork(
    thread: _Thread,
    new: Annotated[str | None, typer.Argument(help="Id of the copy (default: a new one).")] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", help="Moment of its history to copy.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Copy a turn that stopped in the middle of its steps.")
    ] = False,
    config: Config = None,
    db: Database = None,
) -> None:
    """Copy a thread, to go on with the copy in another way."""
    from framework.cli.agent import check_thread_id, new_thread_id
    from framework.cli.terminal import one_line

    target = check_thread_id(new) if new is not None else new_thread_id()

    async def change(saver: BaseCheckpointSaver[Any]) -> None:
        from framework.stores import fork_thread, thread_summary

        summary = await thread_summary(saver, thread)
        if summary is None:
            raise _no_such(thread)
        midway = checkpoint is not None or summary.status in {"unfinished", "cancelled"}
        if midway and not force:
            raise ConfigurationError(
                f"The thread {thread!r} would be copied in the middle of a turn: effects of steps"
                " that had not finished could happen once more in the copy.",
                fix="Finish the turn first, or add --force.",
            )
        await fork_thread(saver, thread, target, checkpoint_id=checkpoint)

    with_saver(config, db, change)
    typer.echo(one_line(target))


def _by_options(older_than: str | None, delete: bool) -> list[dict[str, Any]]:
    from framework.cli.durations import read_duration

    if older_than is not None:
        return [{"policy": "older_than", "older_than": read_duration(older_than)}]
    return [{"policy": "delete" if delete else "keep_latest"}]


def _by_settings(kept: PersistenceSettings) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    if kept.keep_days:
        steps.append({"policy": "older_than", "older_than": timedelta(days=kept.keep_days)})
    if kept.keep_turns or kept.keep_checkpoints:
        counts = {"keep_turns": kept.keep_turns, "keep_checkpoints": kept.keep_checkpoints}
        steps.append({"policy": "keep", **counts})
    return steps


def _no_such(thread: str) -> ConfigurationError:
    return ConfigurationError(
        f"There is no thread {thread[:80]!r}.",
        fix="See 'capgraph threads list', and check --db.",
    )


def _moment(summary: ThreadSummary) -> str:
    moment = summary.updated_at
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else "-"


def _data(summary: ThreadSummary) -> dict[str, Any]:
    moment = summary.updated_at
    return {**asdict(summary), "updated_at": moment.isoformat() if moment else None}
