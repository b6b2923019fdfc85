"""``capgraph usage``: what calls of models used and cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from framework.cli.options import Config, Database, Json

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

    from framework.telemetry.usage_book import UsageTotal

app = typer.Typer()


@app.command("usage")
def usage(
    thread: Annotated[
        str | None, typer.Option("--thread", "-t", help="Only calls of this thread.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", "-u", help="Only calls for this person.")
    ] = None,
    config: Config = None,
    db: Database = None,
    as_json: Json = False,
) -> None:
    """Show what calls of models used: model, calls, tokens, cost."""
    from framework.cli.agent import with_database
    from framework.cli.terminal import show_rows
    from framework.stores import rows_of
    from framework.telemetry import format_cost
    from framework.telemetry.usage_book import usage_totals

    async def read(saver: BaseCheckpointSaver[Any], _: object) -> list[UsageTotal]:
        rows = rows_of(saver)
        return await usage_totals(rows, thread_id=thread, user_id=user) if rows is not None else []

    found = with_database(config, db, read)
    headings = ("model", "calls", "input", "output", "cached", "cost")
    rows = [
        (
            item.model or "(unnamed)",
            item.calls,
            item.input_tokens,
            item.output_tokens,
            item.cached_tokens,
            format_cost(item.cost_usd) if item.cost_usd is not None else "unknown price",
        )
        for item in found
    ]
    data = [asdict(item) for item in found] if as_json else None
    show_rows(headings, rows, none="No calls were kept.", data=data)
