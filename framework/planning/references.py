"""Parameters that name a result of an earlier step: ``{"$from": "stats.maximum"}``.

The text is a context key and, after it, names of fields or places in lists. What stands there in
the stored result takes the place of the reference before the parameters are validated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from framework.base import CapabilityContext, ErrorSeverity, ValidationError
from framework.base.value_context import ValueContext
from framework.planning.problems import Path
from framework.planning.reading import is_too_deep, links_of

FROM = "$from"

ContextTypes = Mapping[str, type[CapabilityContext]]


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


def reads_of(step: object) -> Iterator[tuple[str, str]]:
    """Yield the context keys that a step reads: of inputs with their type, else with ``$from``."""
    yield from links_of(step)
    if isinstance(step, dict) and step.get("parameters"):
        for _, text in references_of(step["parameters"]):
            yield FROM, text.partition(".")[0]


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
    key, *parts = text.split(".")
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
