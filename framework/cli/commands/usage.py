"""``capgraph usage``: what calls of models used and cost."""

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
        str | None, typer.Option("--thread", "-t", help="Only calls of this thread.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", "-u", help="Only calls for this person.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Only calls for people of this tenant.")
    ] = None,
    by: Annotated[
        Literal["model", "step", "turn", "thread", "user", "tenant", "day"],
        typer.Option("--by", help="For what one line stands."),
    ] = "model",
) -> None:
    """Show what calls of models used: model (or what --by says), calls, tokens, cost."""
    from capgraph.stores import Persistence
    from capgraph.telemetry import format_cost
    from capgraph.telemetry.usage_recorder import usage_totals

    async def read(saver: BaseCheckpointSaver[Any], _: object) -> list[UsageTotal]:
        rows = Persistence.of(saver).tables
        about: Any = {"thread_id": thread, "user_id": user, "tenant": tenant, "group_by": by}
        return await usage_totals(rows, **about) if rows is not None else []

    found = shared.run_with_database(read)
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
        for item in found
    ]
    plain = [{by: item.model, **asdict(item)} for item in found]
    if by != "model":
        plain = [{name: one[name] for name in one if name != "model"} for one in plain]
    data = plain if shared.as_json else None
    print_rows(headings, rows, empty_message="No calls were kept.", data=data)
