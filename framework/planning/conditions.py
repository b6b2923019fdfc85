"""Conditions on results, written as data in a step's ``when`` field.

A comparison is ``{"of": "forecast.wind", "is": ">", "than": 12}``. Combine comparisons with
``{"and": [...]}``, ``{"or": [...]}``, and ``{"not": ...}``.

Conditions use three-valued logic. A comparison is unknown if its result will never exist because
the step that provides it was skipped. ``and`` and ``or`` are unknown only if the known parts do not
decide them. A step runs only if its condition is true.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from capgraph.base import ErrorSeverity, ValidationError
from capgraph.planning.plan_access import is_too_deep
from capgraph.planning.problems import Path, preview

OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
MAX_DEPTH = 16
MAX_COMPARISONS = 100
MISSING: Any = object()
"""Marker for a value that will never exist."""

_ORDERED_KINDS = frozenset({"number", "text"})
_COMBINATORS = ("and", "or")


def iter_comparisons(condition: object) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield each comparison in a step's condition, with its path in the condition.

    >>> [path for path, _ in iter_comparisons({"not": {"of": "a", "is": ">", "than": 1}})]
    [('not',)]
    """
    if not is_too_deep(condition, MAX_DEPTH):
        yield from _iter_nested_comparisons(condition, ())


def _iter_nested_comparisons(
    condition: object, path: Path
) -> Iterator[tuple[Path, dict[str, Any]]]:
    if not isinstance(condition, dict):
        return
    if isinstance(condition.get("of"), str):
        yield path, condition
    yield from _iter_nested_comparisons(condition.get("not"), (*path, "not"))
    for name in _COMBINATORS:
        parts = condition.get(name)
        for number, part in enumerate(parts if isinstance(parts, list) else ()):
            yield from _iter_nested_comparisons(part, (*path, name, number))


def iter_condition_errors(condition: object) -> Iterator[tuple[Path, Any, str]]:
    """Validate a condition's syntax, and yield the path, value, and cause of each error.

    >>> [cause for _, _, cause in iter_condition_errors({"of": "a", "is": "about", "than": 1})]
    ['is not an operator; use one of >, >=, <, <=, ==, !=']
    """
    if is_too_deep(condition, MAX_DEPTH):
        yield (), condition, f"nests deeper than {MAX_DEPTH} levels"
    elif sum(1 for _ in iter_comparisons(condition)) > MAX_COMPARISONS:
        yield (), condition, f"has more than {MAX_COMPARISONS} comparisons"
    else:
        yield from _iter_form_errors(condition, ())


def _iter_form_errors(condition: object, path: Path) -> Iterator[tuple[Path, Any, str]]:
    fields: dict[Any, Any] = condition if isinstance(condition, dict) else {}
    name = next(iter(fields), None) if len(fields) == 1 else None
    if name == "not":
        yield from _iter_form_errors(fields[name], (*path, name))
    elif name in _COMBINATORS:
        if not isinstance(fields[name], list) or not fields[name]:
            yield (*path, name), fields[name], "is not a list of conditions"
            return
        for number, part in enumerate(fields[name]):
            yield from _iter_form_errors(part, (*path, name, number))
    elif fields.keys() != {"of", "is", "than"}:
        yield path, condition, "is not a condition"
    else:
        if not isinstance(fields["of"], str) or not fields["of"]:
            yield (*path, "of"), fields["of"], "names no result"
        sign, than = fields["is"], fields["than"]
        if not isinstance(sign, str) or sign not in OPERATORS:
            cause = f"is not an operator; use one of {', '.join(OPERATORS)}"
            yield (*path, "is"), sign, cause
        elif (
            value_kind(than) in ("list", "object") or than in (math.inf, -math.inf) or than != than
        ):
            cause = "is not text, a finite number, true, false, or null"
            yield (*path, "than"), than, cause
        elif sign not in ("==", "!=") and value_kind(than) not in _ORDERED_KINDS:
            yield (*path, "than"), than, f"cannot be compared with {sign}"


def value_kind(value: object) -> str:
    """Return the kind of a plain value, such as ``number`` or ``text``.

    Only values of the same kind can be compared.
    """
    if value is None or isinstance(value, bool):
        return "nothing" if value is None else "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "text"
    return "list" if isinstance(value, list) else "object"


def evaluate_condition(condition: Mapping[str, Any], value_of: Callable[[str], Any]) -> bool | None:
    """Evaluate the condition of a step, which must be valid.

    Args:
        condition: Condition of a step's ``when`` field.
        value_of: Function that returns the value at a reference path, or :data:`MISSING`.

    Returns:
        True or False, or ``None`` if a missing value makes the result unknown.

    Raises:
        ValidationError: Two values of different types are compared. The severity is REPLANNING.

    >>> rule = {"or": [{"of": "a", "is": ">", "than": 3}, {"of": "b", "is": "==", "than": "x"}]}
    >>> evaluate_condition(rule, {"a": 4, "b": "y"}.get), evaluate_condition(rule, {"a": 1, "b": MISSING}.get)
    (True, None)
    """
    if "not" in condition:
        inner = evaluate_condition(condition["not"], value_of)
        return None if inner is None else not inner
    for name, decided in zip(_COMBINATORS, (False, True), strict=True):
        if name in condition:
            unknown = False
            for part in condition[name]:
                found = evaluate_condition(part, value_of)
                if found is decided:
                    return decided
                unknown = unknown or found is None
            return None if unknown else not decided
    value, sign, than = value_of(condition["of"]), condition["is"], condition["than"]
    if value is MISSING:
        return None
    if sign in ("==", "!="):
        # Python considers True and 1 equal.
        equal = value_kind(value) == value_kind(than) and value == than
        return equal is (sign == "==")
    if value_kind(value) != value_kind(than):
        raise ValidationError(
            f"Cannot compare values of different types in {describe_condition(condition)!r}: "
            f"{condition['of']} is {preview(value)}.",
            fix="Compare numbers with numbers and text with text.",
            severity=ErrorSeverity.REPLANNING,
        )
    return OPERATORS[sign](value, than)


def describe_condition(condition: object) -> str:
    """Format a condition as readable text, or preview a value that is not a condition.

    >>> describe_condition({"and": [{"of": "a", "is": ">", "than": 1}, {"not": {"of": "b", "is": "==", "than": "x"}}]})
    'a > 1 and not (b == "x")'
    """
    if is_too_deep(condition, MAX_DEPTH) or not isinstance(condition, dict):
        return preview(condition)
    if "not" in condition:
        return f"not ({describe_condition(condition['not'])})"
    for name in _COMBINATORS:
        parts = condition.get(name)
        if isinstance(parts, list):
            several = (isinstance(p, dict) and p.keys() & set(_COMBINATORS) for p in parts)
            words = (
                f"({describe_condition(p)})" if s else describe_condition(p)
                for p, s in zip(parts, several, strict=True)
            )
            return f" {name} ".join(words)
    than = json.dumps(condition.get("than"), default=preview)
    return f"{condition.get('of')} {condition.get('is')} {than}"
