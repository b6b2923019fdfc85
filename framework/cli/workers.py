"""What the commands about workers share: an agent whose turns others run."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from framework.base.errors import PersistenceError

if TYPE_CHECKING:
    from configs.settings import Settings
    from framework.cli.agent import Agent
    from framework.scale import Client
    from framework.scale.engine import Engine

T = TypeVar("T")


@contextlib.asynccontextmanager
async def open_client(
    settings: Settings,
    *,
    model: str | None = None,
    db: str | None = None,
    data: Sequence[str] = (),
    engine: str | None = None,
    temporal: str | None = None,
) -> AsyncIterator[tuple[Agent, Client]]:
    """Open an agent and what asks workers for its turns; see :func:`open_agent`.

    Args:
        settings: All settings.
        model: What ``--model`` says.
        db: What ``--db`` says.
        data: What ``--data`` says.
        engine: What ``--engine`` says.
        temporal: What ``--temporal`` says.
    """
    from framework.cli.agent import database_url, open_agent
    from framework.scale.client import check_engine, open_engine

    url = database_url(db, settings)
    check_engine(url, engine or settings.scale.engine)
    async with (
        open_agent(settings, model=model, db=db, data=data) as agent,
        open_engine(url, graph=agent.graph, engine=engine, temporal=temporal) as client,
    ):
        yield agent, client


@contextlib.asynccontextmanager
async def working(count: int, words: Sequence[str]) -> AsyncIterator[None]:
    """Have workers as processes for the length of a block; one that ends is started again.

    Args:
        count: How many.
        words: What each is told, beside ``capgraph worker``.
    """
    processes: set[asyncio.subprocess.Process] = set()

    async def start() -> asyncio.subprocess.Process:
        # In a session of its own: Ctrl-C is for the server, which then ends them.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "framework.cli", "worker", "--while-stdin", *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        processes.add(process)
        assert process.stdout is not None
        if not await process.stdout.readline():
            raise PersistenceError("A worker did not start.", fix="Its message stands above.")
        return process

    async def keep(process: asyncio.subprocess.Process) -> None:
        while True:
            await process.wait()
            processes.discard(process)
            await asyncio.sleep(1)
            with contextlib.suppress(PersistenceError):
                process = await start()

    keeping: list[asyncio.Task[None]] = []
    try:
        begun = await asyncio.gather(*(start() for _ in range(count)))
        keeping += [asyncio.create_task(keep(process)) for process in begun]
        yield
    finally:
        for task in keeping:
            task.cancel()
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in processes:
            await process.wait()


def with_engine(
    config: Path | None,
    db: str | None,
    engine: str | None,
    temporal: str | None,
    work: Callable[[Engine, Any], Awaitable[T]],
) -> T:
    """Open the engine that the options name, without an agent, and do some work with it.

    Args:
        config: What ``--config`` says.
        db: What ``--db`` says.
        engine: What ``--engine`` says.
        temporal: What ``--temporal`` says.
        work: Given the engine and the saver of its threads; what it returns is returned.
    """
    from framework.cli.agent import database_url, read_settings, with_database
    from framework.scale.client import check_engine, connect

    settings = read_settings(config)
    url = database_url(db, settings)
    check_engine(url, engine or settings.scale.engine)

    async def run(saver: Any, _: object) -> T:
        opened = await connect(url, saver, settings.scale, engine=engine, temporal=temporal)
        try:
            return await work(opened, saver)
        finally:
            await opened.close()

    return with_database(config, db, run)
