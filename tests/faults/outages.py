"""Faults of the surroundings: each returns what came of it."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.faults.databases import Server
from tests.faults.driver import Killer, Tally, Zygote, judge


def disk_full(killer: Killer, zygote: Zygote, sizes: tuple[int, ...]) -> Tally:
    """Let the database's files grow only so far, then give them room."""
    total = Tally()
    for size in sizes:
        order = killer.order()
        code = zygote.run({**order, "file_limit": size})
        tally = killer.to_the_end(order, tried=1)
        failure = Path(order["folder"]) / "failure"
        if code == 3 and "PersistenceError" not in failure.read_text():
            tally.survived = 0
            tally.notes.append(f"{size}: {failure.read_text()}")
        total += tally
    return total


def postgres_gone(killer: Killer, zygote: Zygote, server: Server, seconds: float) -> Tally:
    """Stop the server in the middle of a run; the run waits for it."""
    order = killer.order(pause=0.15)

    def outage() -> None:
        _wait_for_an_effect(Path(order["folder"]))
        server.stop()
        time.sleep(seconds)
        server.start()

    return _meanwhile(killer, zygote, order, outage)


def sqlite_locked(killer: Killer, zygote: Zygote, seconds: float) -> Tally:
    """Keep the file locked in the middle of a run; the run waits for it."""
    order = killer.order(pause=0.1)

    def outage() -> None:
        path = Path(order["folder"]) / "threads.db"
        _wait_for_an_effect(path.parent)
        with contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
            other.execute("ROLLBACK")

    return _meanwhile(killer, zygote, order, outage)


def _wait_for_an_effect(folder: Path) -> None:
    """Wait until a run is in its midst, or at its end."""
    while not any((folder / name).exists() for name in ("once", "result", "failure")):
        time.sleep(0.01)


def _meanwhile(
    killer: Killer, zygote: Zygote, order: dict[str, Any], outage: Callable[[], None]
) -> Tally:
    with ThreadPoolExecutor(1) as pool:
        zygote.start(order)
        ended = pool.submit(outage)
        code = zygote.wait()
        ended.result()
    folder = Path(order["folder"])
    tally = judge(folder, killer.expected, tried=1)
    if code != 0:
        tally.survived = 0
        tally.notes.append(f"exit {code}: {(folder / 'log').read_text()[-800:]}")
    return tally


def two_at_once(killer: Killer, zygote: Zygote, rounds: int) -> Tally:
    """Let two processes go on with one thread; one wins and the other is told."""
    total = Tally()
    with Zygote() as second:
        second.run(killer.order())  # its imports take longer than a run
        for number in range(rounds):
            for _ in range(20):
                order = killer.order(pause=0.1)
                zygote.run({**order, "fatal": 40 + 5 * number})
                zygote.start(order)
                second.start(order)
                codes = sorted([zygote.wait(), second.wait()])
                if codes != [0, 0]:  # on a busy machine one may be through before the other begins
                    break
            tally = judge(Path(order["folder"]), killer.expected, tried=1)
            failure = Path(order["folder"]) / "failure"
            told = failure.exists() and "is already running" in failure.read_text()
            if codes != [0, 3] or not told:
                tally.survived = 0
                text = failure.read_text() if failure.exists() else ""
                tally.notes.append(f"two at once: exits {codes}, {text}")
            total += tally
    return total


def clock_moved(killer: Killer, zygote: Zygote, moves: tuple[float, ...]) -> Tally:
    """Kill, set the clock back or ahead, go on; again and again."""
    order = killer.order()
    tried = 0
    for number, move in enumerate(moves):
        fatal = 40 + 7 * number
        tried += zygote.run({**order, "fatal": fatal, "clock": move}) == -signal.SIGKILL
    return killer.to_the_end(order, tried)


def killed(killer: Killer, instants: Iterator[int], seconds: float) -> Tally:
    """Kill at one instant after the other, for so many seconds at most."""
    total, end = Tally(), time.monotonic() + seconds
    for instant in instants:
        if time.monotonic() > end:
            break
        total += killer.at_instants(instant)
    return total
