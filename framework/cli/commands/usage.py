"""``capgraph usage``: usage and cost of model calls."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import print_rows

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

    from capgraph.telemetry.usage_recorder import UsageTotal

app: typer.Typer = typer.Typer()


@app.command("usage")
@with_shared_options("config", "db", "as_json")
def usage(
    shared: SharedOptions,
    thread: Annotated[
        str | None, typer.Option("--thread", "-t", help="Show only calls of this thread.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", "-u", help="Show only calls for this user.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Show only calls for users of this tenant.")
    ] = None,
    by: Annotated[
        Literal["model", "step", "turn", "thread", "user", "tenant", "day"],
        typer.Option("--by", help="Grouping of the calls."),
    ] = "model",
) -> None:
    """Show model calls, their tokens, and their cost."""
    from capgraph.stores import Persistence
    from capgraph.telemetry import format_cost
    from capgraph.telemetry.usage_recorder import usage_totals

    async def read(saver: BaseCheckpointSaver[Any], _: object) -> list[UsageTotal]:
        rows = Persistence.of(saver).tables
        filters: Any = {"thread_id": thread, "user_id": user, "tenant": tenant, "group_by": by}
        return await usage_totals(rows, **filters) if rows is not None else []

    totals = shared.run_with_database(read)
    headings = (by, "calls", "input", "output", "cached", "cost")
    rows = [
        (
            item.model or ("(unnamed)" if by == "model" else "(none)"),
            item.calls,
            item.input_tokens,
            item.output_tokens,
            item.cached_tokens,
            format_cost(item.cost_usd) if item.cost_usd is not None else "unknown price",
        )
        for item in totals
    ]
    items = [{by: item.model, **asdict(item)} for item in totals]
    if by != "model":
        items = [{name: one[name] for name in one if name != "model"} for one in items]
    data = items if shared.as_json else None
    print_rows(headings, rows, empty_message="No calls were recorded.", data=data)
