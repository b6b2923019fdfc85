"""What turns cost on workers, beside the same turns in one process on the same database.

``make bench-scale`` starts PostgreSQL and Temporal for itself. First all turns are asked for at
once, which gives what a turn costs and how many a second there are; then turns come one by one, at
half that rate, which gives how long one takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.markdown import replace_results, table
from tests.benchmarks.scale_toys import PLAN

ROOT = Path(__file__).parents[2]
AT_ONCE = 10
LEASE = 30.0
_WARM = 50
"""So many turns each process runs before it is measured: each connection of its pool plans a statement
anew until it has seen it five times, and that is paid once a process, not once a turn."""
_TICKS = os.sysconf("SC_CLK_TCK")
_ONE_NODE = [
    part
    for kind in ("Read", "Write")
    for part in ("--dynamic-config-value", f"matching.numTaskqueue{kind}Partitions=1")
]
"""A queue has several parts for the sake of several nodes; one node hands its orders around in vain."""
_ENDED = (
    "SELECT count(*), count(*) FILTER (WHERE status <> 'completed'), max(ended)"
    " FROM capgraph_runs WHERE ended > 0"
)


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured of one arrangement; times of the processor are in ms a turn.

    Attributes:
        name: What it is.
        rate: Turns a second when there is always something to do.
        median: Seconds from question to end at half that rate.
        p99: The same, of the slowest in a hundred.
        asking: Processor time of whoever asks.
        working: That of the processes that run turns.
        database: That of PostgreSQL.
        engine: That of an engine's own server.
        commits: Transactions of the database a turn.
    """

    name: str
    rate: float
    median: float
    p99: float
    asking: float
    working: float
    database: float
    engine: float
    commits: float


def cpu_of(pid: int, *, tree: bool = False) -> float:
    """Return the seconds of processor that a process has used; a tree with all its children."""
    with suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used = sum(int(one) for one in fields[11 : 15 if tree else 13]) / _TICKS
        if tree:
            for task in Path(f"/proc/{pid}/task").iterdir():
                used += sum(cpu_of(int(one)) for one in (task / "children").read_text().split())
        return used
    return 0.0


class Meter:
    """Reads what a stretch of work uses."""

    def __init__(self, pids: dict[str, list[int]], url: str) -> None:
        self._pids, self._url = pids, url

    def read(self) -> dict[str, float]:
        """Return what was used so far."""
        import psycopg

        with psycopg.connect(self._url) as connection:
            connection.execute("SELECT pg_stat_clear_snapshot()")
            row = connection.execute(
                "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
            ).fetchone()
        assert row is not None
        used = {
            name: sum(cpu_of(pid, tree=name == "database") for pid in pids)
            for name, pids in self._pids.items()
        }
        return {**used, "asking": time.process_time(), "commits": float(row[0])}


# --- one process ----------------------------------------------------------------------------


