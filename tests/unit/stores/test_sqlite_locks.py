"""SQLite files that several connections open and write at once: each waits for the others."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from langgraph.store.base import GetOp, PutOp

from capgraph.stores import open_saver, open_store
from capgraph.stores.sqlite import SqliteFile
from capgraph.telemetry.builtin_sinks import SqliteEventSink

pytestmark = pytest.mark.may_block


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shared.db"


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold the write lock of a file, and release it after a while."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("CREATE TABLE IF NOT EXISTS other (value)")
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO other VALUES (1)")
        release = threading.Timer(seconds, other.execute, ["COMMIT"])
        release.start()
        try:
            yield
        finally:
            release.join()


async def _saver(path: Path) -> None:
    async with open_saver(f"sqlite:///{path}"):
        pass


async def _store(path: Path) -> None:
    async with open_store(f"sqlite:///{path}"):
        pass


async def _rows(path: Path) -> None:
    rows = SqliteFile(str(path))
    await rows.run("CREATE TABLE mine (value)")
    assert (await rows.run("PRAGMA journal_mode"))[1] == [("wal",)]
    rows.close()


async def _events(path: Path) -> None:
    sink = SqliteEventSink(path)
    sink.emit({"event_type": "retry", "run_id": "r", "seq": 1})
    assert [event.run_id for event in sink.replay()] == ["r"]
    sink.close()


@pytest.mark.parametrize("opens", [_saver, _store, _rows, _events])
async def test_a_new_file_that_another_connection_writes_is_waited_for(
    path: Path, opens: Callable[[Path], Awaitable[None]]
) -> None:
    with locked(path, 1.0):
        await opens(path)


async def test_a_store_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    for number in range(5):
        await asyncio.gather(*(_store(tmp_path / f"{number}.db") for _ in range(8)))


async def test_a_batch_that_reads_before_it_writes_waits_for_another_writer(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        with locked(path, 1.0):
            found, _ = await store.abatch([GetOp(("a",), "k"), PutOp(("a",), "k", {"n": 1})])
        assert found is None
        assert (await store.aget(("a",), "k")) is not None


async def test_reading_a_store_waits_for_no_writer(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        await store.aput(("a",), "k", {"n": 1})
        with locked(path, 3.0):
            async with asyncio.timeout(2.5):
                assert (await store.aget(("a",), "k")) is not None
