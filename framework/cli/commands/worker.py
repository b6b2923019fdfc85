"""``capgraph worker`` and ``capgraph workers``: run and list workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import threading
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capgraph.cli.exit_codes import ExitCode
from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import print_rows, print_text
from capgraph.configs.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capgraph.configs.settings import Settings
    from capgraph.scale import Worker
    from capgraph.stores.run_log import LoggedRun

app: typer.Typer = typer.Typer()
_GRACE_SECONDS = 5.0
"""Time that a worker has to exit after its steps have ended or should have ended."""


@app.command("worker")
@with_shared_options("config", "model", "db", "engine", "temporal")
def worker(
    shared: SharedOptions,
    queues: Annotated[
        str | None,
        typer.Option(
            "--queues",
            help="Queues to serve, such as turns,gpu (default: as configured, or turns).",
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="Maximum number of concurrent jobs.")
    ] = 10,
    exit_with_stdin: Annotated[
        bool, typer.Option("--while-stdin", help="Exit when standard input closes.")
    ] = False,
) -> None:
    """Run queued turns and steps. On SIGTERM, hand over running jobs to other workers."""
    from capgraph.base.spec import QUEUE_PATTERN
    from capgraph.configs.logger import configure_logging

    level = logging.getLogger("capgraph").getEffectiveLevel()
    configure_logging(min(level, logging.WARNING), json_lines=True)
    settings = shared.settings(is_shared=True)
    queue_names = (
        settings.scale.queues if queues is None else [q.strip() for q in queues.split(",")]
    )
    if not all(re.match(QUEUE_PATTERN, queue) for queue in queue_names):
        raise ConfigurationError(
            f"Invalid queues {','.join(queue_names)!r:.80}.",
            fix="Separate queue names with commas: --queues turns,gpu.",
        )
    raise typer.Exit(
        asyncio.run(_run_worker(shared, settings, queue_names, concurrency, exit_with_stdin))
    )


async def _run_worker(
    shared: SharedOptions,
    settings: Settings,
    queues: list[str],
    concurrency: int,
    exit_with_stdin: bool,
) -> int:
    from capgraph.base.errors import PersistenceError
    from capgraph.scale import Worker

    async with shared.open_client(settings) as (_, client):
        instance = Worker(client, queues, concurrency=concurrency)
        code = _install_signal_handlers(instance)
        if exit_with_stdin:
            _drain_when_stdin_closes()
        running = asyncio.create_task(instance.run())
        ready = asyncio.create_task(instance.ready.wait())
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        if instance.ready.is_set():
            # The parent process reads this line to know that the worker accepts jobs.
            print(f"worker {instance.id} ready", flush=True)  # noqa: T201
        ready.cancel()
        try:
            await running
        except PersistenceError:
            if code[0] == ExitCode.FAILED:
                raise  # after a signal, the worker was to exit anyway
        return code[0]


def _install_signal_handlers(worker: Worker) -> list[int]:
    """Install signal handlers that drain the worker on the first signal and exit on the second.

    Return a list whose only item is the exit code of the process.
    """
    from capgraph.graph.turn_runner import DRAIN_SECONDS

    loop, code = asyncio.get_running_loop(), [int(ExitCode.FAILED)]
    is_stopping = threading.Event()

    def end(number: int, _: object) -> None:
        if code[0] != ExitCode.FAILED:
            os._exit(code[0])
        code[0] = int(ends[number])
        is_stopping.set()
        loop.call_soon_threadsafe(worker.drain)

    def force_exit() -> None:
        is_stopping.wait()
        time.sleep(DRAIN_SECONDS + _GRACE_SECONDS)
        os._exit(code[0])  # the database is unavailable, or a capability blocks the loop

    ends: dict[int, ExitCode] = {
        signal.SIGTERM: ExitCode.DRAINED,
        signal.SIGINT: ExitCode.INTERRUPTED,
    }
    with contextlib.suppress(ValueError):  # only the main thread can handle signals
        for number in ends:
            # Not loop.add_signal_handler(): a capability may block the event loop.
            signal.signal(number, end)
        threading.Thread(target=force_exit, name="capgraph-end", daemon=True).start()
    return code


def _drain_when_stdin_closes() -> None:
    """Drain the worker when standard input closes, which means that the parent process ended."""
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()

    def handle_input() -> None:
        if not os.read(stdin, 1024):
            loop.remove_reader(stdin)
            os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(stdin, handle_input)


@app.command("workers")
@with_shared_options("config", "db", "engine", "temporal", "as_json")
def workers(
    shared: SharedOptions,
    poison: Annotated[
        bool,
        typer.Option(
            "--poison", help="List the turns that failed because they ended their workers."
        ),
    ] = False,
) -> None:
    """List live workers and their jobs, followed by waiting jobs."""
    from capgraph.scale import list_workers
    from capgraph.stores import Persistence

    if poison:
        _print_poison_runs(shared)
        return

    async def read(engine: Any, saver: Any) -> tuple[list[dict[str, Any]], Mapping[str, int]]:
        rows = Persistence.of(saver).tables
        assert rows is not None  # shared databases have tables
        return [asdict(one) for one in await list_workers(rows)], await engine.count_waiting()

    live_workers, waiting = shared.run_with_engine(read)
    data = {"workers": live_workers, "waiting": dict(waiting)} if shared.as_json else None
    rows = [(one["id"], ",".join(one["queues"]), one["running"]) for one in live_workers]
    print_rows(("worker", "queues", "running"), rows, empty_message="No live workers.", data=data)
    for queue, number in waiting.items() if data is None else ():
        print_text(f"{number} waiting for {queue}")


def _print_poison_runs(shared: SharedOptions) -> None:
    from capgraph.stores import Persistence

    max_losses = shared.settings().scale.max_losses

    async def read(_: Any, saver: Any) -> list[LoggedRun]:
        log = Persistence.of(saver).open_run_log()
        try:
            return await log.poison_runs(max_losses)
        finally:
            log.close()

    runs = shared.run_with_engine(read)
    rows = [
        (
            run.run_id,
            run.thread_id,
            run.starts - 1,
            datetime.fromtimestamp(run.ended_at, UTC).isoformat(),
        )
        for run in runs
    ]
    names = ("run", "thread", "losses", "ended")
    data = (
        {"runs": [dict(zip(names, row, strict=True)) for row in rows]} if shared.as_json else None
    )
    print_rows(names, rows, empty_message="No turn ended its workers.", data=data)