async def _plain(url: str, turns: int, few: int) -> None:
    from capgraph import build_graph
    from capgraph.configs.settings import load_settings
    from capgraph.stores import open_saver
    from tests.benchmarks import scale_toys

    async with open_saver(url) as saver:
        capabilities = [scale_toys.Value, scale_toys.Begin, scale_toys.Link, scale_toys.Act]
        settings = load_settings(limits={"max_parallel": 1000})
        graph = build_graph(capabilities, checkpointer=saver, settings=settings)

        async def turn(name: str) -> float:
            began = time.perf_counter()
            given = {"messages": [("user", "Go")], "planning_execution_plan": PLAN}
            out = await graph.ainvoke(given, {"configurable": {"thread_id": name}})
            assert out["execution_outcome"]["status"] == "completed", out
            return time.perf_counter() - began

        me = os.getpid()
        for _ in range(_WARM // AT_ONCE):
            await asyncio.gather(*(turn(f"warm{uuid.uuid4()}") for _ in range(AT_ONCE)))
        print("1", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        began, cpu = time.perf_counter(), time.process_time()
        names = iter(range(turns))

        async def some() -> None:
            for name in names:
                await turn(f"t{me}-{name}")

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))
        seconds, used = time.perf_counter() - began, time.process_time() - cpu
        print(json.dumps({"seconds": seconds, "cpu": used}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        took = await _one_by_one(few, turns / seconds / 2, lambda n: turn(f"l{me}-{n}"))
        print(json.dumps(took), flush=True)


async def _one_by_one(count: int, rate: float, ask: Callable[[int], Awaitable[Any]]) -> list[Any]:
    began, asked = time.perf_counter(), []
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        asked.append(asyncio.ensure_future(ask(number)))
    return await asyncio.gather(*asked)


def _in_plain_processes(server: Any, options: Any, count: int) -> Result:
    url = server.database()
    command = [sys.executable, "-m", "tests.benchmarks.scale", "--plain", url]
    command += ["--turns", str(options.turns // count), "--few", str(options.few // count)]
    children = [
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for _ in range(count)
    ]

    def said() -> list[Any]:
        return [json.loads(child.stdout.readline()) for child in children if child.stdout]

    def go_on() -> None:
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")

    meter = Meter({"database": [postmaster(server)]}, url)
    said()
    before = meter.read()
    go_on()
    told = said()
    after = meter.read()
    go_on()
    took = sorted(one for told in said() for one in told)
    for child in children:
        child.communicate()
    turns = options.turns // count * count
    return Result(
        "one process" if count == 1 else f"{count} processes",
        sum(options.turns // count / one["seconds"] for one in told),
        statistics.median(took),
        took[int(len(took) * 0.99)],
        0.0,
        1000 * sum(one["cpu"] for one in told) / turns,
        1000 * (after["database"] - before["database"]) / turns,
        0.0,
        (after["commits"] - before["commits"]) / turns,
    )


def postmaster(server: Any) -> int:
    """Return the process id of PostgreSQL's first process."""
    return int((Path(server._handle.pgdata) / "postmaster.pid").read_text().splitlines()[0])


# --- workers --------------------------------------------------------------------------------


@contextmanager
def _workers(folder: Path, url: str, engine: list[str], count: int) -> Iterator[list[int]]:
    config = folder / "agent.yml"
    config.write_text(
        "modules: [tests.benchmarks.scale_toys]\nlimits: {max_parallel: 1000}\n"
        f"scale: {{lease_seconds: {LEASE}}}\n"
    )
    command = [sys.executable, "-m", "capgraph", "worker", "--config", str(config)]
    command += ["--db", url, "--concurrency", str(AT_ONCE), *engine]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LANGSMITH_TRACING": "false"}
    with (folder / "log").open("ab") as log:
        running = [
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log)
            for _ in range(count)
        ]
    try:
        for one in running:
            assert one.stdout is not None
            if not one.stdout.readline().startswith(b"worker "):
                raise RuntimeError((folder / "log").read_text()[-2000:])
        yield [one.pid for one in running]
    finally:
        for one in running:
            one.terminate()
        for one in running:
            one.wait()
            assert one.stdout is not None
            one.stdout.close()


async def _on_workers(
    server: Any, folder: Path, name: str, count: int, temporal: Any, options: Any
) -> Result:
    import psycopg

    from capgraph import build_graph
    from capgraph.scale import open_engine
    from tests.benchmarks import scale_toys

    url = server.database()
    engine = ["--engine", name] + (["--temporal", temporal.address] if temporal else [])
    graph = build_graph([scale_toys.Value, scale_toys.Begin, scale_toys.Link, scale_toys.Act])
    address = temporal.address if temporal else None
    opened = open_engine(url, graph=graph, engine=name, temporal=address)
    with _workers(folder, url, engine, count) as pids:
        async with (
            opened as client,
            await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
        ):
            meter = Meter(
                {
                    "working": pids,
                    "database": [postmaster(server)],
                    "engine": [temporal._process.pid] if temporal else [],
                },
                url,
            )

            async def ended(turns: int) -> float:
                # Seldom: whoever asks hears of ends, and need not count.
                while True:
                    row = await (await connection.execute(_ENDED)).fetchone()
                    if row[1]:
                        raise RuntimeError(f"{row[1]} turns did not complete.")
                    if row[0] >= turns:
                        return float(row[2])
                    await asyncio.sleep(1.0)

            # Each worker's connections have seen what they are asked before it is measured.
            for number in range(_WARM * count):
                await client.submit(f"warm{number}", plan=PLAN)
            await ended(_WARM * count)
            await connection.execute("DELETE FROM capgraph_runs")
            before, began = meter.read(), time.time()
            names = iter(range(options.turns))

            async def some() -> None:
                for number in names:
                    await client.submit(f"t{number}", plan=PLAN)

            await asyncio.gather(*(some() for _ in range(4)))
            seconds = await ended(options.turns) - began
            after = meter.read()
            rate = options.turns / seconds
            await _one_by_one(
                options.few, rate / 2, lambda number: client.submit(f"l{number}", plan=PLAN)
            )
            await ended(options.turns + options.few)
            rows = await connection.execute(
                "SELECT ended - opened FROM capgraph_runs WHERE thread_id LIKE 'l%' ORDER BY 1"
            )
            took = [float(row[0]) for row in await rows.fetchall()]
    each = {key: 1000 * (after[key] - before[key]) / options.turns for key in before}
    return Result(
        f"{'Temporal' if temporal else 'PostgreSQL'}, {count} worker{'s' * (count > 1)}",
        rate,
        statistics.median(took),
        took[int(len(took) * 0.99)],
        each["asking"],
        each["working"],
        each["database"],
        each["engine"],
        each["commits"] / 1000,
    )


# --- what it says ---------------------------------------------------------------------------


def told(results: list[Result], options: Any) -> str:
    """Return the figures as text of the guide."""
    heading = ["", "turns/s", "median", "99th", "asks", "works", "database", "engine"]
    heading += ["beside one", "beside as many"]
    rows = [
        [
            one.name,
            f"{one.rate:.0f}",
            f"{1000 * one.median:.0f} ms",
            f"{1000 * one.p99:.0f} ms",
            *(f"{ms:.1f}" for ms in (one.asking, one.working, one.database, one.engine)),
            *(f"{share:.2f}" for share in _beside(one, results)),
        ]
        for one in results
    ]
    cores = os.cpu_count()
    busy = "" if options.busy is None else f" {options.busy}"
    kept = "in a file" if options.temporal_file else "in memory, as it does unless told otherwise"
    if any(one.engine for one in results):
        busy += (
            f" Temporal's server is its development server on one node; it keeps what it knows {kept},"
            " and a queue in one part."
        )
    parts = [
        f"{options.turns:,} turns of six steps, one of them with an effect, on {cores} cores that workers,"
        f" database and whoever asks share ({platform.machine()}).{busy} Median and 99th are from question"
        " to end, at half of the turns a second that go through. The columns behind them are ms of"
        " processor a turn; the last two are their sum beside that of one process without workers, and"
        " beside that of as many: on a machine that is busy all over, the same work takes more of them.",
        table(heading, rows),
    ]
    parts += [_on_paper(one) for one in results if one.name.endswith(" 1 worker")]
    return "\n\n".join(parts)


def _all(one: Result) -> float:
    return one.asking + one.working + one.database + one.engine


def _beside(one: Result, results: list[Result]) -> tuple[float, float]:
    """Return the processor time beside that of one process, and beside as many processes."""
    count = re.search(r"\d+", one.name)
    plain = {result.name: _all(result) for result in results}
    many = plain.get(f"{count[0]} processes" if count else "", plain["one process"])
    return _all(one) / plain["one process"], _all(one) / many


def _on_paper(one: Result) -> str:
    name = one.name.partition(",")[0]
    server = f" Temporal's server {one.engine:.0f} cores," if one.engine else ""
    first = (
        "Temporal's server, whose single node on SQLite this is: it needs its own cluster first"
        if one.engine > one.database
        else "the database: workers are added machine by machine, it is one"
    )
    return (
        f"**1,000 turns a second on {name}, on paper.** Workers need {one.working:.0f} cores,"
        f" whoever asks {one.asking:.0f},{server} the database {one.database:.0f} cores and"
        f" {1000 * one.commits:,.0f} commits a second. What gives way first is {first}. Several"
        " databases, each with its workers and its share of the threads, go past that."
    )


async def _measured(options: Any) -> AsyncIterator[Result]:
    from tests.faults.databases import postgres
    from tests.support.temporal_server import Server as Temporal

    with postgres() as server, tempfile.TemporaryDirectory(prefix="capgraph-scale-") as name:
        folder = Path(name)
        for count in sorted({1, *options.workers}):
            yield _in_plain_processes(server, options, count)
        for engine in options.engines:
            temporal = None
            if engine == "temporal":
                temporal = Temporal(folder, *_ONE_NODE, in_memory=not options.temporal_file)
                temporal.start()
            try:
                for count in options.workers:
                    yield await _on_workers(server, folder, engine, count, temporal, options)
            finally:
                if temporal is not None:
                    temporal.stop()


async def _run(options: Any) -> None:
    results = []
    async for one in _measured(options):
        results.append(one)
        print(
            f"{one.name:<24}{one.rate:8.1f} turns/s   median {1000 * one.median:7.0f} ms"
            f"   99th {1000 * one.p99:7.0f} ms   ms a turn: asks {one.asking:.1f},"
            f" works {one.working:.1f}, database {one.database:.1f}, engine {one.engine:.1f};"
            f" {one.commits:.0f} commits; CPU x"
            f" {' and '.join(f'{share:.2f}' for share in _beside(one, results))}",
            flush=True,
        )
    if options.docs:
        replace_results(options.docs, told(results, options))


def main() -> None:
    """Measure, print, and write into the guide if asked to."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scale", description=__doc__)
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--few", type=int, default=200, help="turns that come one by one")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument(
        "--engines", nargs="*", choices=["postgres", "temporal"], default=["postgres", "temporal"]
    )
    parser.add_argument("--docs", type=Path, help="file whose results are replaced")
    parser.add_argument(
        "--temporal-file", action="store_true", help="have Temporal's server write to a file"
    )
    parser.add_argument("--busy", help="what is to be said of the machine")
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        asyncio.run(_plain(options.plain, options.turns, options.few))
    else:
        asyncio.run(_run(options))


if __name__ == "__main__":
    main()
