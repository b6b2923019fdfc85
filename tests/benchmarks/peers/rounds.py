"""Measures the peers in turns, all in one process."""

from __future__ import annotations

import contextlib
import gc
import sqlite3
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.peers import PEERS, Peer, Run, Tally, Work
from tests.support.network import loopback_only

INSTALL = "not installed: pip install 'capgraph[bench]'"


@dataclass
class Entry:
    """One program under measurement: a peer, with or without what it keeps."""

    peer: Peer
    work: Work
    run: Run
    folder: Path | None = None
    tally: Tally = field(default_factory=Tally)
    seconds: list[float] = field(default_factory=list)
    runs: int = 0

    async def once(self) -> float:
        """Run the request, check what comes out, and return the seconds it took."""
        gc.collect()
        started = time.perf_counter()
        value = await self.run()
        spent = time.perf_counter() - started
        self.runs += 1
        if value != self.work.steps:
            raise AssertionError(f"{self.peer.name} gave {value}, not {self.work.steps}.")
        return spent

    def figures(self) -> dict[str, Any]:
        """Return what was measured, times in seconds per step."""
        low, middle, high = statistics.quantiles(
            [spent / self.work.steps for spent in self.seconds], n=4
        )
        found: dict[str, Any] = {
            "name": self.peer.name,
            "version": self.peer.version(),
            "keeps": self.peer.keeps if self.folder else "",
            "median": middle,
            "low": low,
            "high": high,
            "model_calls": self.tally.calls,
            "prompt_tokens": self.tally.prompt_chars // 4,
            "answer_tokens": self.tally.answer_chars // 4,
        }
        if self.folder:
            _settle(self.folder)
            size = sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
            found["bytes_per_step"] = size / self.runs / self.work.steps
        return found


def _settle(folder: Path) -> None:
    """Bring what still stands in write-ahead logs into the databases, and empty the logs."""
    for file in folder.glob("*.sqlite"):
        with contextlib.closing(sqlite3.connect(file)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def compare(steps: int = 50, rounds: int = 9) -> list[dict[str, Any]]:
    """Run every installed peer in turns and return one row for each program.

    Args:
        steps: Dependent tool calls of one request.
        rounds: Requests of each program whose time is taken; one more before them warms up and
            counts what the model is asked.
    """
    entries: list[Entry] = []
    missing = [peer for peer in PEERS if peer.version() is None]
    async with AsyncExitStack() as stack:
        for peer in PEERS:
            if peer in missing:
                continue
            for keeps in [*([False] if peer.bare else []), *([True] if peer.keeps else [])]:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if keeps else None
                work = Work(steps)
                run = await stack.enter_async_context(peer.prepare(work, folder))
                entries.append(Entry(peer, work, run, folder))
        stack.enter_context(loopback_only())
        for entry in entries:
            entry.work.tally = entry.tally
            await entry.once()
            entry.work.tally = None
        # What all packages loaded is no garbage; without it a collection before each run is short.
        gc.collect()
        gc.freeze()
        stack.callback(gc.unfreeze)
        for _ in range(rounds):
            for entry in entries:
                entry.seconds.append(await entry.once())
        rows = [entry.figures() for entry in entries]
    rows += [{"name": peer.name, "missing": INSTALL} for peer in missing]
    return rows
