"""What a step reads: its inputs, and parameters that name a result, ``{"$from": "stats.maximum"}``.

The text of a reference is a context key and, after it, names of fields or places in lists. What
stands there in the stored result takes the place of the reference before the parameters are
validated.
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
    """One result that a step reads.

    Attributes:
        path: Where the step names it.
        label: The input's type or role; ``$from`` for what is read by a path.
        key: The context key.
    """

    path: Path
    label: str
    key: str


def is_reference(value: object) -> bool:
    """Tell whether a value is a reference, well-formed or not."""
    return isinstance(value, dict) and FROM in value


def iter_references(parameters: object) -> Iterator[tuple[Path, str]]:
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


def reference_key(text: str, known_keys: Container[str]) -> str:
    """Return the context key that a reference begins with; keys may hold dots themselves.

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
    """Return what follows the context key in a reference.

    >>> reference_fields("week.days.1", "week")
    ('days', 1)
    """
    parts = text[len(key) :].split(".")[1:]
    return tuple(int(part) if part.isdecimal() else part for part in parts)


def step_reads(step: object, known_keys: Container[str] = ()) -> list[StepRead]:
    """Return what a step reads, in its order.

    Args:
        step: The step.
        known_keys: The context keys of the plan.
    """
    if not isinstance(step, dict):
        return []
    found = []
    inputs = step.get("inputs")
    alias = element_name(step) if "for_each" in step else None
    for number, entry in enumerate(inputs if isinstance(inputs, list) else ()):
        for label, key in entry.items() if isinstance(entry, dict) else ():
            if isinstance(label, str) and isinstance(key, str) and key != alias:
                found.append(StepRead(("inputs", number, label), label, key))
    if not _BY_PATH.isdisjoint(step):
        found += [
            StepRead(path, FROM, reference_key(text, known_keys))
            for path, text in iter_path_reads(step)
        ]
    return found


def iter_path_reads(step: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield what a step reads by a path, as the path says it, each with where it stands."""
    alias = element_name(step)
    if step.get("parameters"):
        own = {alias, SIGNAL if step.get("wait_for") else None} - {None}
        for path, text in iter_references(step["parameters"]):
            if not any(refers_to(text, name) for name in own if name):
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
    """Tell whether the parameters of a step take what comes with the event that it waits for."""
    given = iter_references(step.get("parameters")) if step.get("wait_for") else ()
    return any(refers_to(text, SIGNAL) for _, text in given)


def uses_element(step: Mapping[str, Any]) -> bool:
    """Tell whether anything in a step means the element of the list over which it runs."""
    alias = element_name(step) or ""
    read = (*iter_references(step.get("parameters")), *wait_references(step))
    pairs = [
        pair
        for entry in step.get("inputs") or ()
        if isinstance(entry, dict)
        for pair in entry.items()
    ]
    return any(refers_to(text, alias) for _, text in (*read, *pairs) if isinstance(text, str))


def element_name(step: Mapping[str, Any]) -> str | None:
    """Return by which name a step means the element; ``None`` without a list."""
    each = step.get("for_each")
    alias = each.get("as", "item") if isinstance(each, dict) else None
    return alias if isinstance(alias, str) else None


def refers_to(text: str, name: str) -> bool:
    """Tell whether a reference means the element, or a part of it.

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
    """Put the values in the place of the references.

    Args:
        parameters: Where they stand.
        contexts: The stored results by type and key.
        types: The registered types.
        element: The element of a list for which the step runs, by its name.

    Raises:
        ValidationError: One names nothing that is there; the severity is REPLANNING.

    >>> resolve_references({"top": {"$from": "week.days.1"}}, {"WEEK": {"week": {"days": [3, 4]}}}, {})
    {'top': 4}
    """
    if is_reference(parameters):
        text = next(iter_references(parameters), ((), ""))[1]
        if any(refers_to(text, alias) for alias in element or ()):
            return resolve_reference(text, {"": element or {}}, types)
        return resolve_reference(text, contexts, types)
    if isinstance(parameters, dict):
        given = parameters.items()
        return {k: resolve_references(v, contexts, types, element) for k, v in given}
    if isinstance(parameters, list):
        return [resolve_references(item, contexts, types, element) for item in parameters]
    return parameters


def resolve_reference(
    text: str, contexts: Mapping[str, Mapping[str, Any]], types: ContextTypes
) -> Any:
    """Return what stands at the path of a reference.

    Raises:
        ValidationError: Nothing does; the severity is REPLANNING.
    """
    key = reference_key(text, StoredKeys(contexts))
    parts = text[len(key) :].split(".")[1:]
    found = []
    for kind, stored in contexts.items():
        if key in stored:
            for value in _readings(kind, stored[key], types):
                try:
                    for part in parts:
                        value = value[int(part)] if isinstance(value, list) else value[part]
                except (LookupError, TypeError, ValueError):
                    continue
                found.append(value)
                break
    if len(found) == 1:
        return found[0]
    cause = "names several results" if found else "names nothing that is stored"
    raise ValidationError(
        f"The reference {text!r} {cause}.",
        fix='Write {"$from": "context_key.field"} with the key of an earlier step and one of the'
        " fields of its result.",
        severity=ErrorSeverity.REPLANNING,
    )


class StoredKeys:
    """The keys of stored results; looked up and never listed, since a thread may hold many."""

    def __init__(self, contexts: Mapping[str, Mapping[str, Any]]) -> None:
        self._contexts = contexts

    def __contains__(self, key: object) -> bool:
        return any(key in stored for stored in self._contexts.values())


def _readings(kind: str, data: Any, types: ContextTypes) -> Iterator[Any]:
    """Yield stored data as a path reads it; ``kind`` is empty for the element of a list."""
    cls = types.get(kind)
    if kind.endswith(LIST_SUFFIX) and isinstance(data, list):
        cls = types.get(kind.removesuffix(LIST_SUFFIX))
        yield [unwrap_value(item, cls) for item in data]
    elif kind:
        yield unwrap_value(data, cls)
    if cls is None:
        yield data  # older plans name the field of a tool's value: "hotels.value.0.id"
