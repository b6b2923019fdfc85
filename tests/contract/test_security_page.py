"""The page about security names tests that exist, for every category and every attack."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "security.md").read_text("utf-8")
CATEGORIES = (
    "Spoofing",
    "Tampering",
    "Repudiation",
    "Information disclosure",
    "Denial of service",
    "Elevation of privilege",
)


def rows(category: str) -> list[list[str]]:
    """Return the cells of a category's table without its head."""
    section = PAGE.partition(f"\n## {category}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def named_tests(category: str) -> list[str]:
    return [name for row in rows(category) for name in re.findall(r"`([^`]+)`", row[-1])]


NAMES = sorted({name for category in CATEGORIES for name in named_tests(category)})


@pytest.mark.parametrize("category", CATEGORIES)
def test_every_row_has_an_asset_an_attacker_a_control_and_tests(category: str) -> None:
    assert len(rows(category)) > 2
    for row in rows(category):
        assert len(row) == 4
        assert all(row)
        assert re.search(r"`[^`]+\.py", row[-1]), row[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_test_of_the_page_exists(name: str) -> None:
    file, _, function = name.partition("::")
    tree = ast.parse((TESTS / file).read_text("utf-8"))
    defined = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name.startswith("test_")
    }
    assert function in defined if function else defined


def test_every_attack_is_on_the_page() -> None:
    attacks = {f"attacks/{path.name}" for path in (TESTS / "attacks").glob("test_*.py")}
    assert attacks - {name.partition("::")[0] for name in NAMES} == set()
