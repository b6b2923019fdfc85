"""The tables of procrastinate, in the form that the installed version needs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from procrastinate.schema import SchemaManager

from capgraph.base.errors import PersistenceError

_ADVISORY_LOCK = 0x6361_7067_7363_616C
"""Advisory lock of whoever makes the tables."""
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
    """Make the tables, or apply the migrations that they lack; whoever comes first does.

    What the last of them take away from workers of the version before waits until none lives.

    Args:
        conn: A connection to the database.
        lease_seconds: After so long without a sign of life a worker is dead.

    Raises:
        PersistenceError: Nobody can say of which version they are.
    """
    async with conn.transaction():
        await conn.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
        files = await asyncio.to_thread(_read_migrations)
        there, mark, functions = await (await conn.execute(_INSPECT_SCHEMA)).fetchone()
        if there is None:
            await conn.execute(SchemaManager.get_schema())
            await _record_version(conn, max(files))
            return
        if not re.fullmatch(r"[\d.]+_\w+\.sql", mark or ""):
            mark = _detect_version(files, set(functions))
        lacking = [name for name in files if name > mark]
        while lacking and "_post_" in lacking[-1]:
            lacking.pop()
        await _apply(conn, files, lacking)
        late = [name for name in files if name > max([mark, *lacking])]
        if late and not await (await conn.execute(_FIND_LIVE_WORKER, (lease_seconds,))).fetchone():
            await _apply(conn, files, late)


def _read_migrations() -> dict[str, str]:
    found = sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
    return {file.name: file.read_text("utf-8") for file in found}


async def _apply(conn: Any, files: Mapping[str, str], names: Sequence[str]) -> None:
    for name in names:
        await conn.execute(files[name])
        await _record_version(conn, name)


async def _record_version(conn: Any, last: str) -> None:
    await conn.execute(f"COMMENT ON TABLE procrastinate_jobs IS '{last}'")


def _detect_version(files: Mapping[str, str], functions: set[str]) -> str:
    """Return the first migration after which there are these functions."""
    made: set[str] = set()
    for name, text in files.items():
        made = (made - set(_DROPPED_FUNCTION.findall(text))) | set(_CREATED_FUNCTION.findall(text))
        for old, new in _RENAMED_FUNCTION.findall(text):
            made = (made - {old}) | {new}
        if made == functions:
            return name
    if made < functions:
        return name  # those of a later version, or somebody's own beside them
    raise PersistenceError(
        "The tables of procrastinate are of a version that is not known here.",
        fix="Install the version that made them, or apply its migrations.",
    )
