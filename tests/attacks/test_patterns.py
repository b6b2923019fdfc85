"""Every regular expression of the package needs time linear in the text that it reads.

Each is fed with repetitions of its own pieces: what a part of it matches, behind what stands before
that part, so that a search begins again and again and never ends well.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import time
from collections.abc import Iterator
from itertools import islice
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

import pytest

import capgraph

_CALLS = {"compile", "search", "match", "fullmatch", "sub", "subn", "findall", "finditer", "split"}
_ANCHORED = {"match", "fullmatch"}
_OWN_TEXT = {
    "capgraph.cli.timeline": "reads the package's own style sheet",
    "capgraph.scale.procrastinate_schema": "reads the SQL of an installed library",
    "capgraph.base.declarations": "reads the annotations of an author's class",
}
_SHORT, _LONG = 1500, 6000  # characters
_SLOW = 0.06  # seconds of this thread
_ALPHABET = "a1 -./:@=\"'_A\n,("


def _modules() -> Iterator[ModuleType]:
    for info in pkgutil.walk_packages(capgraph.__path__, "capgraph."):
        if not info.name.endswith("__main__") and info.name not in _OWN_TEXT:
            try:
                yield importlib.import_module(info.name)
            except ImportError:
                continue  # an extra is not installed


def _patterns() -> dict[tuple[str, int, bool], str]:
    """Return pattern, flags, and whether it is only matched from a beginning; and where it is."""
    found: dict[tuple[str, int, bool], str] = {}
    for module in _modules():
        if not (module.__file__ or "").endswith(".py"):
            continue
        with open(str(module.__file__), encoding="utf-8") as file:
            tree = ast.parse(file.read())
        used: dict[str, set[str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used.setdefault(node.value.id, set()).add(node.attr)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args and (call := _call_of(node)) is not None:
                text = _value(node.args[0], module)
                flags = [_value(one, module) for one in (*node.args[1:], *_flags_of(node))]
                bits = sum(int(flag) for flag in flags if isinstance(flag, re.RegexFlag))
                anchored = call in _ANCHORED
                if isinstance(text, str):
                    found.setdefault((text, bits, anchored), f"{module.__name__}:{node.lineno}")
        for name, pattern in vars(module).items():
            if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
                methods = used.get(name, set()) & _CALLS
                bits = pattern.flags & ~re.UNICODE.value
                anchored = bool(methods) and methods <= _ANCHORED
                found.setdefault((pattern.pattern, bits, anchored), f"{module.__name__}.{name}")
    return found


def _call_of(node: ast.Call) -> str | None:
    func = node.func
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
        # A compiled one is found by its name.
        return func.attr if func.value.id == "re" and func.attr in _CALLS - {"compile"} else None
    return "_like" if isinstance(func, ast.Name) and func.id == "_like" else None


def _flags_of(node: ast.Call) -> list[ast.expr]:
    return [keyword.value for keyword in node.keywords if keyword.arg == "flags"]


def _value(node: ast.expr, module: ModuleType) -> Any:
    try:
        return eval(compile(ast.Expression(node), "pattern", "eval"), dict(vars(module)))
    except Exception:
        return None


def _matches(item: tuple[Any, Any], char: str) -> bool:
    op, given = item
    if op is ops.LITERAL:
        return chr(given) == char
    if op is ops.RANGE:
        return bool(given[0] <= ord(char) <= given[1])
    classes = {
        ops.CATEGORY_SPACE: char.isspace(),
        ops.CATEGORY_DIGIT: char.isdigit(),
        ops.CATEGORY_WORD: char.isalnum() or char == "_",
        ops.CATEGORY_NOT_SPACE: not char.isspace(),
        ops.CATEGORY_NOT_DIGIT: not char.isdigit(),
        ops.CATEGORY_NOT_WORD: not (char.isalnum() or char == "_"),
    }
    return bool(classes.get(given, False))


def _chars(items: list[tuple[Any, Any]]) -> list[str]:
    negated = items[0][0] is ops.NEGATE
    own = [chr(given) for op, given in items if op is ops.LITERAL and not negated]
    tried = [*own, *_ALPHABET, *(chr(given[0]) for op, given in items if op is ops.RANGE)]
    wanted = items[1:] if negated else items
    fits = [char for char in tried if any(_matches(i, char) for i in wanted) is not negated]
    return list(dict.fromkeys(fits))[:3] or ["\u2603"]


def _samples(parts: Any) -> list[str]:
    """Return a few texts that a sequence matches."""
    texts = [""]
    for op, given in parts:
        options = [""]
        if op is ops.LITERAL:
            options = [chr(given)]
        elif op in (ops.NOT_LITERAL, ops.ANY):
            options = ["a" if given != ord("a") else "b"]
        elif op is ops.IN:
            options = _chars(given)[:2]
        elif op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT):
            least, _, inner = given
            options = [text * max(least, 1) for text in _samples(inner)[:2]]
            options += [""] if least == 0 else []
        elif op is ops.SUBPATTERN:
            options = _samples(given[3])[:3]
        elif op is ops.ATOMIC_GROUP:
            options = _samples(given)[:3]
        elif op is ops.BRANCH:
            options = [text for branch in given[1][:4] for text in _samples(branch)[:1]]
        texts = [text + option for text in texts for option in options][:6]
    return texts


def _pieces(parts: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield what may stand before a repetition, and what is repeated."""
    parts = list(parts)
    for place, (op, given) in enumerate(parts):
        heads = [before + text for text in _samples(parts[:place])[:2]]
        for text in _samples(parts[: place + 1])[:2]:
            yield "", text
        inner: list[Any] = []
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT):
            inner = [given[2]]
            for text in (*_samples(given[2])[:3], *_samples(parts[place : place + 2])[:2]):
                yield from ((head, text) for head in heads)
        elif op is ops.SUBPATTERN:
            inner = [given[3]]
        elif op is ops.ATOMIC_GROUP:
            inner = [given]
        elif op is ops.BRANCH:
            inner = list(given[1][:10])
        for one in inner:
            yield from _pieces(one, heads[0])


