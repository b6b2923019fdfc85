"""A handler of orders that does what an order's name says and writes down what it did.

As a program (``python -m tests.support.scripted_orders ADDRESS NAME FILE``) it is a worker process
on Temporal, whose notes are lines of a file that several may share.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from capgraph.base.errors import ThreadBusyError
from capgraph.scale.jobs import StepJob, TurnJob
from capgraph.scale.temporal import TemporalEngine

LEASE_SECONDS = 3.0


class Scripted:
    """Does runs and steps: ``hold…`` ends when it is let go or drained, ``fail…`` fails at first.

    Attributes:
        name: Stands before every note.
        go: Lets what is held end.
        busy: So often ``busy…`` finds that somebody else has the thread.
        draining: Set when what is held is to be given back.
    """

    def __init__(self, name: str, note: Callable[[str], None]) -> None:
        self.name = name
        self.go = asyncio.Event()
        self.draining = asyncio.Event()
        self.moments: list[tuple[str, float]] = []
        self.most = 0
        self.busy = 0
        self._now = 0
        self._failed: set[str] = set()
        self._note = note

    async def run_turn(self, job: TurnJob) -> None:
        await self._do(job.thread, job.run)

    async def run_step(self, job: StepJob) -> None:
        await self._do(job.queue, job.id)

    async def start_scheduled(self, schedule: str, moment: float) -> None:
        self.moments.append((schedule, moment))
        self._note(f"{self.name} moment {schedule}")

    async def _do(self, place: str, what: str) -> None:
        self._now += 1
        self.most = max(self.most, self._now)
        self._note(f"{self.name} begins {place} {what}")
        try:
            if what.startswith("hold"):
                await self._held()
            if what.startswith("block"):
                time.sleep(3 * LEASE_SECONDS)
            if what.startswith("busy") and self.busy:
                self.busy -= 1
                raise ThreadBusyError("Somebody else has it.")
            if what.startswith("fail") and what not in self._failed:
                self._failed.add(what)
                raise ValueError(f"The secret of {what}.")
            await asyncio.sleep(0.01)
        except BaseException as exc:
            self._note(f"{self.name} fails {place} {what} {type(exc).__name__}")
            raise
        finally:
            self._now -= 1
        self._note(f"{self.name} ends {place} {what}")

    async def _held(self) -> None:
        waits = [asyncio.create_task(one.wait()) for one in (self.go, self.draining)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
        if not self.go.is_set():
            raise InterruptedError("The worker is drained.")


async def _main(address: str, name: str, file: str) -> None:
    path = Path(file)

    def note(line: str) -> None:
        with path.open("a") as log:
            log.write(line + "\n")

    worker = Scripted(name, note)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.draining.set)
    loop.add_signal_handler(signal.SIGUSR1, worker.go.set)
    engine = await TemporalEngine.open(address, lease_seconds=LEASE_SECONDS)
    ready = asyncio.Event()
    work = asyncio.create_task(
        engine.serve(
            worker,
            ["turns", "gpu"],
            worker_id=name,
            concurrency=2,
            draining=worker.draining,
            ready=ready,
        )
    )
    await ready.wait()
    note(f"{name} ready")
    await work
    note(f"{name} gone")


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
