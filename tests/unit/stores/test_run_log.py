"""Runs and their events: numbered, written before anybody hears of them, bounded, forgotten."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from capgraph.base.errors import PersistenceError
from capgraph.stores import Persistence, open_saver, run_log
from capgraph.stores.run_log import LoggedRun, RunLog

KEY = "0123456789abcdef"


@pytest.fixture(params=["memory", "sqlite", "encrypted"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    if request.param == "memory":
        yield InMemorySaver()
        return
    secret = KEY if request.param == "encrypted" else None
    async with open_saver(f"sqlite:///{tmp_path / 't.db'}", encryption_key=secret) as opened:
        yield opened


async def followed(log: RunLog, run_id: str, after: int = 0) -> list[tuple[int, str]]:
    return [line async for page in log.follow(run_id, after) for line in page]


async def test_runs_that_were_followed_leave_nothing_in_memory(tmp_path: Path) -> None:
    def events() -> int:
        gc.collect()
        return sum(isinstance(one, asyncio.Event) for one in gc.get_objects())

    async with open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver:
        log, other = Persistence.of(saver).open_run_log(), Persistence.of(saver).open_run_log()

        async def follow(name: str) -> None:
            await log.create(LoggedRun(name, "t", "ann", request={"message": "Hi"}))
            log.append_events(name, [{"n": 1}])
            await log.finish(name, "completed")
            for one in (log, other):
                assert len(await followed(one, name)) == 1

        await follow("first")
        before = events()
        for number in range(20):
            await follow(f"r{number}")
        assert events() <= before
        other.close()
        log.close()


async def test_events_are_numbered_and_read_by_all_listeners(saver: Any) -> None:
    log = Persistence.of(saver).open_run_log()
    await log.create(LoggedRun("r", "t", "ann", request={"message": "Hi"}))
    early = asyncio.create_task(followed(log, "r"))
    for number in range(1000):
        log.append_events("r", [{"n": number, "text": "é\u2028\n"}])
        if number % 100 == 0:
            await asyncio.sleep(0)
    await log.finish("r", "completed")
    whole = await early
    assert [seq for seq, _ in whole] == [*range(1, 1001)]
    assert all("\n" not in text for _, text in whole)
    assert await followed(log, "r") == whole
    assert await followed(log, "r", 997) == whole[997:]
    assert await followed(log, "r", 5000) == []
    again = Persistence.of(saver).open_run_log()
    found = await log.get("r")
    assert found is not None
    assert (found.status, found.request, found.is_open) == ("completed", {"message": "Hi"}, False)
    if not isinstance(saver, InMemorySaver):
        assert await followed(again, "r", 3) == whole[3:]
    again.close()
    log.close()


async def test_events_in_quick_succession_share_a_row(tmp_path: Path) -> None:
    async with open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver:
        log, rows = Persistence.of(saver).open_run_log(), Persistence.of(saver).tables
        assert rows is not None
        await log.create(LoggedRun("r", "t", "ann", request={"message": "Hi"}))
        for number in range(30):
            log.append_events("r", [{"n": number}])
            await asyncio.sleep(0)
        await log.finish("r", "completed")
        _, found = await rows.run("SELECT seq FROM capgraph_run_events")
        assert found == [(30,)]
        other = Persistence.of(saver).open_run_log()
        assert [seq for seq, _ in await followed(other, "r", 10)] == [*range(11, 31)]
        other.close()
        log.close()


async def test_a_listener_that_sees_the_end_finds_the_run_ended(saver: Any) -> None:
    log, other = Persistence.of(saver).open_run_log(), Persistence.of(saver).open_run_log()
    await log.create(LoggedRun("r", "t", "ann"))
    readers = [log] if isinstance(saver, InMemorySaver) else [log, other]

    async def heard(reader: RunLog) -> str:
        async for page in reader.follow("r"):
            if page and page[-1][0] == 2:
                found = await reader.get("r")
                assert found is not None
                return found.status
        raise AssertionError("nothing was told")

    listening = [asyncio.create_task(heard(reader)) for reader in readers]
    log.append_events("r", [{"type": "RUN_STARTED"}, {"type": "RUN_FINISHED"}])
    await log.flush()
    assert not (await asyncio.wait(listening, timeout=0.1))[0]
    await log.finish("r", "completed")
    assert await asyncio.gather(*listening) == ["completed"] * len(readers)
    for one in (log, other):
        one.close()


async def test_events_with_a_listener_are_written_immediately(
    saver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_log, "_BATCH_SECONDS", 3600.0)
    log = Persistence.of(saver).open_run_log()
    await log.create(LoggedRun("r", "t", "ann"))
    listening = log.follow("r")
    heard = asyncio.ensure_future(anext(listening))
    await asyncio.sleep(0)
    log.append_events("r", [{"n": 0}])
    assert await heard == [(1, '{"n":0}')]
    await listening.aclose()
    log.close()


async def test_a_slow_listener_reads_old_events_from_the_database(saver: Any) -> None:
    log = Persistence.of(saver).open_run_log()
    await log.create(LoggedRun("r", "t", "ann"))
    slow = log.follow("r")
    log.append_events("r", [{"n": 0}])
    first = await anext(slow)
    log.append_events("r", [{"n": number} for number in range(1, 2000)])
    await log.flush()
    if not isinstance(saver, InMemorySaver):
        assert len(log._live["r"].recent) == run_log._RECENT_EVENTS
    await log.finish("r", "completed")
    rest = [line async for page in slow for line in page]
    assert [seq for seq, _ in first + rest] == [*range(1, 2001)]
    log.close()


async def test_a_process_that_lost_the_thread_writes_no_events(tmp_path: Path) -> None:
    url, run = f"sqlite:///{tmp_path / 't.db'}", LoggedRun("r", "t", "ann")
    async with open_saver(url) as saver, open_saver(url) as another:
        logs = Persistence.of(saver).open_run_log(), Persistence.of(another).open_run_log()
        for one, log in zip((saver, another), logs, strict=True):
            await Persistence.of(one).leases.acquire("t")
            await log.create(run)
            await log.claim(replace(run, status="running"))
            log.append_events("r", [{"by": logs.index(log)}])
            await log.flush()
            # As if it had been taken over.
            await Persistence.of(saver).tables.run("DELETE FROM capgraph_leases")  # type: ignore[union-attr]
        logs[0].append_events("r", [{"by": "ghost"}, {"by": "ghost"}])
        await logs[0].flush()
        with pytest.raises(PersistenceError, match="has taken over"):
            await logs[0].claim(run)
        await logs[1].finish("r", "completed")
        assert [text for _, text in await followed(logs[1], "r")] == ['{"by":0}', '{"by":1}']
        for one, log in zip((saver, another), logs, strict=True):
            log.close()
            if (lease := Persistence.of(one).leases.find_held("t")) is not None:
                await Persistence.of(one).leases.release(lease)


async def test_numbers_go_on_in_another_process(saver: Any) -> None:
    if isinstance(saver, InMemorySaver):
        pytest.skip("memory ends with its process")
    log, other = Persistence.of(saver).open_run_log(), Persistence.of(saver).open_run_log()
    await log.create(LoggedRun("r", "t", "ann"))
    log.append_events("r", [{"n": 0}, {"n": 1}])
    await log.flush()
    log.release("r")
    (left,) = await other.unfinished_runs()
    assert left.run_id == "r"
    told, _ = await other.claim(LoggedRun("r", "t", "ann", "running"))
    assert told == [{"n": 0}, {"n": 1}]
    listening = asyncio.create_task(followed(log, "r"))
    other.append_events("r", [{"n": 2}])
    await other.finish("r", "failed")
    assert [seq for seq, _ in await listening] == [1, 2, 3]
    assert await log.unfinished_runs() == []
    log.close()
    other.close()


async def test_runs_are_found_by_owner_and_thread_and_forgotten(saver: Any) -> None:
    log = Persistence.of(saver).open_run_log()
    for number, status in enumerate(["waiting", "completed", "waiting", "running"]):
        run = LoggedRun(f"r{number}", f"t{number // 2}", "ann", created_at=float(number + 1))
        await log.create(run)
        await (log.claim(run) if status == "running" else log.finish(run.run_id, status))
    await log.create(LoggedRun("b", "t9", "bob", created_at=9.0))
    await log.finish("b", "waiting")
    assert await log.waiting_threads("ann") == []
    assert await log.waiting_threads() == ["t9"]
    assert [run.run_id for run in await log.thread_runs("t1")] == ["r3", "r2"]
    await log.prune(-1)
    assert await log.get("r0") is None
    assert [run.run_id for run in await log.unfinished_runs()] == ["r3"]
    await log.drop_thread("t1")
    assert await log.unfinished_runs() == []
    log.close()


async def test_events_are_delivered_only_after_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_log, "_POLL_SECONDS", 0.01)
    async with open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver:
        log = Persistence.of(saver).open_run_log()
        await log.create(LoggedRun("r", "t", "ann"))
        rows: Any = log._tables
        run, away = rows.run, [True]

        async def refusing(statement: str, values: Any = ()) -> Any:
            if away[0] and "run_events" in statement and "INSERT" in statement:
                raise PersistenceError("The disk is full.")
            return await run(statement, values)

        monkeypatch.setattr(rows, "run", refusing)
        listening = log.follow("r")
        log.append_events("r", [{"n": 0}])
        waiting = asyncio.ensure_future(anext(listening))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        away[0] = False
        assert [seq for seq, _ in await waiting] == [1]
        await log.finish("r", "completed")
        log.close()


async def test_the_log_is_encrypted_if_threads_are(tmp_path: Path) -> None:
    file = tmp_path / "t.db"
    async with open_saver(f"sqlite:///{file}", encryption_key=KEY) as saver:
        log = Persistence.of(saver).open_run_log()
        await log.create(LoggedRun("r", "t", "ann", request={"message": "topsecret"}))
        log.append_events("r", [{"text": "topsecret"}])
        await log.finish("r", "completed")
        rows: Any = log._tables
        _, found = await rows.run(
            "SELECT request FROM capgraph_runs UNION ALL SELECT data FROM capgraph_run_events"
        )
        log.close()
    kept = [text.partition(":") for (text,) in found]
    assert len(kept) == 2
    assert all("aes" in kind for kind, _, _ in kept)


async def test_finding_open_runs_reads_no_ended_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker asks each second, and runs are kept for a month."""
    async with open_saver(f"sqlite:///{tmp_path / 't.db'}") as saver:
        log = Persistence.of(saver).open_run_log()
        await log.create(LoggedRun("r", "t", "ann"))
        rows, asked = log._tables, []
        run = rows.run

        async def told(statement: str, values: tuple[Any, ...] = ()) -> Any:
            asked.append(statement)
            return await run(f"EXPLAIN QUERY PLAN {statement}", values)

        monkeypatch.setattr(rows, "run", told)
        monkeypatch.setattr(log, "_read", lambda row: replace(LoggedRun("", "", ""), run_id=row[3]))
        for plan in (
            [one.run_id for one in await log.unfinished_runs()],
            await log.stopping_run_ids(),
        ):
            assert "capgraph_runs_open" in plan[0]
        assert len(asked) == 2
        log.close()
