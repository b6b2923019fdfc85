"""``capgraph capabilities``: list the agent's capabilities."""

from __future__ import annotations

from typing import Any

import typer

from capgraph.cli.agent import read_registry
from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import print_rows

app: typer.Typer = typer.Typer()


@app.command("capabilities")
@with_shared_options("config", "as_json")
def capabilities(shared: SharedOptions) -> None:
    """List the agent's capabilities."""
    registry = read_registry(shared.settings())
    rows: list[dict[str, Any]] = [
        {
            "name": spec.name,
            "description": spec.description,
            "needs": [str(need) for need in spec.requires],
            "gives": list(spec.provides),
            "effect": spec.effect,
            "approval": "yes" if spec.requires_approval else "no",
        }
        for spec in registry.capabilities.values()
    ]
    cells = [
        [", ".join(v) or "-" if isinstance(v, list) else v for v in row.values()] for row in rows
    ]
    print_rows(rows[0] if rows else ["name"], cells, data=rows if shared.as_json else None)
