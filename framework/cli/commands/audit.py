"""``capgraph audit``: verify, export, and show the audit log of a database."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import one_line, print_text
from capgraph.configs.errors import ConfigurationError

if TYPE_CHECKING:
    from capgraph.telemetry.audit_log import AuditTable

T = TypeVar("T")

app: typer.Typer = typer.Typer(
    name="audit", help="Verify, export, and show the audit log of a database.", no_args_is_help=True
)
_SHOWN_FIELDS = [
    *("step", "capability", "tool", "effect", "status", "guard", "decision", "refused", "code"),
    *("model", "about", "author"),
]
_CSV_COLUMNS = ("seq", "at", "kind", "thread_id", "data", "prev", "hash")


class ExportFormat(StrEnum):
    """Export formats."""

    JSON = "json"
    CSV = "csv"


@app.command("verify")
@with_shared_options("config", "db")
def verify(
    shared: SharedOptions,
    anchor: Annotated[
        str | None,
        typer.Option("--anchor", help="Head of the chain that was stored elsewhere (hex)."),
    ] = None,
) -> None:
    """Verify that no record of the audit log was changed.

    The exit code is 1 if the log is invalid.
    """
    report = _run_with_audit(shared, lambda audit: audit.averify(anchor))
    if not report.valid:
        print_text(f"The audit log is invalid. {report.problem}")
        raise typer.Exit(1)
    print_text(f"{report.records} record(s) are valid; the head is {report.head}.")


@app.command("anchor")
@with_shared_options("config", "db")
def anchor(shared: SharedOptions) -> None:
    """Print the latest hash of the audit log's hash chain, for use with 'verify --anchor'.

    Store the hash outside the database, so that later changes to the audit log can be detected.
    """
    report = _run_with_audit(shared, lambda audit: audit.averify())
    if not report.valid:
        typer.echo(f"The audit log is invalid. {report.problem}", err=True)
        raise typer.Exit(1)
    typer.echo(report.head)


@app.command("export")
@with_shared_options("config", "db")
def export(
    shared: SharedOptions,
    format_: Annotated[
        ExportFormat, typer.Option("--format", help="Output format.")
    ] = ExportFormat.JSON,
) -> None:
    """Print all audit records as a JSON array or as CSV."""

    async def write(audit: AuditTable) -> None:
        if format_ is ExportFormat.CSV:
            rows = csv.writer(sys.stdout, quoting=csv.QUOTE_ALL)
            rows.writerow(_CSV_COLUMNS)
            async for record in _iter_records(audit):
                thread = record["data"].get("thread_id")
                flat = {**record, "thread_id": thread, "data": json.dumps(record["data"])}
                rows.writerow([flat[name] for name in _CSV_COLUMNS])
            return
        before = "[\n"
        async for record in _iter_records(audit):
            sys.stdout.write(before + json.dumps(record))
            before = ",\n"
        sys.stdout.write("[]\n" if before == "[\n" else "\n]\n")

    _run_with_audit(shared, write)


@app.command("show")
@with_shared_options("config", "db")
def show(shared: SharedOptions, thread: Annotated[str, typer.Argument(help="Thread ID.")]) -> None:
    """Show the audit records of a thread. Message contents are never included."""

    async def read(audit: AuditTable) -> list[str]:
        return [
            one_line(_format_record(record), 500)
            async for record in _iter_records(audit)
            if record["data"].get("thread_id") == thread
        ]

    lines = _run_with_audit(shared, read)
    if not lines:
        typer.echo(f"The audit log has no records of thread {thread!r}.", err=True)
    for line in lines:
        print_text(line)


def _format_record(record: dict[str, Any]) -> str:
    data = record["data"]
    step = data.get("step") or data.get("step_id")
    user = (data.get("by") or {}).get("user_id")
    fields = {**{name: data.get(name) for name in _SHOWN_FIELDS}, "step": step, "by": user}
    parts = [f"{name}={value}" for name, value in fields.items() if isinstance(value, (str, int))]
    return f"{record['seq']:>6}  {record['at'][:19]}  {record['kind']:<9} {' '.join(parts)}"


async def _iter_records(audit: AuditTable) -> AsyncIterator[dict[str, Any]]:
    after = 0
    while lines := await audit.aread_lines(after):
        for line in lines:
            record: dict[str, Any] = json.loads(line)
            after = record["seq"]
            yield record


def _run_with_audit(shared: SharedOptions, work: Callable[[AuditTable], Awaitable[T]]) -> T:
    from capgraph.stores.persistence import Persistence

    settings = shared.settings().audit

    async def run(saver: Any, _: object) -> T:
        audit = Persistence.of(saver).audit_table(settings.signing_key, settings.name)
        if audit is None:
            raise ConfigurationError(
                "The database does not support an audit log.",
                fix="Use an SQLite file or postgresql://… as --db.",
            )
        return await work(audit)

    return shared.run_with_database(run)
