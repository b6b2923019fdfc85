"""Workers as real processes: what is typed, what signals do, kills, outages, rolling restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capgraph.serve.tokens import issue_token
from tests.scale.crew import BLOCK, FILL, LEASE, VALVE, Crew, step, told
from tests.support.sweeps import LONG, SEED

# Notes are read and written in files of the test.
pytestmark = [pytest.mark.may_block, pytest.mark.service]


long = pytest.mark.skipif(not LONG, reason="takes long (LONG_TESTS=1)")


def _until(holds: Any) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_worker_commands(crew: Crew) -> None:
    worker = crew.launch("--queues", "turns,gpu", CAPGRAPH_MACHINE="here")
    thread = crew.named("v")
    turn = crew.run("ask", "--submit", "--thread", thread, "--plan", crew.plan(VALVE))
    assert len(turn.split()) == 1
    name = crew.ready(worker)
    assert name.startswith("here-")
    found = json.loads(crew.run("workers", "--json"))
    assert [(one["id"], one["queues"]) for one in found["workers"]] == [(name, ["turns", "gpu"])]
    assert crew.run("workers").startswith(name)
    _until(lambda: thread in crew.run("approvals", "waiting", "--json", engine=False))
    assert "open_valve" in crew.run("approvals", engine=False)
    crew.run("ask", "--submit", "--thread", thread, "--yes")
    _until(lambda: f"{thread}\tcompleted" in crew.run("threads", "list", engine=False))
    assert json.loads(crew.run("workers", "--json"))["waiting"] == {}
    assert "no open question" in crew.run("ask", "--submit", "--thread", thread, "--yes", code=2)
    crew.run("ask", "--submit", "--thread", f"{thread}2", "--plan", crew.plan(VALVE))
    _until(lambda: "open_valve" in crew.run("approvals", engine=False))
    assert f"thread {thread}2\n" in crew.run("approvals", "--submit", text="what?\napprove\n")
    _until(lambda: len([line for line in crew.notes() if line.startswith("opened")]) == 2)
    assert len(crew.run("chat", "--submit", text="What level?\nAnd now?\n").splitlines()) == 2
    schedule = crew.run("schedule", "add", "0 7 * * *", "What is the level?")
    (kept,) = json.loads(crew.run("schedule", "list", "--json"))
    assert (kept["id"], kept["cron"]) == (schedule, "0 7 * * *")
    crew.run("schedule", "remove", schedule)
    assert crew.run("schedule", "list") == ""
    assert "does not exist" in crew.run("schedule", "remove", schedule, code=2)
    assert crew.end(worker) == 143
    assert json.loads(crew.run("workers", "--json"))["workers"] == []


def test_worker_commands_reject_invalid_arguments(crew: Crew, tmp_path: Any) -> None:
    if crew.engine != "postgres":
        pytest.skip("the options are the same for both engines")
    for wrong in (
        ["--queues", "turns,,gpu"],
        ["--queues", "turns gpu"],
        ["--concurrency", "0"],
        ["--engine", "rabbit"],
    ):
        crew.run("worker", *wrong, code=2, engine=False)
    crew.url, url = f"{crew.url}&port=1", crew.url
    assert "cannot be reached" in crew.run("worker", code=1)
    crew.url = str(tmp_path / "threads.db")
    assert "PostgreSQL" in crew.run("ask", "--submit", "Hello?", code=2)
    crew.url = url


@pytest.mark.timeout(3000 if LONG else 300)
async def test_turn_survives_its_worker(crew: Crew) -> None:
    """SIGKILL at any moment: an effect at most once, and the answer is the undisturbed one."""
    dice = random.Random(SEED)
    crew.gate.touch()
    crew.start(CAPGRAPH_MACHINE="stays")
    async with crew.client() as client:
        for number in range(20 if LONG else 1):
            victim = crew.start(CAPGRAPH_MACHINE=f"dies-{number}")
            threads = [crew.named(f"{number}-{one}") for one in range(4)]
            for thread in threads:
                await client.submit(thread, plan=VALVE if thread == threads[0] else FILL)
            await asyncio.sleep(dice.random() * 0.8)
            if dice.random() < 0.5:
                question = await crew.asked(client, threads[0])
                assert await client.answer(threads[0], question, "approve")
                await asyncio.sleep(dice.random() * 0.1)
            victim.kill()
            began = time.monotonic()
            while await crew.over(client, *threads) != ["completed"] * 4:
                for thread in threads:
                    for question, asked in (await client.status(thread)).questions.items():
                        # One that had begun is asked about; it is not run again by itself.
                        unknown = any(one.get("unknown") for one in asked["steps"])
                        said = "skip" if unknown else "approve"
                        await client.answer(thread, question, said)
                await asyncio.sleep(0.05)
                assert time.monotonic() < began + 60, crew.errors()
            opened = [line for line in crew.notes() if line.startswith("opened")]
            assert len(opened) <= number + 1


_WATCH = """
CREATE TABLE seen (what text, at float8 DEFAULT extract(epoch FROM clock_timestamp()));
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO seen (what) VALUES (TG_ARGV[0]); RETURN NULL; END $$;
CREATE TRIGGER taken AFTER UPDATE OF owner ON capgraph_leases FOR EACH ROW
    WHEN (NEW.owner <> OLD.owner) EXECUTE FUNCTION see('taken');
