"""References to results, such as ``{"$from": "stats.maximum"}``, and the results that a step reads.

A reference consists of a context key, followed by field names or list positions. Before a step's
parameters are validated, each reference is replaced by the stored value at that path.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, NamedTuple

from capgraph.base import CapabilityContext, ErrorSeverity, ValidationError
from capgraph.base.value_context import LIST_SUFFIX, unwrap_value
from capgraph.planning.conditions import iter_comparisons
from capgraph.planning.plan_access import is_too_deep
from capgraph.planning.problems import Path
from capgraph.planning.waits import SIGNAL, WAIT_FIELDS, wait_references

FROM = "$from"
_BY_PATH = frozenset({"parameters", "when", "for_each", *WAIT_FIELDS})

ContextTypes = Mapping[str, type[CapabilityContext]]


class StepRead(NamedTuple):
    """Dependency of a plan step on a result, through an input, reference, or condition.

    Attributes:
        path: Path of the field in the step that reads the result.
        label: Type or role of the input, or ``$from`` for a reference.
        key: Context key under which the result is stored.
    """

    path: Path
    label: str
    key: str


def is_reference(value: object) -> bool:
    """Return True if a value is a reference of the form ``{"$from": …}``.

    The reference itself may be malformed.
    """
    return isinstance(value, dict) and FROM in value


def iter_references(parameters: object) -> Iterator[tuple[Path, str]]:
    """Yield the path and the target of each result reference in a step's parameters."""
    if not is_too_deep(parameters):
        yield from _iter_nested_references(parameters, ())


