"""``capgraph db``: the schema of a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from capgraph.cli.options import Shared, takes
from capgraph.cli.terminal import say

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

app: typer.Typer = typer.Typer(name="db", help="The schema of a database.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep the group for its one command."""


@app.command("upgrade")
@takes("config", "db")
def upgrade(shared: Shared) -> None:
    """Bring the tables of a database up to date."""
    from capgraph.stores.schema import MIGRATIONS

    async def nothing(saver: BaseCheckpointSaver[Any], store: object) -> None:
        """Do nothing: a database is brought up to date when it is opened."""

    shared.on_database(nothing)
    say(f"The schema has version {len(MIGRATIONS)}.")
