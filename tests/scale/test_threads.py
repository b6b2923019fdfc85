"""What open_engine promises: turns in order, answers taken once, events by number, stops."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from capgraph.base.errors import (
    ConfigurationError,
    PersistenceError,
    ValidationError,
)
from capgraph.base.ports import Caller
from capgraph.scale import Client, TurnJob, list_workers, open_engine
from capgraph.scale.run_executor import advance
from capgraph.stores import Persistence, list_suspended_threads, list_threads, waiting_questions
from capgraph.stores.run_log import RunLog
from tests.scale import toys
from tests.scale.crew import FILL, READ, VALVE, Crew, step, tank, told

# Notes are read and written in files of the test.
pytestmark = pytest.mark.may_block


@pytest.fixture(autouse=True)
def _notes_are_kept_here(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toys, "LOG", crew.log)
    monkeypatch.setattr(toys, "GATE", crew.gate)


async def test_turns_of_a_thread_run_sequentially(crew: Crew) -> None:
    thread, other = crew.named("t"), crew.named("o")
    found: list[dict[str, Any]] = []

    async def comes_back(client: Client) -> None:
        """Read the thread's events while it runs, and go away after each."""
        while sum(event["type"] == "RUN_FINISHED" for event in found) < 2:
            async for event in client.events(thread, after=found[-1]["seq"] if found else 0):
                found.append(event)
                break

    async with crew.client() as client, crew.client() as other_client, crew.worker() as worker:
        coming_back = asyncio.create_task(comes_back(other_client))
        first = await client.submit(thread, plan=FILL, caller=Caller("ann"))
        second = await client.submit(thread, plan=READ)
        await client.submit(other, plan=READ)
        assert await crew.over(client, other) == ["completed"]
        assert (await client.status(thread)).status == "running"
        crew.gate.touch()
        events = await told(client, thread, 2)
        assert await crew.over(client, thread) == ["completed"]
        numbers = [event["seq"] for event in events]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert [one["runId"] for one in events if one["type"] == "RUN_STARTED"] == [first, second]
        assert all(event["threadId"] == thread for event in events)
        assert events[-1]["result"]["status"] == "completed"
        again = await told(client, thread, 2)
        assert again == events
        # A client that comes back again and again misses nothing.
        await coming_back
        assert found == events
        assert len(found) > 20
        rows = Persistence.of(client.graph.checkpointer).tables
        assert rows is not None
        assert [one.id for one in await list_workers(rows)] == [worker.id]
    assert [line.split()[0] for line in crew.notes() if "f" in line] == ["fill", "filled"]


