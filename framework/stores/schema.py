"""Schema of capgraph's tables, as a list of migrations.

A released migration is never edited. Each later change of a table is a new migration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capgraph.base.errors import PersistenceError

_FIRST = (
    """CREATE TABLE IF NOT EXISTS capgraph_leases (
        thread_id TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        machine TEXT NOT NULL,
        process TEXT NOT NULL,
        beat DOUBLE PRECISION NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS capgraph_cells (
        name {name} PRIMARY KEY,
        value TEXT NOT NULL,
        stamp TEXT NOT NULL,
        expires FLOAT
    )""",
    """CREATE TABLE IF NOT EXISTS capgraph_runs (
        run_id TEXT PRIMARY KEY,
        thread_id TEXT NOT NULL,
        owner TEXT NOT NULL,
        status TEXT NOT NULL,
        opened DOUBLE PRECISION NOT NULL,
        ended DOUBLE PRECISION NOT NULL,
        request TEXT NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS capgraph_runs_thread ON capgraph_runs (thread_id)",
    "CREATE INDEX IF NOT EXISTS capgraph_runs_open ON capgraph_runs (opened) WHERE ended = 0",
    """CREATE TABLE IF NOT EXISTS capgraph_run_events (
        run_id TEXT NOT NULL,
        seq BIGINT NOT NULL,
        data TEXT NOT NULL,
        PRIMARY KEY (run_id, seq)
    )""",
    """CREATE TABLE IF NOT EXISTS capgraph_run_places (
        run_id TEXT PRIMARY KEY,
        thread_id TEXT NOT NULL,
        begins BIGINT NOT NULL,
        teller TEXT NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS capgraph_run_places_thread"
    " ON capgraph_run_places (thread_id, begins)",
    """CREATE TABLE IF NOT EXISTS capgraph_steps (
        step_id TEXT PRIMARY KEY,
        thread_id TEXT NOT NULL,
        room TEXT NOT NULL,
        turn TEXT NOT NULL,
        token TEXT NOT NULL,
        request TEXT NOT NULL,
        seconds DOUBLE PRECISION,
        opened DOUBLE PRECISION NOT NULL,
        begun INTEGER NOT NULL,
        told BIGINT NOT NULL,
        cancelled INTEGER NOT NULL,
        ended DOUBLE PRECISION NOT NULL,
        result TEXT NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS capgraph_steps_thread ON capgraph_steps (thread_id)",
    """CREATE TABLE IF NOT EXISTS capgraph_step_events (
        step_id TEXT NOT NULL,
        seq BIGINT NOT NULL,
        data TEXT NOT NULL,
        PRIMARY KEY (step_id, seq)
    )""",
    """CREATE TABLE IF NOT EXISTS capgraph_schedules (
        id TEXT PRIMARY KEY,
        cron TEXT NOT NULL,
        request TEXT NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS capgraph_workers (
        id TEXT PRIMARY KEY,
        queues TEXT NOT NULL,
        running BIGINT NOT NULL,
        gone DOUBLE PRECISION NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS capgraph_database (
        one INTEGER PRIMARY KEY,
        id TEXT NOT NULL,
        proof TEXT NOT NULL
    )""",
    "CREATE TABLE IF NOT EXISTS capgraph_audit (seq BIGINT PRIMARY KEY, line TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS capgraph_usage (
        call_id TEXT PRIMARY KEY,
        thread_id TEXT NOT NULL,
        turn_id TEXT NOT NULL,
        step_id TEXT NOT NULL,
        capability TEXT NOT NULL,
        role TEXT NOT NULL,
        user_id TEXT NOT NULL,
        tenant TEXT NOT NULL,
        model TEXT NOT NULL,
        input_tokens BIGINT NOT NULL,
        output_tokens BIGINT NOT NULL,
        cached_tokens BIGINT NOT NULL,
        cost_usd DOUBLE PRECISION,
        at DOUBLE PRECISION NOT NULL
    )""",
)
_RUN_STARTS = ("ALTER TABLE capgraph_runs ADD COLUMN starts INTEGER NOT NULL DEFAULT 0",)
MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST, _RUN_STARTS)
"""Statements by version, starting with version 1, which includes the tables of earlier releases."""

_TABLE = (
    "CREATE TABLE IF NOT EXISTS capgraph_migrations"
    " (version INTEGER PRIMARY KEY, applied DOUBLE PRECISION NOT NULL)"
)
_VERSION = "SELECT COALESCE(MAX(version), 0) FROM capgraph_migrations"
_APPLIED = "INSERT INTO capgraph_migrations (version, applied) VALUES (?, {now})"

Execute = Callable[..., list[tuple[Any, ...]]]
"""Function that runs a statement with values and returns its rows."""


def migration_steps(version: int) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the SQL statements and parameters that migrate a schema to the latest version.

    >>> migration_steps(len(MIGRATIONS))
    []
    """
    late = [*enumerate(MIGRATIONS, 1)][version:]
    statements = [
        step
        for number, migration in late
        for step in (*((one, ()) for one in migration), (_APPLIED, (number,)))
    ]
    return [(_TABLE, ()), *statements] if late else []


def schema_version(execute: Execute, is_migrated: str) -> int:
    """Return the schema version of a database, or 0 before the first migration.

    Args:
        execute: Function that runs an SQL statement in the database.
        is_migrated: SQL query that counts the migration tables.

    Raises:
        PersistenceError: The schema was created by a newer release of capgraph.
    """
    found = int(execute(_VERSION)[0][0]) if execute(is_migrated)[0][0] else 0
    if found > len(MIGRATIONS):
        raise PersistenceError(
            f"The database schema has version {found}, but this release supports only versions up "
            f"to {len(MIGRATIONS)}.",
            fix="Install the release of capgraph that wrote the database, or a newer one.",
        )
    return found


def migration_error(version: int, cause: Exception) -> PersistenceError:
    """Create the error for a failed migration of the database schema."""
    return PersistenceError(
        f"The database schema cannot be migrated from version {version} to {len(MIGRATIONS)}:"
        f" {str(cause).strip()}.",
        fix="Run 'capgraph db upgrade' as a user who may create tables.",
    )
