"""Writes the figures into the documentation, between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

BEGIN = "<!-- results: written by the benchmark, do not edit -->"
END = "<!-- end of results -->"


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table.

    >>> print(table(["a", "b"], [["1", "2 | 3"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 \\| 3 |
    """
    lines = [heading, ["---"] * len(heading), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def replace_results(file: Path, text: str) -> None:
    """Put text between the marks of a file.

    Raises:
        ValueError: The file does not have both marks.
    """
    whole = file.read_text(encoding="utf-8")
    head, begin, rest = whole.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{file} has no place between {BEGIN!r} and {END!r}.")
    file.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}", encoding="utf-8")
