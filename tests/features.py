"""Features of the source systems and the tests that hold them.

``features.md`` beside this file lists the features, one row each. A test names the rows that it holds:
``@pytest.mark.row("G32")``. ``python -m tests.features`` prints every row with its tests.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS / "features.md"


def listed_rows() -> list[str]:
    """Return the IDs of all rows of ``features.md``, in their order."""
    return re.findall(r"^\| ([A-Z]\d+) \|", PAGE.read_text(encoding="utf-8"), re.M)


def rows_of(decorator: ast.expr) -> list[str]:
    """Return the rows that a marker names.

    >>> rows_of(ast.parse('pytest.mark.row("G1", "G2")').body[0].value)
    ['G1', 'G2']
    """
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.row":
        return [str(ast.literal_eval(argument)) for argument in decorator.args]
    return []


def collect_tests() -> dict[str, list[str]]:
    """Return the tests of each row: ``tests/unit/…/test_x.py::test_name``, or a whole file."""
    found = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        place = path.relative_to(TESTS.parent).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    for decorator in node.decorator_list:
                        for row in rows_of(decorator):
                            found[row].append(f"{place}::{node.name}")
                case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                    for mark in ast.walk(value):
                        if isinstance(mark, ast.Call):
                            for row in rows_of(mark):
                                found[row].append(place)
    return dict(found)


def main() -> None:
    """Print each row with its tests."""
    tests = collect_tests()
    for row in listed_rows():
        print(row, *tests.get(row, ["(no test)"]), sep="\n    ")


if __name__ == "__main__":
    main()
