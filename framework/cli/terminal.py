"""Terminal output of untrusted text, tables, and errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from capgraph.configs.errors import ConfigurationError
from capgraph.configs.logger import escape_control_characters, mask_secrets
from capgraph.helpers.files import write_atomic

if TYPE_CHECKING:
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.text import Text


class OutputClosedError(OSError):
    """Raised when a command writes to standard output after the reader has closed it."""


def to_printable(text: object) -> str:
    r"""Escape the control characters in untrusted text, except line breaks.

    >>> to_printable("one\r\ntwo\x1b[2J")
    'one\ntwo\\x1b[2J'
    """
    lines = str(text).replace("\r\n", "\n").split("\n")
    return "\n".join(escape_control_characters(line) for line in lines)


def one_line(text: object, limit: int | None = 200) -> str:
    r"""Convert untrusted text to a single printable line.

    Text longer than ``limit`` characters is truncated with an ellipsis.

    >>> one_line("a\nb   c", limit=4)
    'a b…'
    """
    flat = " ".join(str(text).split())
    if limit is not None and len(flat) > limit:
        flat = f"{flat[: limit - 1].rstrip()}…"
    return to_printable(flat)


def print_text(text: object) -> None:
    """Print untrusted text to standard output."""
    import typer

    typer.echo(to_printable(text))


def print_rows(
    headings: Iterable[str],
    rows: Iterable[Iterable[object]],
    *,
    empty_message: str = "",
    data: object = None,
) -> None:
    """Print rows as a table on a terminal, as tab-separated lines elsewhere, or as JSON.

    Args:
        headings: Column headings.
        rows: Rows of untrusted values.
        empty_message: Message printed on a terminal if there are no rows.
        data: Data to print as JSON instead of the rows.
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


def render_markdown(text: str) -> Markdown:
    """Return untrusted Markdown for a terminal, with its line breaks, HTML, and link addresses.

    The text is printed as it is written, except for headings, lists, tables, emphasis, and code.
    """
    from markdown_it import MarkdownIt
    from rich.markdown import Heading, Markdown

    class LeftHeading(Heading):
        LEVEL_ALIGN: ClassVar[dict[str, Any]] = {}

    class TerminalMarkdown(Markdown):
        elements: ClassVar[Any] = {**Markdown.elements, "heading_open": LeftHeading}

    rendered = TerminalMarkdown("", code_theme="ansi_dark", hyperlinks=False)
    # Rich drops HTML and the address of an image, and joins the lines of a paragraph.
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    rendered.parsed = parser.disable("image").parse(to_printable(text))
    for token in rendered.parsed:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
    return rendered


def split_complete_blocks(text: str) -> tuple[str, str]:
    r"""Split streamed Markdown into its complete blocks and the rest, which may still grow.

    >>> split_complete_blocks("# Levels\n\nThe tank is")
    ('# Levels\n\n', 'The tank is')
    >>> split_complete_blocks("```\na\n\nb")
    ('', '```\na\n\nb')
    """
    split_at, position, fence, is_after_blank = 0, 0, "", False
    for line in text.splitlines(keepends=True):
        content = line.strip()
        if is_after_blank and not fence and content and not line[0].isspace():
            split_at = position
        if (mark := content[:3]) in ("```", "~~~") and fence in ("", mark):
            fence = "" if fence else mark
        is_after_blank = not content
        position += len(line)
    return text[:split_at], text[split_at:]


def make_console(file: TextIO | None = None) -> Console:
    """Create a console that prints text literally, without markup, emoji codes, or highlighting."""
    from rich.console import Console

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:
            # Rich would exit the process during the turn. An ordinary exception lets the turn be
            # cancelled and the database be closed.
            raise OutputClosedError("Standard output was closed.")

    return PlainConsole(
        file=file, markup=False, emoji=False, highlight=False, soft_wrap=False, legacy_windows=False
    )


def print_wrapped(
    console: Console, text: Text | str, style: str | None = None, *, is_copied: bool = False
) -> None:
    """Print untrusted text, wrapped between words on a terminal.

    Args:
        console: Output console.
        text: The text.
        style: Style on a terminal.
        is_copied: True for a command or a path, which a terminal must break without a line feed so
            that it can be copied.
    """
    is_terminal = console.is_terminal
    console.print(
        text, style=style if is_terminal else None, soft_wrap=is_copied or not is_terminal
    )


def is_interactive() -> bool:
    """Return True if both standard input and standard output are connected to a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def print_error(error: BaseException) -> None:
    """Print an error message to standard error, with secrets masked."""
    text = to_printable(mask_secrets(str(error) or type(error).__name__))
    print_wrapped(make_console(sys.stderr), f"Error: {text}", "red")


def write_file(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write text to a file atomically, so that readers never see a partly written file.

    Args:
        path: Path of the file.
        text: The content.
        mode: Permissions of the file. By default, only its owner can read it.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    try:
        write_atomic(path, text, mode=mode)
    except OSError as exc:
        raise ConfigurationError(
            f"File {str(path)!r} cannot be written: {exc.strerror or exc}.",
            fix="Choose a file in a writable folder.",
        ) from exc
