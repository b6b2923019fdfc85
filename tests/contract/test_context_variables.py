"""Global state is four context variables, and the architecture says what each is for."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("framework", "infrastructure", "capabilities", "configs")
LIMIT = 4  # lower it whenever one goes; it never rises


def context_variables() -> list[str]:
    found = []
    files = {path.resolve() for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    for path in sorted(files):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "ContextVar":
                found.append(ast.literal_eval(node.args[0]))
    return found


def test_there_are_no_more_context_variables_than_the_limit():
    assert len(context_variables()) <= LIMIT


def test_the_architecture_justifies_each_context_variable():
    told = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [name for name in context_variables() if f"`{name}`" not in told] == []
