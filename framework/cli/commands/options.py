"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="Configuration file (default: capgraph.yml here, else the packaged data agent).",
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--db",
        help="Where threads are kept: SQLite file, postgresql://… or 'memory'"
        " (default: a file of yours).",
    ),
]
Thread = Annotated[
    str | None,
    typer.Option("--thread", "-t", help="Thread to go on with (default: a new one)."),
]
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Chat model as provider:name (default: as configured)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
