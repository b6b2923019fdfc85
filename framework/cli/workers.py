"""Worker processes of a server."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence

from capgraph.base.errors import PersistenceError


@contextlib.asynccontextmanager
async def worker_processes(count: int, arguments: Sequence[str]) -> AsyncIterator[None]:
    """Context manager that runs worker processes and restarts workers that exit.

    Args:
        count: Number of processes.
        arguments: Command-line arguments for ``capgraph worker``.
    """
    processes: set[asyncio.subprocess.Process] = set()

    async def start() -> asyncio.subprocess.Process:
        # In a separate session: Ctrl-C must reach only the server, which stops its workers.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "capgraph", "worker", "--while-stdin", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        processes.add(process)
        assert process.stdout is not None
        if not await process.stdout.readline():
            raise PersistenceError(
                "A worker process exited before it was ready.", fix="See its error output above."
            )
        return process

    async def restart(process: asyncio.subprocess.Process) -> None:
        while True:
            await process.wait()
            processes.discard(process)
            await asyncio.sleep(1)
            with contextlib.suppress(PersistenceError):
                process = await start()

    restarters: list[asyncio.Task[None]] = []
    try:
        started = await asyncio.gather(*(start() for _ in range(count)))
        restarters += [asyncio.create_task(restart(process)) for process in started]
        yield
    finally:
        for task in restarters:
            task.cancel()
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in processes:
            await process.wait()
