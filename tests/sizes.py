"""Counts the code that ships, room by room: lines without docstrings, comments and blanks.

``python -m tests.sizes`` prints the table; ``--files`` prints one line for each file.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHIPPED = ("framework", "capabilities", "infrastructure", "configs", "capgraph_pytest.py")
"""What an installation of the package puts on a machine."""

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    r"""Return how many lines of Python source hold code.

    A string that stands alone, a docstring of a class, a function or an attribute, is no code.

    >>> code_lines("import os  # for names\n\n# nothing\nx = 1\n")
    2
    """
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                held.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(held)


def room_of(file: Path) -> str:
    """Return the room that a file belongs to: ``framework/cli``, ``capabilities``."""
    parts = file.relative_to(ROOT).parts
    return "/".join(parts[:2]) if parts[0] == "framework" and len(parts) > 2 else parts[0]


def shipped_files() -> list[Path]:
    """Return every Python file of the package."""
    found: list[Path] = []
    for name in SHIPPED:
        place = ROOT / name
        found += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return [file for file in found if file.is_file()]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="one line for each file")
    by_file = parser.parse_args().files
    sizes: Counter[str] = Counter()
    for file in shipped_files():
        name = str(file.relative_to(ROOT)) if by_file else room_of(file)
        sizes[name] += code_lines(file.read_text(encoding="utf-8"))
    for name, lines in sorted(sizes.items()):
        print(f"{lines:7,}  {name}")
    print(f"{sizes.total():7,}  in all")


if __name__ == "__main__":
    main()
