"""``capgraph audit``: the chain of who did what, beside the threads of a database."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from capgraph.cli.options import Shared, takes
from capgraph.cli.terminal import one_line, say
from capgraph.configs.errors import ConfigurationError

if TYPE_CHECKING:
    from capgraph.telemetry.audit_log import AuditTable

T = TypeVar("T")

app: typer.Typer = typer.Typer(
    name="audit", help="Check, export and show the audit of a database.", no_args_is_help=True
)
_SHOWN = [
    *("step", "capability", "tool", "effect", "status", "guard", "decision", "refused", "code"),
    *("model", "about", "author"),
]
_COLUMNS = ("seq", "at", "kind", "thread_id", "data", "prev", "hash")


class Format(StrEnum):
    """How records are exported."""

    JSON = "json"
    CSV = "csv"


@app.command("verify")
@takes("config", "db")
def verify(
    shared: Shared,
    anchor: Annotated[
        str | None, typer.Option("--anchor", help="A head that was kept elsewhere, in hex.")
    ] = None,
) -> None:
    """Check that every record is as it was written; the exit code is 1 when one is not."""
    found = _with_audit(shared, lambda audit: audit.averify(anchor))
    if not found.valid:
        say(f"The audit does not hold. {found.problem}")
        raise typer.Exit(1)
    say(f"{found.records} record(s) hold; the head is {found.head}.")


@app.command("anchor")
@takes("config", "db")
def anchor(shared: Shared) -> None:
    """Print the head of the chain, to be kept elsewhere: 'verify --anchor' asks for it."""
    found = _with_audit(shared, lambda audit: audit.averify())
    if not found.valid:
        typer.echo(f"The audit does not hold. {found.problem}", err=True)
        raise typer.Exit(1)
    typer.echo(found.head)


@app.command("export")
@takes("config", "db")
def export(
    shared: Shared,
    format_: Annotated[Format, typer.Option("--format", help="json or csv.")] = Format.JSON,
) -> None:
    """Print all records: a JSON array, or CSV with the data of each as JSON."""

    async def write(audit: AuditTable) -> None:
        if format_ is Format.CSV:
            rows = csv.writer(sys.stdout, quoting=csv.QUOTE_ALL)
            rows.writerow(_COLUMNS)
            async for record in _records(audit):
                thread = record["data"].get("thread_id")
                flat = {**record, "thread_id": thread, "data": json.dumps(record["data"])}
                rows.writerow([flat[name] for name in _COLUMNS])
            return
        before = "[\n"
        async for record in _records(audit):
            sys.stdout.write(before + json.dumps(record))
            before = ",\n"
        sys.stdout.write("[]\n" if before == "[\n" else "\n]\n")

    _with_audit(shared, write)


@app.command("show")
@takes("config", "db")
def show(shared: Shared, thread: Annotated[str, typer.Argument(help="Thread id.")]) -> None:
    """Show what happened in a thread: when, what, by whom; no content."""

    async def read(audit: AuditTable) -> list[str]:
        return [
            one_line(_line(record), 500)
            async for record in _records(audit)
            if record["data"].get("thread_id") == thread
        ]

    found = _with_audit(shared, read)
    if not found:
        typer.echo(f"The audit holds nothing of the thread {thread!r}.", err=True)
    for line in found:
        say(line)


def _line(record: dict[str, Any]) -> str:
    data = record["data"]
    step = data.get("step") or data.get("step_id")
    who = (data.get("by") or {}).get("user_id")
    told = {**{name: data.get(name) for name in _SHOWN}, "step": step, "by": who}
    words = [f"{name}={value}" for name, value in told.items() if isinstance(value, (str, int))]
    return f"{record['seq']:>6}  {record['at'][:19]}  {record['kind']:<9} {' '.join(words)}"


async def _records(audit: AuditTable) -> AsyncIterator[dict[str, Any]]:
    after = 0
    while lines := await audit.alines(after):
        for line in lines:
            record: dict[str, Any] = json.loads(line)
            after = record["seq"]
            yield record


def _with_audit(shared: Shared, work: Callable[[AuditTable], Awaitable[T]]) -> T:
    from capgraph.stores.persistence import Persistence

    key = shared.settings().audit.signing_key

    async def run(saver: Any, _: object) -> T:
        audit = Persistence.of(saver).audit(key)
        if audit is None:
            raise ConfigurationError(
                "This database keeps no audit.", fix="Give --db a SQLite file or postgresql://…."
            )
        return await work(audit)

    return shared.on_database(run)
