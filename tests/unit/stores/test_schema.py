"""The schema of a database: created, brought up to date, or refused."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from capgraph.base import PersistenceError
from capgraph.stores import open_saver
from capgraph.stores.atomic_values import FOREVER, TableValues
from capgraph.stores.database import open_tables
from capgraph.stores.schema import MIGRATIONS
from capgraph.testing import FakeClock
from tests.support.commands import project, typed

pytestmark = pytest.mark.may_block

VERSIONS = "SELECT version FROM capgraph_migrations"
SERVER = pytest.param("postgres", marks=pytest.mark.service)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


@pytest.fixture(params=["sqlite", SERVER])
def url(request: pytest.FixtureRequest, file: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{file}"
    made: str = request.getfixturevalue("server").database()
    return made


def execute(url: str, statement: str) -> list[Any]:
    """Run a statement behind the back of the library."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as conn, conn:
            return conn.execute(statement).fetchall()
    with psycopg.connect(url, autocommit=True) as server:
        cursor = server.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


async def opened(url: str) -> None:
    async with open_saver(url):
        pass


async def test_a_new_database_has_the_newest_schema_and_opens_again(url: str) -> None:
    for _ in range(2):
        await opened(url)
        assert execute(url, VERSIONS) == [(one + 1,) for one in range(len(MIGRATIONS))]


async def test_a_database_from_before_the_migrations_keeps_its_rows(url: str) -> None:
    execute(url, "CREATE TABLE capgraph_audit (seq BIGINT PRIMARY KEY, line TEXT NOT NULL)")
    execute(url, "INSERT INTO capgraph_audit VALUES (7, 'kept')")
    await opened(url)
    assert execute(url, "SELECT * FROM capgraph_audit") == [(7, "kept")]
    assert execute(url, "SELECT * FROM capgraph_runs") == []


async def test_several_processes_may_open_a_new_database_at_once(url: str) -> None:
    def write(number: int) -> None:
        values = TableValues(open_tables(url))
        values.change("one", lambda found, _: ([*(found or []), number], FOREVER, None), CLOCK)
        values.close()

    await asyncio.gather(opened(url), *(asyncio.to_thread(write, n) for n in range(6)))
    assert len(execute(url, VERSIONS)) == len(MIGRATIONS)
    values = TableValues(open_tables(url))
    found, _ = await values.aread("one", CLOCK)
    assert sorted(found["one"]) == [*range(6)]
    values.close()


CLOCK = FakeClock()


async def test_a_database_of_a_newer_release_is_refused(url: str) -> None:
    await opened(url)
    execute(url, "INSERT INTO capgraph_migrations VALUES (99, 0)")
    with pytest.raises(PersistenceError, match="version 99"):
        await opened(url)
    with pytest.raises(PersistenceError, match="version 99"):
        await open_tables(url).run("SELECT 1")


async def test_a_schema_that_cannot_be_upgraded_is_refused_and_left_as_it_was(url: str) -> None:
    execute(url, "CREATE TABLE seen (run_id TEXT)")
    execute(url, "CREATE VIEW capgraph_runs AS SELECT * FROM seen")  # it takes no index
    with pytest.raises(PersistenceError, match="capgraph db upgrade") as refusal:
        await opened(url)
    assert len(re.findall(r"\. ", refusal.value.message)) == 0, "one sentence"
    with pytest.raises((sqlite3.Error, psycopg.Error)):
        execute(url, "SELECT * FROM capgraph_leases")
    execute(url, "DROP VIEW capgraph_runs")
    await opened(url)


def test_the_command_upgrades_a_database(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    url = f"sqlite:///{file}"
    execute(url, "CREATE TABLE capgraph_audit (seq BIGINT PRIMARY KEY, line TEXT NOT NULL)")
    with project(tmp_path, monkeypatch, {"capgraph.yml": "name: plain\n"}):
        code, out, err = typed(capsys)("db", "upgrade", "--db", str(file))
    assert (code, err) == (0, "")
    assert f"version {len(MIGRATIONS)}" in out
    assert len(execute(url, VERSIONS)) == len(MIGRATIONS)