async def test_outcome_is_readable_after_the_last_event(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = RunLog.finish

    async def late(log: RunLog, run_id: str, status: str) -> None:
        await log.flush()
        await asyncio.sleep(0.5)
        await end(log, run_id, status)

    monkeypatch.setattr(RunLog, "finish", late)
    async with crew.client() as client, crew.worker():
        await client.submit(thread := crew.named("t"), plan=READ)
        await told(client, thread, 1)
        assert (await client.status(thread)).status == "completed"


async def test_answers_are_accepted_once_and_wait_for_a_worker(crew: Crew) -> None:
    thread, other = crew.named("t"), crew.named("o")
    async with crew.client() as client:
        async with crew.worker():
            await client.submit(thread, plan=VALVE)
            await client.submit(other, plan=VALVE)
            question, foreign = await crew.asked(client, thread), await crew.asked(client, other)
            later = await client.submit(thread, plan=READ)
            assert await client.answer(thread, question, {"v": {"decision": "what"}})
            # What does not fit leaves it open; the further turn waits all the while.
            await crew.until(lambda: _asks_again(client, thread))
            assert (await client.log.get(later)).status == "queued"  # type: ignore[union-attr]
            assert (await client.status(thread)).status == "waiting"
        assert len(await waiting_questions(client.graph.checkpointer)) == 2
        question = await crew.asked(client, thread)
        taken = await asyncio.gather(
            client.answer(thread, question, "approve", Caller("ann")),
            client.answer(thread, question, "reject", Caller("bob")),
            client.answer(thread, foreign, "approve"),
            client.answer(crew.named("none"), question, "approve"),
        )
        assert sorted(taken) == [False, False, False, True]
        assert (await client.status(thread)).status == "queued"
        assert not await client.answer(thread, question, "approve")
        async with crew.worker():
            assert await crew.over(client, thread) == ["completed"]
            assert not await client.answer(thread, question, "approve")
            assert await crew.over(client, thread, other) == ["completed", "waiting"]
        # Threads that were saved later hide none that waits.
        assert list(await waiting_questions(client.graph.checkpointer, limit=1)) == [other]
    opened = [line for line in crew.notes() if line.startswith("opened")]
    assert len(opened) == taken[0]


async def _asks_again(client: Client, thread: str) -> bool:
    found = (await client.status(thread)).questions.values()
    return any(one.get("problems") for one in found)


async def test_waiting_and_running_threads_are_stopped(crew: Crew) -> None:
    asks, waits, runs, dead = (crew.named(name) for name in ("a", "w", "r", "d"))
    async with crew.client() as client:
        await client.submit(waits, plan=READ)
        assert (await client.status(waits)).status == "queued"
        await client.stop(waits)
        assert (await client.status(waits)).status == "stopped"
        # No worker lives, and the one that ran it has left its lease behind.
        await client.submit(dead, plan=READ)
        rows: Any = Persistence.of(client.graph.checkpointer).tables
        await rows.run(
            "INSERT INTO capgraph_leases (thread_id, owner, machine, process, beat)"
            " VALUES (?, 'x', 'elsewhere', '1|1', {now} - 2.5)",
            (dead,),
        )
        await client.stop(dead)
        assert (await client.status(dead)).status == "stopped"
        async with crew.worker():
            await client.submit(asks, plan=VALVE)
            await client.submit(runs, plan=FILL)
            await client.submit(runs, plan=READ)
            question = await crew.asked(client, asks)
            await client.stop(asks)
            assert (await client.status(asks)).status == "stopped"
            assert not await client.answer(asks, question, "approve")
            await crew.until(lambda: any(line.startswith("fill") for line in crew.notes()))
            await client.stop(runs)
            assert (await client.status(runs)).status == "stopped"
            assert [run.status for run in await client.log.thread_runs(runs)] == ["stopped"] * 2
            assert "filled" not in crew.notes()
            # What is stopped may be asked anew.
            await client.submit(runs, plan=READ)
            assert await crew.over(client, runs, waits) == ["completed", "stopped"]


async def test_jobs_can_be_lost_duplicated_and_late(crew: Crew) -> None:
    thread = crew.named("t")
    async with crew.client() as client:
        run = await client.submit(thread, plan=READ)
        assert await client.submit(thread, plan=READ, run_id=run) == run
        order = TurnJob(thread, run)
        reports = [await advance(client.graph, order, log=client.log) for _ in range(3)]
        assert [dict(report.statuses) for report in reports] == [{run: "completed"}, {}, {}]
        async with crew.worker():
            await client.engine.submit(order)
            await client.engine.submit(order)
            await client.submit(thread, plan=READ)
            await crew.over(client, thread)
    assert crew.notes() == ["read", "read"]


async def test_invalid_requests_are_rejected_immediately(crew: Crew, tmp_path: Path) -> None:
    async with crew.client() as client:
        for wrong in (
            {},
            {"message": "a", "plan": READ},
            {"message": " "},
            {"plan": {"no": 1}},
            {"plan": [READ]},
            {"message": 5},
            {"message": "a", "caller": 5},
            {"message": "a", "run_id": 5},
        ):
            with pytest.raises(ValidationError):
                await client.submit("t", **wrong)  # type: ignore[arg-type]
        for missing in (client.status("none"), client.stop("none")):
            with pytest.raises(PersistenceError, match="does not exist"):
                await missing
        with pytest.raises(ValidationError, match="The event number"):
            await anext(client.events("t", None))  # type: ignore[arg-type]
        thread = crew.named("t")
        await client.submit(thread, "a", run_id="trigger")
        with pytest.raises(ValidationError, match="belongs to the thread"):
            await client.submit("t", "a", run_id="trigger")
        assert not await client.signal("none", "k")
        assert not await client.log.open_runs("t")
    with pytest.raises(ConfigurationError, match="shared database"):
        async with open_engine(f"sqlite:///{tmp_path / 't.db'}", graph=tank()):
            pass
    with pytest.raises(ConfigurationError, match="The engine 'rabbit' is unknown"):
        async with open_engine(crew.url, graph=tank(), engine="rabbit"):
            pass


async def test_signals_and_times_resume_threads(crew: Crew) -> None:
    event, clock, early = (crew.named(name) for name in ("e", "c", "y"))
    read = step("a", "read_level")
    at = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    async with crew.client() as client:
        async with crew.worker():
            await client.submit(event, plan={"steps": [{**read, "wait_for": "paid"}]})
            await client.submit(clock, plan={"steps": [{**read, "wait_until": at}]})
            assert await crew.over(client, event) == ["waiting"]
            await client.submit(event, plan=READ)
            assert (await client.status(event)).status == "waiting"
            assert not await client.signal(event, "unknown")
            assert await crew.over(client, clock) in (["waiting"], ["completed"])
            await crew.until(lambda: _is_completed(client, clock))
        # It is kept while no worker lives, before its turn has begun, and sent twice it is the same one.
        await client.submit(early, plan={"steps": [{**read, "wait_for": "paid"}]})
        assert not await client.signal(early, "paid")
        assert await client.signal(event, "paid", {"amount": 3}, Caller("ann"))
        await client.signal(event, "paid", {"amount": 3})
        assert (await client.status(event)).status == "queued"
        async with crew.worker():
            assert await crew.over(client, event, early) == ["completed"] * 2
            assert [run.status for run in await client.log.thread_runs(event)].count(
                "completed"
            ) == 2
    assert crew.notes() == ["read"] * 4


async def _is_completed(client: Client, thread: str) -> bool:
    return (await client.status(thread)).status == "completed"


async def test_queued_steps_run_on_workers_of_the_queue(crew: Crew) -> None:
    thread = crew.named("t")
    gpu: Any = {"capabilities": {"fill_tank": {"queue": "gpu"}}}
    crew.gate.touch()
    async with crew.client(**gpu) as client, crew.worker(**gpu):
        await client.submit(thread, plan=FILL, caller="ann")
        await crew.until(lambda: _waits_for(client, "gpu"))
        assert crew.notes() == ["read"]
        assert (await client.status(thread)).status == "running"
        async with crew.worker("gpu", **gpu) as worker:
            assert await crew.over(client, thread) == ["completed"]
            rows = Persistence.of(client.graph.checkpointer).tables
            assert rows is not None
            found = {one.id: one.queues for one in await list_workers(rows)}
            assert found[worker.id] == ["gpu"]
    assert [line.split()[0] for line in crew.notes()] == ["read", "fill", "filled"]


async def test_workers_serving_each_other_do_not_deadlock(crew: Crew) -> None:
    queues: Any = {"capabilities": {"film_tank": {"queue": "a"}, "seal_tank": {"queue": "b"}}}
    steps = [*FILL["steps"], step("m", "film_tank")]
    # Each of the two has a worker for one of its steps, and needs the other's for another one.
    steps[-1]["inputs"] = [{"FILLED": "f"}]
    sealed = {**step("s", "seal_tank"), "inputs": [{"FILLED": "f"}]}
    threads = [crew.named("t"), crew.named("o")]
    async with (
        crew.client(**queues) as client,
        crew.worker("turns", "a", concurrency=1, **queues),
        crew.worker("turns", "b", concurrency=1, **queues),
    ):
        for thread in threads:
            await client.submit(thread, plan={"steps": [*steps, sealed]})
        await crew.until(lambda: "".join(crew.notes()).count("fill") == 2)
        crew.gate.touch()
        assert await crew.over(client, *threads) == ["completed"] * 2


async def test_unreadable_run_fails_without_blocking_others(crew: Crew) -> None:
    broken, lost, good, waits = (crew.named(name) for name in ("broken", "lost", "good", "waits"))
    async with crew.client() as client:
        rows = Persistence.of(client.graph.checkpointer).tables
        assert rows is not None
        async with crew.worker():
            await client.submit(broken, plan=READ)
            await client.submit(waits, plan={"steps": [{**READ["steps"][0], "wait_for": "rain"}]})
            assert await crew.over(client, broken, waits) == ["completed", "waiting"]
        await rows.run("UPDATE checkpoints SET checkpoint = '{{}}'")
        turns = [await client.submit(thread, plan=READ) for thread in (broken, lost)]
        await rows.run(
            "UPDATE capgraph_runs SET request = 'msgpack:wQ==' WHERE run_id = ?", (turns[1],)
        )
        async with crew.worker():
            for thread in (broken, lost):
                end = (await told(client, thread, 1 + (thread == broken)))[-1]
                assert end["type"] == "RUN_ERROR"
                assert {broken: "A checkpoint of", lost: "cannot be read"}[thread] in end["message"]
            await client.submit(good, plan=READ)
            assert await crew.over(client, good) == ["completed"]
            # One that waits is woken once for its event, not again and again.
            await Persistence.of(client.graph.checkpointer).waits.wake_now(waits)
            await told(client, waits, 2)
            assert await list_suspended_threads(client.graph.checkpointer, now=time.time()) == []
            found = [await client.log.get(turn) for turn in turns]
            listed = await list_threads(client.graph.checkpointer)
            assert {(one.thread_id, one.status) for one in listed} >= {
                (broken, "unreadable"),
                (good, "completed"),
            }
    assert [run and run.status for run in found] == ["failed", "failed"]


async def _waits_for(client: Client, queue: str) -> bool:
    return (await client.engine.count_waiting()).get(queue, 0) == 1