def _iter_nested_references(value: object, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, dict) and FROM in value:
        text = value[FROM]
        yield path, text if isinstance(text, str) and len(value) == 1 else ""
    elif isinstance(value, (dict, list)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for part, item in parts:
            yield from _iter_nested_references(
                item, (*path, part if isinstance(part, int) else str(part))
            )


def reference_key(text: str, known_keys: Container[str]) -> str:
    """Return the context key at the start of a reference to a result.

    The longest known key is chosen, because context keys may contain dots.

    Args:
        text: Reference, such as ``"stats.maximum"``.
        known_keys: Context keys of the plan and of stored results.

    >>> reference_key("seattle.daily.maximum", {"seattle.daily"})
    'seattle.daily'
    >>> reference_key("stats.maximum", {})
    'stats'
    """
    key = text
    while key not in known_keys and "." in key:
        key = key.rpartition(".")[0]
    return key


def reference_fields(text: str, key: str) -> Path:
    """Return the field path that follows the context key in a reference to a result.

    >>> reference_fields("week.days.1", "week")
    ('days', 1)
    """
    parts = text[len(key) :].split(".")[1:]
    return tuple(int(part) if part.isdecimal() else part for part in parts)


def step_reads(step: object, known_keys: Container[str] = ()) -> list[StepRead]:
    """Return the results that a plan step depends on, in order.

    Args:
        step: Step of a plan.
        known_keys: Context keys of the plan.
    """
    if not isinstance(step, dict):
        return []
    reads = []
    inputs = step.get("inputs")
    alias = element_name(step) if "for_each" in step else None
    for number, entry in enumerate(inputs if isinstance(inputs, list) else ()):
        for label, key in entry.items() if isinstance(entry, dict) else ():
            if isinstance(label, str) and isinstance(key, str) and key != alias:
                reads.append(StepRead(("inputs", number, label), label, key))
    if not _BY_PATH.isdisjoint(step):
        reads += [
            StepRead(path, FROM, reference_key(text, known_keys))
            for path, text in iter_path_reads(step)
        ]
    return reads


def iter_path_reads(step: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield the field path and the target of each reference to a result in a step.

    Covers parameters, wait fields, conditions, and ``for_each`` lists, but not inputs.
    """
    alias = element_name(step)
    if step.get("parameters"):
        own_names = {alias, SIGNAL if step.get("wait_for") else None} - {None}
        for path, text in iter_references(step["parameters"]):
            if not any(refers_to(text, name) for name in own_names if name):
                yield ("parameters", *path), text
    for path, text in wait_references(step):
        if alias is None or not refers_to(text, alias):
            yield path, text
    if step.get("when") is not None:
        for path, comparison in iter_comparisons(step["when"]):
            yield ("when", *path, "of"), comparison["of"]
    each = step.get("for_each")
    if isinstance(each, dict) and isinstance(each.get("of"), str):
        yield ("for_each", "of"), each["of"]


def uses_signal(step: Mapping[str, Any]) -> bool:
    """Return True if a step's parameters refer to the payload of the event it waits for."""
    references = iter_references(step.get("parameters")) if step.get("wait_for") else ()
    return any(refers_to(text, SIGNAL) for _, text in references)


def uses_element(step: Mapping[str, Any]) -> bool:
    """Return True if a step refers to the current element of its ``for_each`` list."""
    alias = element_name(step) or ""
    references = (*iter_references(step.get("parameters")), *wait_references(step))
    pairs = [
        pair
        for entry in step.get("inputs") or ()
        if isinstance(entry, dict)
        for pair in entry.items()
    ]
    return any(refers_to(text, alias) for _, text in (*references, *pairs) if isinstance(text, str))


def element_name(step: Mapping[str, Any]) -> str | None:
    """Return the name of a step's ``for_each`` element, or ``None`` without ``for_each``."""
    each = step.get("for_each")
    alias = each.get("as", "item") if isinstance(each, dict) else None
    return alias if isinstance(alias, str) else None


def refers_to(text: str, name: str) -> bool:
    """Return True if a reference points to a named object or to one of its fields.

    >>> refers_to("item.name", "item"), refers_to("items", "item")
    (True, False)
    """
    return text == name or text.startswith(f"{name}.")


def resolve_references(
    parameters: Any,
    contexts: Mapping[str, Mapping[str, Any]],
    types: ContextTypes,
    element: Mapping[str, Any] | None = None,
) -> Any:
    """Replace references in a step's parameters with the stored values they point to.

    Args:
        parameters: Parameters of a planned step.
        contexts: Stored results by context type and context key.
        types: Registered context classes by name.
        element: Current list element, keyed by its name, for a step with ``for_each``.

    Raises:
        ValidationError: A reference does not match exactly one stored value. The severity is
            REPLANNING.

    >>> resolve_references({"top": {"$from": "week.days.1"}}, {"WEEK": {"week": {"days": [3, 4]}}}, {})
    {'top': 4}
    """
    if is_reference(parameters):
        text = next(iter_references(parameters), ((), ""))[1]
        if any(refers_to(text, alias) for alias in element or ()):
            return resolve_reference(text, {"": element or {}}, types)
        return resolve_reference(text, contexts, types)
    if isinstance(parameters, dict):
        items = parameters.items()
        return {k: resolve_references(v, contexts, types, element) for k, v in items}
    if isinstance(parameters, list):
        return [resolve_references(item, contexts, types, element) for item in parameters]
    return parameters


def resolve_reference(
    text: str, contexts: Mapping[str, Mapping[str, Any]], types: ContextTypes
) -> Any:
    """Return the stored value that a reference points to.

    Args:
        text: Reference, such as ``"week.days.1"``.
        contexts: Stored results by context type and context key.
        types: Registered context classes by name.

    Raises:
        ValidationError: The reference does not match exactly one stored value. The severity is
            REPLANNING.
    """
    key = reference_key(text, StoredKeys(contexts))
    parts = text[len(key) :].split(".")[1:]
    values = []
    for kind, stored in contexts.items():
        if key in stored:
            for value in _iter_readable_forms(kind, stored[key], types):
                try:
                    for part in parts:
                        value = value[int(part)] if isinstance(value, list) else value[part]
                except (LookupError, TypeError, ValueError):
                    continue
                values.append(value)
                break
    if len(values) == 1:
        return values[0]
    cause = "matches several results" if values else "matches no stored result"
    raise ValidationError(
        f"The reference {text!r} {cause}.",
        fix='Write {"$from": "context_key.field"} with the key of an earlier step and one of the'
        " fields of its result.",
        severity=ErrorSeverity.REPLANNING,
    )


class StoredKeys:
    """Container that checks whether a result is stored under a context key.

    Membership tests do not list all context keys of a thread.
    """

    def __init__(self, contexts: Mapping[str, Mapping[str, Any]]) -> None:
        self._contexts = contexts

    def __contains__(self, key: object) -> bool:
        return any(key in stored for stored in self._contexts.values())


def _iter_readable_forms(kind: str, data: Any, types: ContextTypes) -> Iterator[Any]:
    """Yield the representations of a stored result in which a reference path is resolved."""
    cls = types.get(kind)
    if kind.endswith(LIST_SUFFIX) and isinstance(data, list):
        cls = types.get(kind.removesuffix(LIST_SUFFIX))
        yield [unwrap_value(item, cls) for item in data]
    elif kind:
        yield unwrap_value(data, cls)
    if cls is None:
        yield data  # older plans include the field of a tool's value: "hotels.value.0.id"
