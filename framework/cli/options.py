"""Options that several commands share, and lengths of time as a person types them."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from configs.errors import ConfigurationError

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
Data = Annotated[
    list[str] | None,
    typer.Option("--data", "-d", help="Data file that the question is about; may be repeated."),
]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of a picture that redraws.")]
Engine = Annotated[
    str | None,
    typer.Option("--engine", help="What carries orders to workers: postgres or temporal."),
]
Temporal = Annotated[
    str | None, typer.Option("--temporal", help="Where Temporal is, as host:port.")
]
Submit = Annotated[
    bool, typer.Option("--submit", help="Hand it to workers, and do not wait for what comes of it.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def read_value(text: str | None) -> Any:
    """Read a value that a person types: as JSON, and where it is none, as the text that it is.

    >>> read_value("[1]"), read_value("Oslo")
    ([1], 'Oslo')
    """
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def read_duration(text: str) -> timedelta:
    """Read a length of time such as ``30d``, ``12h`` or ``90m``.

    Raises:
        ConfigurationError: It is none.

    >>> read_duration("2w").days
    14
    """
    found = re.fullmatch(r"(\d{1,6})([smhdw])", text.strip().lower())
    if found is None:
        raise ConfigurationError(
            f"{text[:40]!r} is no length of time.", fix="Write a number and s, m, h, d or w: 30d."
        )
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
