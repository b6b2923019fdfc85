"""Creation and migration of procrastinate's tables for the installed version."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from procrastinate.schema import SchemaManager

from capgraph.base.errors import PersistenceError

_ADVISORY_LOCK = 0x6361_7067_7363_616C
"""Key of the advisory lock held during a migration."""
_CREATED_FUNCTION = re.compile(r"CREATE (?:OR REPLACE )?FUNCTION (procrastinate_\w+)")
_DROPPED_FUNCTION = re.compile(r"DROP FUNCTION (?:IF EXISTS )?(procrastinate_\w+)")
_RENAMED_FUNCTION = re.compile(r"ALTER FUNCTION (procrastinate_\w+)[^;]*? RENAME TO (\w+)")
_INSPECT_SCHEMA = (
    "SELECT to_regclass('procrastinate_jobs')::text,"
    " obj_description(to_regclass('procrastinate_jobs'), 'pg_class'), ARRAY(SELECT DISTINCT"
    " proname::text FROM pg_proc WHERE proname LIKE 'procrastinate%'"
    " AND pg_function_is_visible(oid))"
)
_FIND_LIVE_WORKER = (
    "SELECT 1 FROM procrastinate_workers WHERE last_heartbeat > now() - make_interval(secs => %s)"
)


async def migrate_tables(conn: Any, *, lease_seconds: float) -> None:
    """Create procrastinate's tables, or apply missing migrations.

    Concurrent callers wait for each other. Migrations that are incompatible with workers of the
    previous version are delayed until no worker is alive.

    Args:
        conn: Connection to the job database.
        lease_seconds: Seconds without a heartbeat after which a worker is considered dead.

    Raises:
        PersistenceError: The schema version of the tables cannot be detected.
    """
    async with conn.transaction():
        await conn.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
        files = await asyncio.to_thread(_read_migrations)
        table, version, functions = await (await conn.execute(_INSPECT_SCHEMA)).fetchone()
        if table is None:
            await conn.execute(SchemaManager.get_schema())
            await _record_version(conn, max(files))
            return
        if not re.fullmatch(r"[\d.]+_\w+\.sql", version or ""):
            version = _detect_version(files, set(functions))
        missing = [name for name in files if name > version]
        while missing and "_post_" in missing[-1]:
            missing.pop()
        await _apply(conn, files, missing)
        post_migrations = [name for name in files if name > max([version, *missing])]
        if (
            post_migrations
            and not await (await conn.execute(_FIND_LIVE_WORKER, (lease_seconds,))).fetchone()
        ):
            await _apply(conn, files, post_migrations)


def _read_migrations() -> dict[str, str]:
    files = sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
    return {file.name: file.read_text("utf-8") for file in files}


async def _apply(conn: Any, files: Mapping[str, str], names: Sequence[str]) -> None:
    for name in names:
        await conn.execute(files[name])
        await _record_version(conn, name)


async def _record_version(conn: Any, last: str) -> None:
    await conn.execute(f"COMMENT ON TABLE procrastinate_jobs IS '{last}'")


def _detect_version(files: Mapping[str, str], functions: set[str]) -> str:
    """Detect the schema version from the functions that exist in the database.

    The version is the first migration after which exactly these functions exist.
    """
    created: set[str] = set()
    for name, text in files.items():
        created = (created - set(_DROPPED_FUNCTION.findall(text))) | set(
            _CREATED_FUNCTION.findall(text)
        )
        for old, new in _RENAMED_FUNCTION.findall(text):
            created = (created - {old}) | {new}
        if created == functions:
            return name
    if created < functions:
        return name  # functions of a later version or of other software
    raise PersistenceError(
        "The version of procrastinate's tables is unknown.",
        fix="Install the version that created them, or apply its migrations.",
    )
