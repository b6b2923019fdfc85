"""Names, docstrings, and messages follow the rules of CONTRIBUTING.md.

``writing_exceptions.txt`` lists the passages that do not follow them yet. The list may only shrink:
a passage that was mended must leave it, and a new one is refused.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("framework", "configs", "capabilities", "infrastructure")
EXCEPTIONS = Path(__file__).with_name("writing_exceptions.txt")

OPENINGS = re.compile(
    r"(?:What|Whatever|Whoever|Whether|How|So|There (?:is|are)|That|Where|Which|Who|Say|Tell|Give)\b"
)
"""First words that no docstring summary may have: they hide the subject."""
PHRASES = re.compile(
    r"\b(?:is told|are told|takes? up|leaves? word|stands? (?:around|beside|in for|above|below)"
    r"|stood|whoever|whatever|somebody|nobody|be it|likewise|thereby|"
    r"is no (?:number|text|name|list|date|time)|none that|nothing that|come to nothing|"
    r"at hand|on the spot|goes on|went on|gone on)\b",
    re.IGNORECASE,
)
"""Phrases with a plain word in their place: notify, resume, "must be X", nobody can act on them."""
BRITISH = re.compile(
    r"\b(?:behaviour|colour|recognis|normalis|serialis|initialis|organis|catalogue|licence|"
    r"neighbour|favour|honour|labelled|modelled|travell|centre\b|metres?\b|summaris|analyse)\w*",
    re.IGNORECASE,
)
"""Spellings that have an American form."""
PARTICIPLES = frozenset(
    [
        "answered",
        "asked",
        "began",
        "begun",
        "brought",
        "checked",
        "chosen",
        "closed",
        "counted",
        "drawn",
        "fitting",
        "found",
        "given",
        "gone",
        "heard",
        "held",
        "kept",
        "known",
        "left",
        "made",
        "meant",
        "mended",
        "met",
        "named",
        "needed",
        "offered",
        "passed",
        "put",
        "read_of",
        "ruled",
        "said",
        "seen",
        "sent",
        "shown",
        "sorted",
        "stands",
        "stood",
        "taken",
        "told",
        "tried",
        "used",
        "waited",
        "wanted",
        "went",
        "whole",
        "worked",
        "written",
    ]
)
"""Words that say nothing as the name of a module, function, class, method, or parameter."""


def files() -> list[Path]:
    """Return every Python file that ships."""
    return [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path == path.resolve()
    ]


def defined(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield every definition of a module with its qualified name."""
    stack: list[tuple[str, ast.AST]] = [("", tree)]
    while stack:
        prefix, node = stack.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                yield name, child
                stack.append((f"{name}.", child))
            elif isinstance(child, ast.If | ast.Try | ast.With):
                stack.append((prefix, child))


def texts_of_errors(tree: ast.Module) -> Iterator[str]:
    """Yield the message and the fix of every error that a module raises."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if not name.endswith(("Error", "AskAgain")):
            continue
        for part in [
            *node.args[:2],
            *[k.value for k in node.keywords if k.arg in {"fix", "message"}],
        ]:
            text = "".join(
                str(leaf.value)
                for leaf in ast.walk(part)
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
            )
            if " " in text:
                yield text


def faults_of(path: Path, root: Path = ROOT) -> Iterator[str]:
    """Yield a line for every passage of a file that breaks a rule."""
    place = path.relative_to(root).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bodies: list[tuple[str, ast.AST]] = [("module", tree), *defined(tree)]
    for name, node in bodies:
        assert isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        text = ast.get_docstring(node) or ""
        prose = re.sub(r">>>.*?(?=\n\n|\Z)|``[^`]*``", "", text, flags=re.S)
        if OPENINGS.match(text):
            yield f"{place} {name}: opens with {text.split()[0]!r}"
        for pattern in (PHRASES, BRITISH):
            if hit := pattern.search(prose):
                yield f"{place} {name}: has {hit[0]!r}"
        short = name.rpartition(".")[2].strip("_")
        if not isinstance(node, ast.Module) and short in PARTICIPLES:
            yield f"{place} {name}: is a bare participle"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            for argument in every:
                if argument.arg.strip("_") in PARTICIPLES:
                    yield f"{place} {name}: takes a parameter {argument.arg!r}"
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef) and isinstance(body, list):
            for before, part in pairwise(body):
                match before, part:
                    case ast.Assign() | ast.AnnAssign(), ast.Expr(
                        value=ast.Constant(value=str() as text)
                    ):
                        if OPENINGS.match(text):
                            target = ast.unparse(before).split("=")[0].split(":")[0].strip()
                            yield f"{place} {target}: opens with {text.split()[0]!r}"
    for text in texts_of_errors(tree):
        if hit := PHRASES.search(text):
            yield f"{place} error {text[:50]!r}: has {hit[0]!r}"


def known() -> set[str]:
    return set(EXCEPTIONS.read_text(encoding="utf-8").splitlines()) - {""}


def test_text_and_names_follow_the_rules() -> None:
    found = {fault for path in files() for fault in faults_of(path)}
    listed = known()
    assert not found - listed, "\n".join(sorted(found - listed))
    assert not listed - found, "Remove from writing_exceptions.txt:\n" + "\n".join(
        sorted(listed - found)
    )


def test_public_name_means_one_thing() -> None:
    meanings = defaultdict(set)
    for init in sorted((ROOT / "framework").rglob("__init__.py")):
        package = ".".join(["capgraph", *init.parent.relative_to(ROOT / "framework").parts])
        if "compat" in package:
            continue
        try:
            module = importlib.import_module(package)
        except ImportError:  # an extra that is not installed
            continue
        for name in getattr(module, "__all__", []):
            value = getattr(module, name)
            meanings[name].add(f"{getattr(value, '__module__', package)}.{name}")
    doubled = {name: sorted(places) for name, places in meanings.items() if len(places) > 1}
    assert doubled == {}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('"""What is told."""\n', "opens with"),
        ('def kept() -> None:\n    """Return it."""\n', "bare participle"),
        ('def f() -> None:\n    raise ValueError("x is no number here")\n', "is no number"),
    ],
)
def test_rules_find_what_they_are_for(tmp_path: Path, text: str, fault: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(text, encoding="utf-8")
    assert any(fault in line for line in faults_of(module, tmp_path))