CREATE TRIGGER beat AFTER UPDATE ON {beats} FOR EACH ROW EXECUTE FUNCTION see('beat');
"""


async def test_turn_is_taken_over_within_two_leases(crew: Crew) -> None:
    """Measured by the other worker's own signs of life, however slow the machine is."""
    import psycopg

    tables = {
        "postgres": ("procrastinate_workers", LEASE / 6),
        "temporal": ("capgraph_workers", LEASE / 2),
    }
    beats, seconds = tables[crew.engine]
    victim = crew.start(CAPGRAPH_MACHINE="dies")
    async with crew.client() as client:
        await client.submit(crew.named("t"), plan=FILL)
        await crew.until(lambda: len(crew.notes()) == 2)
        await asyncio.to_thread(crew.start, CAPGRAPH_MACHINE="stays")
        async with await psycopg.AsyncConnection.connect(crew.url, autocommit=True) as conn:
            await conn.execute(_WATCH.format(beats=beats).encode())
            victim.kill()
            await conn.execute("INSERT INTO seen (what) VALUES ('killed')")
            await crew.until(lambda: len(crew.notes()) == 3)
            crew.gate.touch()
            found = await conn.execute("SELECT what FROM seen ORDER BY at")
            seen = [what for (what,) in await found.fetchall()]
        assert await crew.over(client, crew.named("t")) == ["completed"]
    seen = seen[seen.index("killed") + 1 : seen.index("taken")]
    assert seen == ["beat"] * len(seen)
    assert len(seen) <= 2 * LEASE / seconds


async def test_rolling_restart_fails_no_turn(crew: Crew) -> None:
    crew.gate.touch()
    working = [crew.start(CAPGRAPH_MACHINE=f"m{n}") for n in range(2)]
    async with crew.client() as client:
        threads = [crew.named(f"t{number}") for number in range(200 if LONG else 12)]

        async def ask() -> None:
            for thread in threads:
                await client.submit(thread, plan=FILL)
                await asyncio.sleep(0.05)

        asking = asyncio.create_task(ask())
        for old in working:
            new = await asyncio.to_thread(crew.start, CAPGRAPH_MACHINE="new")
            assert await asyncio.to_thread(crew.end, old) == 143
            assert new.poll() is None
        await asking
        assert set(await crew.over(client, *threads)) == {"completed"}
    assert crew.notes().count("filled") == len(threads)


