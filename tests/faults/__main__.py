"""The long form: ``python -m tests.faults --seed N --kills M`` prints a table for each saver."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults import outages
from tests.faults.databases import postgres, sqlite_url
from tests.faults.driver import Killer, Tally, Zygote

Rows = list[tuple[str, str, Tally, float]]


def main() -> int:
    """Try every fault; returns 1 when an effect was lost or repeated, or a run did not end."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=200, help="random kills for each saver")
    parser.add_argument("--saver", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--seconds", type=float, default=600, help="most time for one kind of kill")
    given = parser.parse_args()
    rows: Rows = []
    with tempfile.TemporaryDirectory(prefix="capgraph-faults-") as name, Zygote() as zygote:
        folder, rng = Path(name), random.Random(given.seed)
        if given.saver in {"sqlite", "both"}:
            _sqlite(folder / "sqlite", zygote, rng, given, rows)
        if given.saver in {"postgres", "both"}:
            _postgres(folder / "postgres", zygote, rng, given, rows)
    return _print(rows, given.seed)


def _sqlite(
    folder: Path, zygote: Zygote, rng: random.Random, given: argparse.Namespace, rows: Rows
) -> None:
    killer = Killer(zygote, sqlite_url(Path("{folder}/threads.db")), folder, rng)
    _kills("SQLite", killer, rng, given, rows)
    sizes = tuple(rng.randrange(20_000, 400_000) for _ in range(12))
    _row(rows, "SQLite", "disk full", lambda: outages.disk_full(killer, zygote, sizes))
    _row(rows, "SQLite", "locked for 5 s", lambda: outages.sqlite_locked(killer, zygote, 5))
    _shared("SQLite", killer, zygote, rows)


def _postgres(
    folder: Path, zygote: Zygote, rng: random.Random, given: argparse.Namespace, rows: Rows
) -> None:
    with postgres() as server:
        killer = Killer(zygote, server.database(), folder, rng)
        _kills("PostgreSQL", killer, rng, given, rows)
        gone = lambda: outages.postgres_gone(killer, zygote, server, 5)  # noqa: E731
        _row(rows, "PostgreSQL", "gone for 5 s", gone)
        _shared("PostgreSQL", killer, zygote, rows)


def _kills(
    saver: str, killer: Killer, rng: random.Random, given: argparse.Namespace, rows: Rows
) -> None:
    instants = list(range(1, killer.instants + 1))
    rng.shuffle(instants)
    every = lambda: outages.killed(killer, iter(instants), given.seconds)  # noqa: E731
    _row(rows, saver, "killed at each instant", every)

    def randomly() -> Tally:
        total, end = Tally(), time.monotonic() + given.seconds
        while total.tried < given.kills and time.monotonic() < end:
            total += killer.at_random(min(4, given.kills - total.tried))
        return total

    _row(rows, saver, "killed at random", randomly)


def _shared(saver: str, killer: Killer, zygote: Zygote, rows: Rows) -> None:
    _row(rows, saver, "two processes at once", lambda: outages.two_at_once(killer, zygote, 5))
    moves = (3600.0, -3600.0, -86400.0, 120.0)
    _row(rows, saver, "clock moved", lambda: outages.clock_moved(killer, zygote, moves))


def _row(rows: Rows, saver: str, fault: str, run: Callable[[], Tally]) -> None:
    began = time.monotonic()
    tally = run()
    rows.append((saver, fault, tally, time.monotonic() - began))
    print(f"{saver}: {fault}: {tally.survived}/{tally.tried}", file=sys.stderr, flush=True)


def _print(rows: Rows, seed: int) -> int:
    head = ("saver", "fault", "tried", "survived", "lost", "repeated", "asked", "seconds")
    shape = "{:<11}{:<24}{:>7}{:>10}{:>6}{:>10}{:>7}{:>9}"
    print(f"seed {seed}")
    print(shape.format(*head))
    for saver, fault, tally, seconds in rows:
        numbers = (tally.tried, tally.survived, tally.lost, tally.repeated, tally.asked)
        print(shape.format(saver, fault, *numbers, f"{seconds:.1f}"))
    for _, fault, tally, _ in rows:
        for note in tally.notes:
            print(f"{fault}: {note}")
    return 0 if all(tally.clean for _, _, tally, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
