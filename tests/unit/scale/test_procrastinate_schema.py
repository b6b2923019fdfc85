"""The tables of procrastinate: made, or brought from an older version to the installed one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from procrastinate.schema import SchemaManager

from capgraph.base.errors import PersistenceError
from capgraph.scale.postgres import PostgresEngine
from capgraph.scale.procrastinate_schema import migrate_tables
from tests.faults.databases import postgres
from tests.support.sweeps import sample

pytestmark = [pytest.mark.service, pytest.mark.may_block]
FILES = sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
THIRD = [file.name for file in FILES if file.name >= "03"]


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with postgres() as started:
        yield started


async def connected(server: Any) -> Any:
    return await psycopg.AsyncConnection.connect(server.database(), autocommit=True)


async def shape(conn: Any) -> tuple[Any, ...]:
    """Return functions, columns, triggers and indexes."""
    asked = (
        "SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE proname LIKE 'procrastinate%'",
        "SELECT table_name, column_name, data_type FROM information_schema.columns"
        " WHERE table_name LIKE 'procrastinate%'",
        "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
        "SELECT indexname FROM pg_indexes WHERE tablename LIKE 'procrastinate%'",
    )
    return tuple([sorted(await (await conn.execute(one)).fetchall()) for one in asked])


async def migrated(conn: Any, last: str) -> None:
    for file in FILES:
        if file.name <= last:
            await conn.execute(file.read_text())


@pytest.mark.parametrize("last", sample(THIRD, 3))
async def test_older_tables_are_migrated(server: Any, last: str) -> None:
    async with await connected(server) as new, await connected(server) as old:
        await migrate_tables(new, lease_seconds=3)
        await migrated(old, last)
        await old.execute(
            "INSERT INTO procrastinate_jobs (queue_name, task_name) VALUES ('q', 't')"
        )
        for _ in range(2):
            await migrate_tables(old, lease_seconds=3)
            assert await shape(old) == await shape(new)
        kept = await (await old.execute("SELECT task_name FROM procrastinate_jobs")).fetchall()
        assert kept == [("t",)]


async def test_breaking_migrations_wait_for_old_workers(server: Any) -> None:
    async with await connected(server) as new, await connected(server) as old:
        await migrate_tables(new, lease_seconds=3)
        await migrated(old, "03.03.00_01_pre_priority_lock_fetch_job.sql")
        await old.execute("SELECT procrastinate_register_worker_v1()")
        await migrate_tables(old, lease_seconds=3)
        mark = "SELECT obj_description('procrastinate_jobs'::regclass, 'pg_class')"
        assert await (await old.execute(mark)).fetchone() == (FILES[-2].name,)
        await old.execute("UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1h'")
        await migrate_tables(old, lease_seconds=3)
        assert await (await old.execute(mark)).fetchone() == (FILES[-1].name,)
        assert await shape(old) == await shape(new)


async def test_tables_of_later_versions_are_left_unchanged(server: Any) -> None:
    async with await connected(server) as conn:
        await migrated(conn, FILES[-1].name)
        more = "CREATE FUNCTION procrastinate_new() RETURNS int LANGUAGE sql AS 'SELECT 1'"
        await conn.execute(more)
        before = await shape(conn)
        await migrate_tables(conn, lease_seconds=3)
        assert await shape(conn) == before
    async with await connected(server) as conn:
        await migrated(conn, FILES[-1].name)
        await conn.execute("DROP FUNCTION procrastinate_retry_job_v2")
        await conn.execute(more)
        with pytest.raises(PersistenceError, match="is unknown"):
            await migrate_tables(conn, lease_seconds=3)


async def test_fetching_a_job_does_not_scan_all_jobs(server: Any) -> None:
    """The database has not counted them yet, and takes the table for an empty one."""
    engine = await PostgresEngine.open(server.database(), lease_seconds=30)
    try:
        async with engine._pool.connection() as conn:
            await conn.execute("ALTER TABLE procrastinate_jobs SET (autovacuum_enabled = off)")
            worker = "SELECT worker_id FROM procrastinate_register_worker_v1()"
            (number,) = await (await conn.execute(worker)).fetchone()
            await conn.execute(
                "INSERT INTO procrastinate_jobs (queue_name, task_name, lock, args)"
                " SELECT 'turns', 'capgraph.turn', 't' || g, '{}' FROM generate_series(1, 4000) g"
            )
            before = await _read(conn)
            fetch = "SELECT id FROM procrastinate_fetch_job_v2(ARRAY['turns']::varchar[], %s)"
            assert await (await conn.execute(fetch, (number,))).fetchone() == (1,)
            assert await _read(conn) - before < 100
    finally:
        await engine.close()


async def _read(conn: Any) -> int:
    await conn.execute("SELECT pg_stat_force_next_flush()")
    asked = (
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables"
        " WHERE relname = 'procrastinate_jobs'"
    )
    return int((await (await conn.execute(asked)).fetchone())[0])
