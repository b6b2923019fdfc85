"""``capgraph db``: manage the schema of a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from capgraph.cli.options import SharedOptions, with_shared_options
from capgraph.cli.terminal import print_text

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

app: typer.Typer = typer.Typer(
    name="db", help="Manage the schema of a database.", no_args_is_help=True
)


@app.callback()
def _group() -> None:
    """Keep ``upgrade`` as a subcommand."""


@app.command("upgrade")
@with_shared_options("config", "db")
def upgrade(shared: SharedOptions) -> None:
    """Migrate the database schema to the current version."""
    from capgraph.stores.schema import MIGRATIONS

    async def nothing(saver: BaseCheckpointSaver[Any], store: object) -> None:
        """Do nothing, because opening the database already migrates its schema."""

    shared.run_with_database(nothing)
    print_text(f"The schema is at version {len(MIGRATIONS)}.")