@long
async def test_sigterm_drains_and_a_second_one_exits(crew: Crew) -> None:
    one = crew.start()
    async with crew.client() as client:
        thread = crew.named("t")
        await client.submit(thread, plan=FILL)
        await crew.until(lambda: len(crew.notes()) == 2)
        one.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert one.poll() is None  # the step may end
        one.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(one.wait, 60) == 143
        crew.gate.touch()
        await asyncio.to_thread(crew.start)
        assert await crew.over(client, thread) == ["completed"]


async def test_worker_with_blocked_loop_handles_signals(crew: Crew) -> None:
    if crew.engine != "postgres":
        pytest.skip("no engine is asked")
    one = crew.start(TOY_BLOCK="600")
    async with crew.client() as client:
        await client.submit(crew.named("t"), plan=BLOCK)
        await crew.until(lambda: len(crew.notes()) == 2)
        for _ in range(2):
            one.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.1)
        assert await asyncio.to_thread(one.wait, 60) == 143


@long
async def test_blocking_step_keeps_its_thread(crew: Crew) -> None:
    working = [
        crew.launch(CAPGRAPH_MACHINE=f"m{number}", TOY_BLOCK=str(3 * LEASE)) for number in range(2)
    ]
    for worker in working:
        await asyncio.to_thread(crew.ready, worker)
    async with crew.client() as client:
        await client.submit(crew.named("t"), plan=BLOCK)
        assert await crew.over(client, crew.named("t")) == ["completed"]
    assert [line.split()[0] for line in crew.notes()] == ["read", "block", "blocked"]


@long
async def test_database_outage_is_survived(crew: Crew) -> None:
    if crew.engine != "postgres" and not LONG:
        pytest.skip("LONG_TESTS=1 tries both engines")
    crew.start()
    async with crew.client() as client:
        threads = [crew.named(f"t{number}") for number in range(6)]
        for thread in threads[:3]:
            await client.submit(thread, plan=FILL)
        await crew.until(lambda: len([x for x in crew.notes() if x.startswith("fill ")]) == 3)
        await asyncio.to_thread(crew.server.stop)
        crew.gate.touch()
        await asyncio.sleep(20 if LONG else 1.5)
        await asyncio.to_thread(crew.server.start)
        for thread in threads[3:]:
            await client.submit(thread, plan=FILL)
        assert set(await crew.over(client, *threads)) == {"completed"}
    assert crew.notes().count("filled") == len(threads)


async def test_database_outage_during_a_remote_step(crew: Crew) -> None:
    if crew.engine != "postgres" and not LONG:
        pytest.skip("LONG_TESTS=1 tries both engines")
    with (crew.folder / "agent.yml").open("a") as config:
        config.write("capabilities: {fill_tank: {queue: gpu}, seal_tank: {queue: gpu}}\n")
    crew.start()
    crew.start("--queues", "gpu")
    async with crew.client() as client:
        thread = crew.named("t")
        sealed = {**step("s", "seal_tank"), "inputs": [{"FILLED": "f"}]}
        await client.submit(thread, plan={"steps": [*FILL["steps"], sealed]})
        await crew.until(lambda: len(crew.notes()) == 2)
        await asyncio.to_thread(crew.server.stop)
        await asyncio.sleep(0.5)
        crew.gate.touch()  # it ends while nobody can be told of it
        await asyncio.sleep(30 if LONG else 1.5)
        await asyncio.to_thread(crew.server.start)
        assert await crew.over(client, thread) == ["completed"]
    assert [line.split()[0] for line in crew.notes()] == ["read", "fill", "filled", "sealed"]


