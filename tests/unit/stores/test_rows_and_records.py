"""Rows and records beside the checkpoints, for savers of ours and for others."""

from __future__ import annotations

import copy
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from capgraph import build_graph
from capgraph.base import PersistenceError
from capgraph.base.errors import StoppedError, ThreadBusyError
from capgraph.governance import stop
from capgraph.stores import Persistence, list_suspended_threads, open_saver
from capgraph.stores.records import read_record, write_record

pytestmark = pytest.mark.may_block
KEY = "0123456789abcdef"
TABLE = "CREATE TABLE IF NOT EXISTS toys (name TEXT PRIMARY KEY, at DOUBLE PRECISION)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


@pytest.fixture(params=["ours", "encrypted", "plain", "memory"])
async def saver(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[Any]:
    if request.param == "memory":
        yield InMemorySaver()
    elif request.param == "plain":
        async with AsyncSqliteSaver.from_conn_string(str(path)) as opened:
            yield opened
    else:
        key = KEY if request.param == "encrypted" else None
        async with open_saver(f"sqlite:///{path}", encryption_key=key) as opened:
            yield opened


async def test_reading_returns_the_latest_record(saver: Any, path: Path) -> None:
    assert await read_record(saver, "1", "a/b") == {}
    await write_record(saver, "1", "a/b", {"status": "started", "word": "treasure"})
    await write_record(saver, "1", "a/b", {"status": "finished", "word": "treasure", "n": 1})
    await write_record(saver, "1", "c", {"status": "other"}, parent_checkpoint_id="x")
    record = await read_record(saver, "1", "a/b")
    assert record == {"status": "finished", "word": "treasure", "n": 1}
    assert await read_record(saver, "2", "a/b") == {}
    await saver.adelete_thread("1")
    assert await read_record(saver, "1", "c") == {}


async def test_a_record_is_encrypted_with_the_key_of_its_saver(path: Path) -> None:
    async with open_saver(f"sqlite:///{path}", encryption_key=KEY) as saver:
        await write_record(saver, "1", "a", {"word": "treasure"})
    assert all(b"treasure" not in file.read_bytes() for file in path.parent.iterdir())
    async with open_saver(f"sqlite:///{path}", encryption_key=KEY[::-1]) as other:
        with pytest.raises(PersistenceError):
            await read_record(other, "1", "a")


async def test_a_value_that_cannot_be_serialized_is_rejected(path: Path) -> None:
    async with open_saver(f"sqlite:///{path}") as saver:
        with pytest.raises(PersistenceError, match="cannot be serialized"):
            await write_record(saver, "1", "a", {"what": object()})


async def test_a_statement_with_the_moment_is_the_same_each_time(path: Path) -> None:
    asked: list[str] = []
    async with open_saver(f"sqlite:///{path}") as saver:
        rows = Persistence.of(saver).tables
        assert rows is not None
        await rows.run(TABLE)
        beside = await rows.relaxed_durability()
        conn = beside._connection()  # type: ignore[attr-defined]

        class Heard:
            total_changes = 0

            def execute(self, text: str, values: Any = ()) -> Any:
                asked.append(text)
                return conn.execute(text, values)

        beside._connection = Heard  # type: ignore[attr-defined]
        for name in ("ball", "bear"):
            await beside.run("INSERT INTO toys SELECT ?, {now} - ? WHERE ? = 1", (name, 7.0, 1))
        assert len(set(asked)) == 1
        _, found = await rows.run("SELECT name, round({now} - at) FROM toys ORDER BY name")
    assert [name for name, _ in found] == ["ball", "bear"]
    assert all(7 <= age < 1000 for _, age in found)


async def test_a_busy_loop_holds_no_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_saver(f"sqlite:///{path}") as saver:
        other = sqlite3.connect(path, timeout=0, isolation_level=None)

        async def commit() -> None:
            other.execute("CREATE TABLE IF NOT EXISTS toys (name TEXT)")

        monkeypatch.setattr(saver.conn, "commit", commit)
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        put = await saver.aput(config, empty_checkpoint(), {}, {})
        await saver.aput_writes(put, [("channel", 1), ("channel", 2)], "task")
        found = await saver.aget_tuple(config)
        assert found is not None
        assert len(found.pending_writes or ()) == 2
        other.close()


async def test_rows_are_for_savers_whose_database_is_known(saver: Any) -> None:
    rows = Persistence.of(saver).tables
    if isinstance(saver, InMemorySaver):
        assert rows is None
        return
    await rows.run(TABLE)
    assert (await rows.run("INSERT INTO toys VALUES (?, {now})", ("ball",)))[0] == 1
    assert rows.run_blocking("UPDATE toys SET at = {now} WHERE name = ?", ("ball",))[0] == 1
    _, found = await rows.run("SELECT name, {now} - at FROM toys")
    assert found[0][0] == "ball"
    assert found[0][1] < 3600
    with pytest.raises(PersistenceError, match="UNIQUE"):
        await rows.run("INSERT INTO toys VALUES (?, 0)", ("ball",))
    assert len((await rows.run("SELECT * FROM toys"))[1]) == 1, "the refused one left nothing"


async def test_a_database_in_memory_has_no_second_connection() -> None:
    async with open_saver("sqlite://:memory:") as saver:
        rows = Persistence.of(saver).tables
        await rows.run(TABLE)
        assert rows.run_blocking("SELECT * FROM toys") is None


async def test_copies_of_a_saver_and_several_graphs_share_leases_and_stops(saver: Any) -> None:
    one, other, copied = (Persistence.of(of) for of in (saver, saver, copy.copy(saver)))
    lease = await one.leases.acquire("1")
    for same in (other, copied):
        with pytest.raises(ThreadBusyError):
            await same.leases.acquire("1")
    inside = await other.leases.acquire("1", outer_leases=[lease])
    await one.leases.release(lease)
    assert copied.leases.find_held("1") is lease, "the graph inside has not ended"
    await other.leases.release(inside)
    await copied.leases.release(await copied.leases.acquire("1"))
    await stop(saver, thread="1")
    for same in (one, other, copied):
        with pytest.raises(StoppedError):
            await same.stops.raise_if_stopped("1", [], force_read=False)


async def test_nothing_is_attached_to_a_saver(saver: Any) -> None:
    before = {*vars(saver)}
    graph = build_graph([], checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "1"}}
    await graph.ainvoke({"messages": [("user", "Hello")]}, config)
    await stop(saver, thread="2")
    assert await list_suspended_threads(saver) == []
    assert {*vars(saver)} == before
