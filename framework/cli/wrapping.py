"""Breaks streamed text at words, although the end of a word may come later than its beginning."""

from __future__ import annotations

import re
from collections.abc import Callable

_PIECES = re.compile(r"\n|[^\S\n]+|\S+")


class WordWrapper:
    r"""Writes text piece by piece, and begins a new line where a word does not fit.

    Args:
        write: Receives what is to be shown.
        width: Columns of a line.

    >>> shown = []
    >>> wrapper = WordWrapper(shown.append, width=7)
    >>> for piece in ("one t", "wo thr", "ee"):
    ...     wrapper.feed(piece)
    >>> wrapper.flush()
    >>> "".join(shown)
    'one two\nthree'
    """

    def __init__(self, write: Callable[[str], None], width: int) -> None:
        self._write = write
        self._width = max(1, width)
        self._column = 0
        self._space = ""
        self._word = ""

    def feed(self, text: str) -> None:
        """Take in the next piece; its last word waits for what follows."""
        for piece in _PIECES.findall(text):
            if piece == "\n":
                self.flush()
                self._write("\n")
                self._column, self._space = 0, ""
            elif piece.isspace():
                self._end_word()
                self._space += piece
            else:
                self._word += piece

    def flush(self) -> None:
        """Write what waits."""
        self._end_word()

    def _end_word(self) -> None:
        if not self._word:
            return
        from rich.cells import cell_len

        wide, gap = cell_len(self._word), cell_len(self._space)
        if self._column and self._column + gap + wide > self._width:
            self._write("\n")
            self._column, self._space, gap = 0, "", 0
        self._write(self._space + self._word)
        self._column += gap + wide
        self._space = self._word = ""
