"""``capgraph worker`` and ``capgraph workers``: processes that run what others ask for."""

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

app: typer.Typer = typer.Typer()
_GRACE_SECONDS = 5.0
"""So long after its steps have ended, or were to, a worker that was told to end is there at most."""


@app.command("worker")
@with_shared_options("config", "model", "db", "engine", "temporal")
def worker(
    shared: SharedOptions,
    queues: Annotated[
        str | None,
        typer.Option(
            "--queues", help="What to serve, as turns,gpu (default: as configured, else turns)."
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="Most orders at a time.")
    ] = 10,
    exit_with_stdin: Annotated[
        bool, typer.Option("--while-stdin", help="End when standard input does.")
    ] = False,
) -> None:
    """Run turns and steps that others ask for; SIGTERM hands over what runs."""
    from capgraph.base.spec import QUEUE_PATTERN
    from capgraph.configs.logger import configure_logging

    level = logging.getLogger("capgraph").getEffectiveLevel()
    configure_logging(min(level, logging.WARNING), json_lines=True)
    settings = shared.settings(is_shared=True)
    served = settings.scale.queues if queues is None else [q.strip() for q in queues.split(",")]
    if not all(re.match(QUEUE_PATTERN, queue) for queue in served):
        raise ConfigurationError(
            f"{','.join(served)!r:.80} names no queues.",
            fix="Name them with commas: --queues turns,gpu.",
        )
    raise typer.Exit(
        asyncio.run(_run_worker(shared, settings, served, concurrency, exit_with_stdin))
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
        one = Worker(client, queues, concurrency=concurrency)
        code = _install_signal_handlers(one)
        if exit_with_stdin:
            _drain_when_stdin_closes()
        running = asyncio.create_task(one.run())
        ready = asyncio.create_task(one.ready.wait())
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        if one.ready.is_set():
            # Whoever started the process reads this line to know that it takes orders.
            print(f"worker {one.id} ready", flush=True)  # noqa: T201
        ready.cancel()
        try:
            await running
        except PersistenceError:
            if code[0] == ExitCode.FAILED:
                raise  # otherwise it was to end anyway
        return code[0]


def _install_signal_handlers(worker: Worker) -> list[int]:
    """Drain on the first signal and end at once on the second; returns the exit code to be."""
    from capgraph.graph.turn_runner import DRAIN_SECONDS

    loop, code = asyncio.get_running_loop(), [int(ExitCode.FAILED)]
    asked = threading.Event()

    def end(number: int, _: object) -> None:
        if code[0] != ExitCode.FAILED:
            os._exit(code[0])
        code[0] = int(ends[number])
        asked.set()
        loop.call_soon_threadsafe(worker.drain)

    def last() -> None:
        asked.wait()
        time.sleep(DRAIN_SECONDS + _GRACE_SECONDS)
        os._exit(code[0])  # the database is away, or a capability blocks the loop

    ends: dict[int, ExitCode] = {
        signal.SIGTERM: ExitCode.DRAINED,
        signal.SIGINT: ExitCode.INTERRUPTED,
    }
    with contextlib.suppress(ValueError):  # only the main thread hears signals
        for number in ends:
            # Not the loop's own way: while a capability blocks it, nothing would be heard.
            signal.signal(number, end)
        threading.Thread(target=last, name="capgraph-end", daemon=True).start()
    return code


def _drain_when_stdin_closes() -> None:
    """Drain when standard input ends: whoever started the process has ended, in whatever way."""
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()

    def look() -> None:
        if not os.read(stdin, 1024):
            loop.remove_reader(stdin)
            os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(stdin, look)


@app.command("workers")
@with_shared_options("config", "db", "engine", "temporal", "as_json")
def workers(shared: SharedOptions) -> None:
    """List the workers that live, what they work on, and what waits."""
    from capgraph.scale import list_workers
    from capgraph.stores import Persistence

    async def read(opened: Any, saver: Any) -> tuple[list[dict[str, Any]], Mapping[str, int]]:
        rows = Persistence.of(saver).tables
        assert rows is not None  # a database that processes share has some
        return [asdict(one) for one in await list_workers(rows)], await opened.waiting()

    live, waiting = shared.run_with_engine(read)
    data = {"workers": live, "waiting": dict(waiting)} if shared.as_json else None
    rows = [(one["id"], ",".join(one["queues"]), one["running"]) for one in live]
    print_rows(("worker", "queues", "running"), rows, empty_message="No worker lives.", data=data)
    for queue, number in waiting.items() if data is None else ():
        print_text(f"{number} waiting for {queue}")
