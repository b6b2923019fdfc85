"""``capgraph threads``: list, show, prune and fork what the database holds."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capgraph.cli.agent import check_thread_id, new_thread_id
from capgraph.cli.options import SharedOptions, parse_duration_option, with_shared_options
from capgraph.cli.terminal import one_line, print_rows, print_text, to_printable
from capgraph.configs.errors import ConfigurationError

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

    from capgraph.configs.settings import PersistenceSettings
    from capgraph.stores import ThreadSummary

app: typer.Typer = typer.Typer(
    name="threads", help="List, show, prune and fork threads.", no_args_is_help=True
)
_Thread = Annotated[str, typer.Argument(help="Thread id.")]


@app.command("list")
@with_shared_options("config", "db", "as_json")
def list_(
    shared: SharedOptions,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 50,
    after: Annotated[
        str | None, typer.Option("--after", help="Go on after this thread of the last page.")
    ] = None,
) -> None:
    """List threads, the one that was saved last first."""
    from capgraph.stores import list_threads

    found = shared.run_with_database(lambda saver, _: list_threads(saver, limit=limit, after=after))
    rows = [
        (item.thread_id, item.status, _format_saved_at(item), item.turns, item.task or "")
        for item in found
    ]
    headings = ("thread", "status", "saved", "turns", "last task")
    data = [_to_dict(item) for item in found] if shared.as_json else None
    print_rows(headings, rows, empty_message="There are no threads.", data=data)


@app.command("show")
@with_shared_options("config", "db", "as_json")
def show(shared: SharedOptions, thread: _Thread) -> None:
    """Show what a thread has come to, with its messages."""
    from capgraph.cli.questions import question_lines
    from capgraph.stores import thread_messages

    async def read(saver: BaseCheckpointSaver[Any], _: object) -> tuple[ThreadSummary, list[Any]]:
        return await _require_summary(saver, thread), await thread_messages(saver, thread)

    summary, messages = shared.run_with_database(read)
    if shared.as_json:
        said = [{"from": message.type, "text": message.text} for message in messages]
        typer.echo(json.dumps({**_to_dict(summary), "conversation": said}, indent=2, default=str))
        return
    rows = {
        "thread": summary.thread_id,
        "status": summary.status,
        "saved": _format_saved_at(summary),
        "turns": summary.turns,
        "task": summary.task or "-",
        "done": ", ".join(summary.done) or "-",
        "missing": ", ".join(summary.missing) or "-",
        "reason": summary.reason,
    }
    lines = [f"{name:<8} {one_line(text, 1000)}" for name, text in rows.items() if text is not None]
    lines += [line for asked in summary.questions.values() for line in question_lines(asked)]
    for message in messages:
        who = "you" if message.type == "human" else "agent"
        lines.append(f"{who}> {to_printable(message.text)}")
    for line in lines:
        print_text(line)


@app.command("prune")
@with_shared_options("config", "db")
def prune(
    shared: SharedOptions,
    thread: Annotated[list[str] | None, typer.Argument(help="Thread ids.")] = None,
    all_threads: Annotated[bool, typer.Option("--all", help="Every thread.")] = False,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help="Drop threads not saved for so long, such as 30d."),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Drop the threads, not only their history.")
    ] = False,
    skip_confirmation: Annotated[
        bool, typer.Option("--yes", help="Do not ask before threads go.")
    ] = False,
) -> None:
    """Drop the history of threads, or the threads.

    Without thread ids and options, do what the settings' persistence.keep_turns, keep_checkpoints
    and keep_days say.
    """
    from capgraph.stores import prune_threads

    kept = shared.settings().persistence
    by_settings = not (thread or all_threads or older_than is not None or delete)
    steps = _steps_from_settings(kept) if by_settings else _steps_from_options(older_than, delete)
    if not steps or not (by_settings or thread or all_threads or older_than is not None):
        raise ConfigurationError(
            "It is not said which threads to prune.",
            fix="Name threads, give --all, or set persistence.keep_turns, keep_checkpoints or"
            " keep_days.",
        )
    if thread and all_threads:
        raise ConfigurationError("--all and thread ids are given.", fix="Give one of them.")
    age = next((step["older_than"] for step in steps if "older_than" in step), None)
    if (age or delete) and not skip_confirmation:
        which = "every thread" if not thread else f"{len(thread)} thread(s)"
        which += f" not saved for {older_than or f'{kept.keep_days:g}d'}" if age else ""
        if not typer.confirm(f"Drop {which}? This cannot be undone."):
            raise typer.Exit(1)

    async def change(saver: BaseCheckpointSaver[Any], _: object) -> list[str]:
        for name in thread or ():
            await _require_summary(saver, name)
        found = [await prune_threads(saver, thread or None, **step) for step in steps]
        return sorted({name for names in found for name in names})

    for name in shared.run_with_database(change):
        print_text(name)


@app.command("fork")
@with_shared_options("config", "db")
def fork(
    shared: SharedOptions,
    thread: _Thread,
    new: Annotated[str | None, typer.Argument(help="Id of the copy (default: a new one).")] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", help="Moment of its history to copy.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Copy a turn that stopped in the middle of its steps.")
    ] = False,
) -> None:
    """Copy a thread, to go on with the copy in another way."""
    from capgraph.stores import fork_thread

    target = check_thread_id(new) if new is not None else new_thread_id()

    async def change(saver: BaseCheckpointSaver[Any], _: object) -> None:
        summary = await _require_summary(saver, thread)
        midway = checkpoint is not None or summary.status in {"unfinished", "cancelled"}
        if midway and not force:
            raise ConfigurationError(
                f"The thread {thread!r} would be copied in the middle of a turn: effects of steps"
                " that had not finished could happen once more in the copy.",
                fix="Finish the turn first, or add --force.",
            )
        await fork_thread(saver, thread, target, checkpoint_id=checkpoint)

    shared.run_with_database(change)
    print_text(target)


def _steps_from_options(older_than: str | None, delete: bool) -> list[dict[str, Any]]:
    if older_than is not None:
        return [{"policy": "older_than", "older_than": parse_duration_option(older_than)}]
    return [{"policy": "delete" if delete else "keep_latest"}]


def _steps_from_settings(settings: PersistenceSettings) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    if settings.keep_days:
        steps.append({"policy": "older_than", "older_than": timedelta(days=settings.keep_days)})
    if settings.keep_turns or settings.keep_checkpoints:
        counts = {"keep_turns": settings.keep_turns, "keep_checkpoints": settings.keep_checkpoints}
        steps.append({"policy": "keep", **counts})
    return steps


async def _require_summary(saver: BaseCheckpointSaver[Any], thread: str) -> ThreadSummary:
    from capgraph.stores import thread_summary

    summary = await thread_summary(saver, thread)
    if summary is None:
        raise ConfigurationError(
            f"There is no thread {thread[:80]!r}.",
            fix="See 'capgraph threads list', and check --db.",
        )
    return summary


def _format_saved_at(summary: ThreadSummary) -> str:
    moment = summary.updated_at
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else "-"


def _to_dict(summary: ThreadSummary) -> dict[str, Any]:
    moment = summary.updated_at
    return {**asdict(summary), "updated_at": moment.isoformat() if moment else None}
