"""Workers as processes of a server."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence

from capgraph.base.errors import PersistenceError


@contextlib.asynccontextmanager
async def worker_processes(count: int, arguments: Sequence[str]) -> AsyncIterator[None]:
    """Have workers as processes for the length of a block; one that ends is started again.

    Args:
        count: How many.
        arguments: What each is told, beside ``capgraph worker``.
    """
    processes: set[asyncio.subprocess.Process] = set()

    async def start() -> asyncio.subprocess.Process:
        # In a session of its own: Ctrl-C is for the server, which then ends them.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "capgraph", "worker", "--while-stdin", *arguments),
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
