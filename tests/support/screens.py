"""Screens of terminals, as a person sees them."""

from __future__ import annotations

import pyte
from pyte.modes import LNM

_MAX_LINES = 500


def screen_text(output: str, width: int, *, line_feeds: bool = True) -> str:
    """Return the text that a terminal shows after a program wrote its output.

    Args:
        output: Output with control sequences.
        width: Columns of the terminal.
        line_feeds: True if the output has line feeds only, as in a file.
    """
    return "\n".join(draw_screen(output, width, line_feeds=line_feeds)[0])


def draw_screen(
    output: str, width: int, *, line_feeds: bool = False
) -> tuple[list[str], list[str]]:
    """Return the lines of a terminal, and the lines that were longer than its width."""
    screen = _Screen(width, _MAX_LINES)
    if line_feeds:
        screen.set_mode(LNM)
    pyte.Stream(screen).feed(output)
    lines = "\n".join(line.rstrip() for line in screen.display).rstrip()
    return lines.splitlines(), screen.long_lines


class _Screen(pyte.Screen):
    """Screen that records the lines that it had to wrap."""

    def __init__(self, columns: int, lines: int) -> None:
        self.long_lines: list[str] = []
        super().__init__(columns, lines)

    def draw(self, data: str) -> None:
        for character in data:
            if self.cursor.x == self.columns:
                self.long_lines.append(self.display[self.cursor.y])
            super().draw(character)
