"""Text that is safe to print, where it is printed, and files that appear whole or not at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from capgraph.configs.errors import ConfigurationError
from capgraph.configs.logger import escape_control_characters, mask_secrets
from capgraph.helpers.files import write_atomic

if TYPE_CHECKING:
    from rich.console import Console


class OutputClosedError(OSError):
    """Standard output was closed while the command wrote to it."""


def to_printable(text: object) -> str:
    r"""Make text of any origin safe for a terminal; its line breaks stay.

    >>> to_printable("one\r\ntwo\x1b[2J")
    'one\ntwo\\x1b[2J'
    """
    lines = str(text).replace("\r\n", "\n").split("\n")
    return "\n".join(escape_control_characters(line) for line in lines)


def one_line(text: object, limit: int | None = 200) -> str:
    r"""Return text as one safe line, shortened with an ellipsis where there is a limit.

    >>> one_line("a\nb   c", limit=4)
    'a b…'
    """
    flat = " ".join(str(text).split())
    if limit is not None and len(flat) > limit:
        flat = f"{flat[: limit - 1].rstrip()}…"
    return to_printable(flat)


def print_text(text: object) -> None:
    """Print text to standard output as it is, but safe."""
    import typer

    typer.echo(to_printable(text))


def print_rows(
    headings: Iterable[str],
    rows: Iterable[Iterable[object]],
    *,
    empty_message: str = "",
    data: object = None,
) -> None:
    """Print rows: as a table on a terminal, else tab-separated without headings; or as JSON.

    Args:
        headings: What the columns are.
        rows: AtomicValueStore of any origin.
        empty_message: What a terminal says when there is no row.
        data: What is printed as JSON in place of the rows.
    """
    if data is not None:
        import typer

        typer.echo(json.dumps(data, indent=2, default=str))
        return
    console = make_console()
    lines = [[one_line(cell, 1000) for cell in row] for row in rows]
    if not console.is_terminal:
        for line in lines:
            print_text("\t".join(line))
    elif empty_message and not lines:
        console.print(empty_message)
    else:
        from rich.table import Column, Table
        from rich.text import Text

        table = Table(*(Column(Text(one_line(name)), overflow="fold") for name in headings))
        for line in lines:
            table.add_row(*map(Text, line))
        console.print(table)


def make_console(file: TextIO | None = None) -> Console:
    """Return a console that prints text as it is: no markup, no emoji codes, no highlighting."""
    from rich.console import Console

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:
            # Rich would end the process from inside the running turn; an ordinary error lets
            # the turn be cancelled and the database be closed.
            raise OutputClosedError("Nobody reads the output any more.")

    return PlainConsole(
        file=file, markup=False, emoji=False, highlight=False, soft_wrap=False, legacy_windows=False
    )


def is_interactive() -> bool:
    """Whether a person sits at both ends."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def print_error(error: BaseException) -> None:
    """Print one clean message to standard error."""
    text = to_printable(mask_secrets(str(error) or type(error).__name__))
    console = make_console(sys.stderr)
    console.print(f"Error: {text}", style="red" if console.is_terminal else None, soft_wrap=True)


def write_file(path: Path, text: str) -> None:
    """Write a file that a person named; one that was there stays whole until the new one is.

    Raises:
        ConfigurationError: It cannot be written.
    """
    try:
        write_atomic(path, text)
    except OSError as exc:
        raise ConfigurationError(
            f"The file {str(path)!r} cannot be written: {exc.strerror or exc}.",
            fix="Give a file in a folder that you may write to.",
        ) from exc
