"""Type checkers accept the code of the guides, as ``mypy --strict`` and pyright read a user's own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".mypy_cache/pages"  # its own: follow-imports is part of the key
PAGES = sorted(
    [ROOT / "README.md", *ROOT.glob("docs/tutorial*.md"), *ROOT.glob("docs/guides/*.md")]
)
# Short examples leave out annotations on purpose, and know more of a value than its type says.
UNTYPED = {
    "no-untyped-def",
    "no-untyped-call",
    "no-any-return",
    "type-arg",
    "var-annotated",
    "union-attr",
}
# Of pyright, what a wrong declaration in the framework would show. Dictionaries that pydantic makes
# into models are no arguments to it, which only mypy's plugin knows.
REPORTED = {
    "reportAssignmentType",
    "reportAttributeAccessIssue",
    "reportCallIssue",
    "reportGeneralTypeIssues",
    "reportIncompatibleMethodOverride",
    "reportIncompatibleVariableOverride",
    "reportIndexIssue",
}


def code_of(page: str) -> str:
    """Return the Python blocks of a page as a module whose lines have the numbers of the page."""
    lines, indent = [], -1
    for line in page.split("\n"):
        if indent < 0:
            start = re.match(r"^( *)```python *$", line)
            indent = len(start[1]) if start else -1
            lines.append("")
        elif line.strip() == "```":
            indent = -1
            lines.append("")
        else:
            lines.append(line[indent:])
    return "\n".join(lines)


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write each page as a module."""
    folder = tmp_path_factory.mktemp("pages")
    for page in PAGES:
        text = code_of(page.read_text("utf-8"))
        folder.joinpath(f"{page.stem.lower()}_page.py").write_text(text, "utf-8")
    return folder


def mypy_errors(paths: Iterator[Path] | list[Path], cache: Path) -> list[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    command += ["--no-error-summary", "--hide-error-context", f"--cache-dir={cache}"]
    done = subprocess.run(
        [*command, *map(str, paths)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    return [line for line in found if line.rpartition("[")[2].rstrip("]") not in UNTYPED]


def pyright_errors(paths: list[Path]) -> list[str]:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*command, *map(str, paths)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if not done.stdout.startswith("{"):  # its wrapper brings the checker itself from npm, once
        pytest.skip(f"pyright does not start: {done.stderr.strip()[-200:]}")
    return [
        f"{Path(one['file']).name}:{one['range']['start']['line'] + 1}: {one['message']}"
        for one in json.loads(done.stdout)["generalDiagnostics"]
        if one["severity"] == "error" and one.get("rule") in REPORTED
    ]


@pytest.mark.timeout(900)  # without a cache mypy reads all of the framework
def test_mypy_accepts_the_code_of_the_pages(modules: Path) -> None:
    assert mypy_errors(sorted(modules.glob("*.py")), CACHE) == []


@pytest.mark.timeout(900)
def test_pyright_accepts_the_code_of_the_pages_and_what_a_user_may_write(modules: Path) -> None:
    own = ROOT / "tests/support/typed.py"
    assert pyright_errors([*sorted(modules.glob("*.py")), own]) == []


WRONG = """
from capgraph import BaseCapability, capability_node
from capgraph.adapters import tool_capability


@capability_node
class Pay(BaseCapability):
    name = "pay"
    description = "Pay."
    effect_key = 3
    permission = 3.5

    async def execute(self) -> None: ...


print(Pay.capability_spek)
"""


@pytest.mark.timeout(900)
def test_a_wrong_declaration_is_seen_by_both(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(WRONG, "utf-8")
    lines = [
        WRONG[: WRONG.index(part)].count("\n") + 1 for part in ("effect_key", "permis", "print")
    ]
    for found in (mypy_errors([file], CACHE), pyright_errors([file])):
        assert [int(line.split(":")[1]) for line in found] == lines