def _seconds(pattern: re.Pattern[str], text: str, anchored: bool) -> float:
    began = time.thread_time()
    if anchored:
        pattern.match(text)
    else:
        for _ in pattern.finditer(text):
            pass
    return time.thread_time() - began


def _growth(pattern: re.Pattern[str], head: str, piece: str, end: str, anchored: bool) -> str:
    """Return how the time grows where it grows faster than the text, or ""."""
    for count in range(8, 32, 4):
        if _seconds(pattern, head + piece * count + end, anchored) > _SLOW:
            return f"{count} repetitions are too many"
    times = [
        _seconds(pattern, head + piece * max(1, length // len(piece)) + end, anchored)
        for length in (_SHORT, _LONG)
    ]
    fast = times[1] < _SLOW or times[1] < 8 * times[0]
    return "" if fast else f"{times[0]:.3f} s became {times[1]:.3f} s"


PATTERNS = _patterns()


def test_the_patterns_of_the_package_are_found() -> None:
    assert len(PATTERNS) > 150


@pytest.mark.sampled(0.4)
@pytest.mark.parametrize(("text", "flags", "anchored"), PATTERNS, ids=list(PATTERNS.values()))
def test_a_pattern_is_linear(text: str, flags: int, anchored: bool) -> None:
    pattern = re.compile(text, flags)
    pairs = dict.fromkeys(_pieces(_parser.parse(text, flags)))
    tried = dict.fromkeys(
        one for head, piece in pairs if piece for one in ((head, piece), ("", head + piece))
    )
    for head, piece in islice(tried, 120):
        for end in ("", "\u2603"):
            told = _growth(pattern, head, piece, end, anchored)
            assert not told, f"{head!r} + {piece!r} * n + {end!r}: {told}"


def test_a_pattern_that_is_not_linear_would_be_found() -> None:
    for bad in (r"\s+$", r"(a+)+b", r"x.*y.*z", r"\w+@"):
        with pytest.raises(AssertionError):
            test_a_pattern_is_linear(bad, 0, False)
