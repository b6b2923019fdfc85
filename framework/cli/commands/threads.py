"""``capgraph threads``: list, show, prune, and fork threads."""

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
    name="threads", help="List, show, prune, and fork threads.", no_args_is_help=True
)
_Thread = Annotated[str, typer.Argument(help="Thread id.")]


@app.command("list")
@with_shared_options("config", "db", "as_json")
def list_(
    shared: SharedOptions,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Maximum number of results.")
    ] = 50,
    after: Annotated[
        str | None,
        typer.Option(
            "--after", help="Continue after this thread (the last one of the previous page)."
        ),
    ] = None,
) -> None:
    """List threads, starting with the most recently saved thread."""
    from capgraph.stores import list_threads

    threads = shared.run_with_database(
        lambda saver, _: list_threads(saver, limit=limit, after=after)
    )
    rows = [
        (item.thread_id, item.status, _format_saved_at(item), item.turns, item.task or "")
        for item in threads
    ]
    headings = ("thread", "status", "saved", "turns", "last task")
    data = [_to_dict(item) for item in threads] if shared.as_json else None
    print_rows(headings, rows, empty_message="No threads.", data=data)


@app.command("show")
@with_shared_options("config", "db", "as_json")
def show(shared: SharedOptions, thread: _Thread) -> None:
    """Show the status of a thread and all of its messages."""
    from capgraph.cli.questions import question_lines
    from capgraph.stores import thread_messages

    async def read(saver: BaseCheckpointSaver[Any], _: object) -> tuple[ThreadSummary, list[Any]]:
        return await _require_summary(saver, thread), await thread_messages(saver, thread)

    summary, messages = shared.run_with_database(read)
    if shared.as_json:
        conversation = [{"from": message.type, "text": message.text} for message in messages]
        typer.echo(
            json.dumps({**_to_dict(summary), "conversation": conversation}, indent=2, default=str)
        )
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
    lines += [line for question in summary.questions.values() for line in question_lines(question)]
    for message in messages:
        speaker = "you" if message.type == "human" else "agent"
        lines.append(f"{speaker}> {to_printable(message.text)}")
    for line in lines:
        print_text(line)


@app.command("prune")
@with_shared_options("config", "db")
def prune(
    shared: SharedOptions,
    thread: Annotated[list[str] | None, typer.Argument(help="Thread ids.")] = None,
    all_threads: Annotated[bool, typer.Option("--all", help="Select all threads.")] = False,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help="Delete threads not saved for this long, such as 30d."),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the threads, not only their history.")
    ] = False,
    skip_confirmation: Annotated[
        bool, typer.Option("--yes", help="Do not ask for confirmation.")
    ] = False,
) -> None:
    """Delete the checkpoint history of threads, or whole threads.

    Without arguments, apply the settings persistence.keep_turns, keep_checkpoints, and
    keep_days.
    """
    from capgraph.stores import prune_threads

    retention = shared.settings().persistence
    uses_settings = not (thread or all_threads or older_than is not None or delete)
    steps = (
        _steps_from_settings(retention)
        if uses_settings
        else _steps_from_options(older_than, delete)
    )
    if not steps or not (uses_settings or thread or all_threads or older_than is not None):
        raise ConfigurationError(
            "No threads are selected.",
            fix="Pass thread IDs or --all, or set persistence.keep_turns, keep_checkpoints, or"
            " keep_days.",
        )
    if thread and all_threads:
        raise ConfigurationError(
            "--all cannot be combined with thread IDs.", fix="Pass one of them."
        )
    age = next((step["older_than"] for step in steps if "older_than" in step), None)
    if (age or delete) and not skip_confirmation:
        description = "every thread" if not thread else f"{len(thread)} thread(s)"
        description += f" not saved for {older_than or f'{retention.keep_days:g}d'}" if age else ""
        if not typer.confirm(f"Delete {description}? This cannot be undone."):
            raise typer.Exit(1)

    async def change(saver: BaseCheckpointSaver[Any], _: object) -> list[str]:
        for name in thread or ():
            await _require_summary(saver, name)
        pruned = [await prune_threads(saver, thread or None, **step) for step in steps]
        return sorted({name for names in pruned for name in names})

    for name in shared.run_with_database(change):
        print_text(name)


@app.command("fork")
@with_shared_options("config", "db")
def fork(
    shared: SharedOptions,
    thread: _Thread,
    new: Annotated[str | None, typer.Argument(help="ID of the copy (default: a new one).")] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", help="Checkpoint to copy (default: the latest).")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Copy even if a turn is unfinished.")
    ] = False,
) -> None:
    """Copy a thread, so that both copies can be continued separately."""
    from capgraph.pipeline.run_config import configured_caller
    from capgraph.stores import fork_thread

    target = check_thread_id(new) if new is not None else new_thread_id()
    caller = configured_caller(shared.settings())

    async def change(saver: BaseCheckpointSaver[Any], _: object) -> None:
        summary = await _require_summary(saver, thread)
        midway = checkpoint is not None or summary.status in {"unfinished", "cancelled"}
        if midway and not force:
            raise ConfigurationError(
                f"The thread {thread!r} has an unfinished turn: the copy could repeat effects of"
                " its unfinished steps.",
                fix="Finish the turn first, or pass --force.",
            )
        await fork_thread(saver, thread, target, checkpoint_id=checkpoint, caller=caller)

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
            f"The thread {thread[:80]!r} does not exist.",
            fix="List threads with 'capgraph threads list', and check --db.",
        )
    return summary


def _format_saved_at(summary: ThreadSummary) -> str:
    moment = summary.updated_at
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else "-"


def _to_dict(summary: ThreadSummary) -> dict[str, Any]:
    moment = summary.updated_at
    return {**asdict(summary), "updated_at": moment.isoformat() if moment else None}