async def test_due_time_of_a_schedule_starts_one_turn(crew: Crew) -> None:
    if crew.engine != "postgres":
        pytest.skip("moments of Temporal come by its own clock; see test_temporal.py")
    crew.start()
    crew.start()
    import psycopg

    schedule = await asyncio.to_thread(crew.run, "schedule", "add", "0 7 1 1 *", "What level?")
    async with crew.client() as client:
        for _ in range(2):  # the same moment comes twice
            async with await psycopg.AsyncConnection.connect(crew.url, autocommit=True) as conn:
                await conn.execute(
                    "INSERT INTO procrastinate_jobs (queue_name, task_name, lock, args)"
                    " VALUES ('turns', 'capgraph.scheduled', NULL, %s::jsonb)",
                    (json.dumps({"schedule": schedule, "moment": 1e9}),),
                )
        thread = f"{schedule}-20010909T014640"
        await crew.until(lambda: client.log.thread_runs(thread))
        assert await crew.over(client, thread) == ["completed"]
        assert len(await client.log.thread_runs(thread)) == 1


@long
@contextlib.contextmanager
def serving(crew: Crew, tokens: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = crew._command(["serve", "--workers", "1", "--port", "0", *crew._how()])
    with (crew.folder / "errors").open("a") as errors:
        server = subprocess.Popen(
            [*command, "--auth", str(tokens)],
            env=crew._environment({}),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert server.stdout is not None
    line = server.stdout.readline()
    assert line.startswith("serving"), crew.errors()
    try:
        yield server, line.split()[1]
    finally:
        server.kill()
        server.wait(60)
        server.stdout.close()


def test_workers_exit_with_their_server(crew: Crew) -> None:
    issue_token(tokens := crew.folder / "tokens.json", "ann")
    with serving(crew, tokens):
        assert len(json.loads(crew.run("workers", "--json"))["workers"]) == 1
    _until(lambda: json.loads(crew.run("workers", "--json"))["workers"] == [])


def test_server_turns_run_on_workers(crew: Crew) -> None:
    token = issue_token(tokens := crew.folder / "tokens.json", "ann")
    with serving(crew, tokens) as (server, address):
        _turn_of_a_server(crew, server, address, token)


def _turn_of_a_server(crew: Crew, server: subprocess.Popen[str], address: str, token: str) -> None:
    def ask(path: str, body: Any = None) -> Any:
        head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(
            urllib.request.Request(f"{address}api/{path}", data, head)
        ) as r:
            return json.load(r)

    thread = ask("threads", {})["thread_id"]
    run = ask(f"threads/{thread}/runs", {"plan": FILL})["run_id"]
    _until(lambda: len(crew.notes()) == 2)
    assert ask(f"runs/{run}")["status"] == "running"
    assert crew.notes()[1] != f"fill {server.pid}"
    crew.gate.touch()
    _until(lambda: ask(f"runs/{run}")["status"] == "completed")
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0
    assert json.loads(crew.run("workers", "--json"))["workers"] == []


@long
async def test_frozen_worker_loses_its_thread_and_continues(crew: Crew) -> None:
    frozen = crew.start(CAPGRAPH_MACHINE="a")
    async with crew.client() as client:
        thread, later = crew.named("t"), crew.named("l")
        await client.submit(thread, plan=FILL)
        await crew.until(lambda: len(crew.notes()) == 2)
        frozen.send_signal(signal.SIGSTOP)
        other = await asyncio.to_thread(crew.start, CAPGRAPH_MACHINE="b")
        await crew.until(lambda: len(crew.notes()) == 3)
        crew.gate.touch()
        assert await crew.over(client, thread) == ["completed"]
        events = await told(client, thread, 1)
        frozen.send_signal(signal.SIGCONT)
        await asyncio.sleep(LEASE)
        assert await told(client, thread, 1) == events
        assert [run.status for run in await client.log.thread_runs(thread)] == ["completed"]
        assert await asyncio.to_thread(crew.end, other) == 143
        await client.submit(later, plan=FILL)
        assert await crew.over(client, later) == ["completed"]
        assert await asyncio.to_thread(crew.end, frozen) == 143
