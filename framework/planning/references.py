"""What a step reads: its inputs, and parameters that name a result, ``{"$from": "stats.maximum"}``.

The text of a reference is a context key and, after it, names of fields or places in lists. What
stands there in the stored result takes the place of the reference before the parameters are
validated.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, NamedTuple

from framework.base import CapabilityContext, ErrorSeverity, ValidationError
from framework.base.value_context import ValueContext
from framework.planning.problems import Path
from framework.planning.reading import is_too_deep

FROM = "$from"

ContextTypes = Mapping[str, type[CapabilityContext]]


class Read(NamedTuple):
    """One result that a step reads.

    Attributes:
        path: Where the step names it.
        label: The input's type or role; ``$from`` for a reference.
        key: The context key.
    """

    path: Path
    label: str
    key: str


def is_reference(value: object) -> bool:
    """Tell whether a value is a reference, well-formed or not."""
    return isinstance(value, dict) and FROM in value


def references_of(parameters: object) -> Iterator[tuple[Path, str]]:
    """Yield where in parameters a reference stands, and its text."""
    if not is_too_deep(parameters):
        yield from _references(parameters, ())


def _references(value: object, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, dict) and FROM in value:
        text = value[FROM]
        yield path, text if isinstance(text, str) and len(value) == 1 else ""
    elif isinstance(value, (dict, list)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for part, item in parts:
            yield from _references(item, (*path, part if isinstance(part, int) else str(part)))


def key_in(text: str, known: Container[str]) -> str:
    """Return the context key that a reference begins with; keys may hold dots themselves.

    >>> key_in("seattle.daily.maximum", {"seattle.daily"})
    'seattle.daily'
    >>> key_in("stats.maximum", {})
    'stats'
    """
    key = text
    while key not in known and "." in key:
        key = key.rpartition(".")[0]
    return key


def reads_of(step: object, known: Container[str] = ()) -> Iterator[Read]:
    """Yield what a step reads, in its order.

    Args:
        step: The step.
        known: The context keys of the plan.
    """
    if not isinstance(step, dict):
        return
    inputs = step.get("inputs")
    for number, entry in enumerate(inputs if isinstance(inputs, list) else ()):
        for label, key in entry.items() if isinstance(entry, dict) else ():
            if isinstance(label, str) and isinstance(key, str):
                yield Read(("inputs", number, label), label, key)
    if step.get("parameters"):
        for path, text in references_of(step["parameters"]):
            yield Read(("parameters", *path), FROM, key_in(text, known))


def resolve_references(
    parameters: Any, contexts: Mapping[str, Mapping[str, Any]], types: ContextTypes
) -> Any:
    """Put the values in the place of the references.

    Raises:
        ValidationError: One names nothing that is there; the severity is REPLANNING.

    >>> resolve_references({"top": {"$from": "week.days.1"}}, {"WEEK": {"week": {"days": [3, 4]}}}, {})
    {'top': 4}
    """
    if is_reference(parameters):
        return _value(next(references_of(parameters), ((), ""))[1], contexts, types)
    if isinstance(parameters, dict):
        return {k: resolve_references(v, contexts, types) for k, v in parameters.items()}
    if isinstance(parameters, list):
        return [resolve_references(item, contexts, types) for item in parameters]
    return parameters


def _value(text: str, contexts: Mapping[str, Mapping[str, Any]], types: ContextTypes) -> Any:
    key = key_in(text, {key for stored in contexts.values() for key in stored})
    parts = text[len(key) :].split(".")[1:]
    found = []
    for kind, stored in contexts.items():
        if key in stored:
            value = stored[key]
            cls = types.get(kind)
            if cls is not None and issubclass(cls, ValueContext) and isinstance(value, Mapping):
                value = value.get("value")
            try:
                for part in parts:
                    value = value[int(part)] if isinstance(value, list) else value[part]
            except (LookupError, TypeError, ValueError):
                continue
            found.append(value)
    if len(found) == 1:
        return found[0]
    cause = "names several results" if found else "names nothing that is stored"
    raise ValidationError(
        f"The parameter reference {text!r} {cause}.",
        fix='Write {"$from": "context_key.field"} with the key of an earlier step and one of the'
        " fields of its result.",
        severity=ErrorSeverity.REPLANNING,
    )
