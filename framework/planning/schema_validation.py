"""Validation of values against JSON schemas from elsewhere, with limited work.

The schema of an external tool may take exponential time: it can refer to itself twice, or contain a
regular expression that backtracks. Every keyword that is evaluated therefore counts, and regular
expressions are matched in linear time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

from capgraph.base.errors import ConfigurationError, ErrorSeverity, ValidationError, require_extra
from capgraph.configs.linear_regex import LinearTimeRegex
from capgraph.configs.logger import get_logger

_MIN_WORK = 100_000
_WORK_PER_VALUE = 20
_NAMES_PER_WORK = 10
"""Number of entries of a keyword, such as ``enum``, that count as much as a keyword."""
_STATES_PER_NAME = 100
"""Number of regular expression states per character that count as much as an entry."""


class BoundedValidator:
    """JSON schema validator whose work is linear in the size of the value.

    Args:
        schema: JSON schema. The keyword ``$schema`` selects its version.

    Raises:
        MissingExtraError: ``jsonschema`` is not installed.

    >>> BoundedValidator({"type": "integer"}).list_errors("x")[0].message
    "'x' is not of type 'integer'"
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        jsonschema = require_extra("jsonschema", "tools")
        validators = require_extra("jsonschema.validators", "tools")
        self._work = _Work()
        self._best_match = jsonschema.exceptions.best_match
        version = validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        keywords: dict[str, Any] = {
            **version.VALIDATORS,
            "pattern": _match_pattern,
            "patternProperties": _match_pattern_properties,
            "additionalProperties": _check_additional_properties,
            "uniqueItems": _check_unique_items,
        }
        if "unevaluatedProperties" in keywords and _uses(schema, "patternProperties"):
            # The library would search the names with expressions that backtrack.
            keywords["unevaluatedProperties"] = _accept
        counted = {name: partial(self._count, check) for name, check in keywords.items()}
        # An empty registry: references to other documents are never fetched.
        registry = require_extra("referencing", "tools").Registry()
        self._schema = schema
        self._kind = validators.extend(version, counted)
        # The library would switch to its own keywords in a part that declares another "$schema".
        self._kind.evolve = require_extra("attrs", "tools").evolve
        self._validator = self._kind(schema, registry=registry)

    def find_schema_fault(self) -> Any:
        """Return the most relevant error in the schema itself, or ``None`` if it is valid."""
        # The metaschema consists of several documents, so the registry is the library's own.
        checker = self._kind(self._kind.META_SCHEMA)
        with self._work.limit(self._schema):
            return self._best_match(checker.iter_errors(self._schema))

    def list_errors(self, value: Any, schema: Mapping[str, Any] | None = None) -> list[Any]:
        """Return the errors of a value.

        Args:
            value: Value to validate.
            schema: Part of the schema to validate against. Defaults to the whole schema.

        Raises:
            ValidationError: The validation takes too much work.
        """
        validator = self._validator if schema is None else self._validator.evolve(schema=schema)
        with self._work.limit(value):
            return [*validator.iter_errors(value)]

    def _count(
        self, check: Callable[..., Any], validator: Any, keyword: Any, value: Any, schema: Any
    ) -> Iterator[Any]:
        entries = len(keyword) if isinstance(keyword, (dict, list)) else 0
        if check is _match_pattern and isinstance(value, str):
            entries = len(value) * _compile_pattern(keyword).size // _STATES_PER_NAME
        self._work.spend(entries)
        yield from check(validator, keyword, value, schema) or ()


class _Work(threading.local):
    """Work that is left for the validation that runs in this thread."""

    left: float = 0

    def limit(self, value: Any) -> _Work:
        """Set the work for a value, for use as a context manager."""
        self.left = _MIN_WORK + _WORK_PER_VALUE * _count_values(value)
        return self

    def __enter__(self) -> None:
        """Begin the validation."""

    def __exit__(self, *_: object) -> None:
        """End the validation."""
        self.left = 0

    def spend(self, entries: int) -> None:
        """Count the evaluation of a keyword with a number of entries."""
        self.left -= 1 + entries // _NAMES_PER_WORK
        if self.left < 0:
            raise ValidationError(
                "The JSON schema takes too much time to validate the value.",
                fix="Send a smaller value, or exclude the tool that declares the schema.",
                severity=ErrorSeverity.CRITICAL,
            )


def _count_values(value: Any) -> int:
    count, parts = 0, [value]
    while parts:
        part = parts.pop()
        count += 1
        inner = part.values() if isinstance(part, Mapping) else part
        parts += inner if isinstance(part, (Mapping, list, tuple)) else ()
    return count


def _uses(schema: Any, keyword: str) -> bool:
    parts = [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, Mapping) and keyword in part:
            return True
        inner = part.values() if isinstance(part, Mapping) else part
        parts += [one for one in inner if isinstance(one, (Mapping, list))]
    return False


@lru_cache(maxsize=256)
def _compile_pattern(pattern: str) -> LinearTimeRegex:
    """Compile a regular expression whose search time is linear.

    A pattern without a linear-time form is logged and accepts any string.
    """
    try:
        return LinearTimeRegex(pattern)
    except ConfigurationError:
        get_logger("framework", "parameters").warning(
            "The pattern %r cannot be matched in linear time: any text is accepted", pattern
        )
        return LinearTimeRegex("")


def _fault(message: str) -> Exception:
    from jsonschema.exceptions import ValidationError as Fault

    fault: Exception = Fault(message)
    return fault


def _accept(*_: Any) -> None:
    return None


def _match_pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[Exception]:
    if isinstance(value, str) and not _compile_pattern(pattern).search(value):
        yield _fault(f"{value!r} does not match {pattern!r}")


def _match_pattern_properties(
    checker: Any, patterns: Any, value: Any, _: Any
) -> Iterator[Exception]:
    for pattern, inner in patterns.items() if isinstance(value, dict) else ():
        for name, item in value.items():
            if _compile_pattern(pattern).search(name):
                yield from checker.descend(item, inner, path=name, schema_path=pattern)


def _check_additional_properties(
    checker: Any, allowed: Any, value: Any, schema: Any
) -> Iterator[Exception]:
    if not isinstance(value, dict):
        return
    patterns = [_compile_pattern(pattern) for pattern in schema.get("patternProperties", ())]
    known = schema.get("properties", {})
    extra = [
        name
        for name in value
        if name not in known and not any(pattern.search(name) for pattern in patterns)
    ]
    if isinstance(allowed, dict):
        for name in extra:
            yield from checker.descend(value[name], allowed, path=name)
    elif not allowed and extra:
        yield _fault(f"Additional properties are not allowed: {extra[:5]}")


def _check_unique_items(_: Any, is_unique: Any, value: Any, __: Any) -> Iterator[Exception]:
    if is_unique and isinstance(value, list) and len({*map(_freeze, value)}) < len(value):
        yield _fault(f"{value!r} has non-unique elements")


def _freeze(value: Any) -> Any:
    """Return a hashable form that is equal for equal JSON values."""
    if isinstance(value, bool):
        return "boolean", value
    if isinstance(value, dict):
        return "object", frozenset((name, _freeze(item)) for name, item in value.items())
    return ("array", *map(_freeze, value)) if isinstance(value, list) else value
