"""Parameters of recipes: extraction from a finished turn, and matching of similar requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from capgraph.base.errors import PlanError
from capgraph.helpers.plain_data import is_equal_json
from capgraph.planning.references import FROM, is_reference

PARAMETERS = "parameters"
"""Key by which a recipe's steps refer to its parameters: ``{"$from": "parameters.place"}``."""

_ValuePath = tuple[int | str, ...]


def extract_parameters(
    steps: Sequence[Mapping[str, Any]], request: str, parameter_names: Iterable[str] | None
) -> dict[str, tuple[Any, list[_ValuePath]]]:
    """Select the values in a plan that become parameters of a recipe (a reusable plan).

    Args:
        steps: Steps of the plan.
        request: The user's request.
        parameter_names: Values to select, as ``"step.name"`` or ``"step.name=new_name"``. By
            default, every value that occurs in the request is selected.

    Returns:
        The value and its paths in the steps, keyed by parameter name.

    Raises:
        PlanError: A name in ``parameter_names`` does not exist or has two different values.
    """
    value_by_path = {
        (step["context_key"], *path): value
        for step in steps
        for path, value in _iter_values(step.get("parameters") or {})
    }
    found: dict[str, tuple[Any, list[_ValuePath]]] = {}
    if parameter_names is None:
        for value_path, value in value_by_path.items():
            if not _occurs_in(value, request):
                continue
            same = next((n for n, (v, _) in found.items() if is_equal_json(v, value)), None)
            name = same or _choose_unused_name(value_path, found)
            found.setdefault(name, (value, []))[1].append(value_path)
        return found
    for entry in parameter_names:
        value_name, _, new = entry.partition("=")
        by_name = {".".join(map(str, value_path)): value_path for value_path in value_by_path}
        if value_name not in by_name:
            raise PlanError(
                f"{value_name!r} is not a parameter value of a step.",
                fix=f"Use one of: {', '.join(by_name) or 'the steps have no parameters'}.",
            )
        value_path = by_name[value_name]
        name = new or _choose_unused_name(value_path, found)
        value, known = found.setdefault(name, (value_by_path[value_path], []))
        if not is_equal_json(value, value_by_path[value_path]):
            raise PlanError(
                f"The parameter {name!r} has two different values: {value!r} and "
                f"{value_by_path[value_path]!r}.",
                fix=f"Use another name for one of them: {value_name}=NAME.",
            )
        known.append(value_path)
    return found


def _iter_values(value: Any, path: _ValuePath = ()) -> Iterable[tuple[_ValuePath, Any]]:
    if is_reference(value):
        return
    if isinstance(value, (dict, list)) and value:
        for part, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _iter_values(inner, (*path, part))
    if path:
        yield path, value


def _occurs_in(value: Any, request: str) -> bool:
    text = isinstance(value, str) and len(value.strip()) > 1  # a single letter matches too often
    if not text and (isinstance(value, bool) or not isinstance(value, (int, float))):
        return False
    return (
        re.search(_create_value_pattern(value), normalize_request(request), re.IGNORECASE)
        is not None
    )


def _choose_unused_name(path: _ValuePath, used_names: Mapping[str, Any]) -> str:
    parts = [re.sub(r"\W", "_", str(part)) for part in path]
    name = next((p for p in reversed(parts) if p.isidentifier()), "value")
    return name if name not in used_names else "_".join(parts)


def substitute_parameters(
    value: Any,
    parameter_by_path: Mapping[_ValuePath, str],
    path: _ValuePath,
    values: Mapping[str, Any],
) -> Any:
    """Replace parameter values in a plan with references to the recipe's parameters.

    Args:
        value: Part of the plan, as plain data.
        parameter_by_path: Parameter names, keyed by the path of the value to replace.
        path: Path of ``value`` in the plan.
        values: Parameter values, keyed by parameter name.
    """
    if path in parameter_by_path:
        return {FROM: f"{PARAMETERS}.{parameter_by_path[path]}"}
    if isinstance(value, dict) and not is_reference(value):
        return {
            part: substitute_parameters(inner, parameter_by_path, (*path, part), values)
            for part, inner in value.items()
        }
    if isinstance(value, list):
        return [
            substitute_parameters(one, parameter_by_path, (*path, n), values)
            for n, one in enumerate(value)
        ]
    return substitute_names(value, values) if isinstance(value, str) else value


def substitute_names(text: str, values: Mapping[str, Any]) -> str:
    """Replace parameter values in a string with placeholders, as in ``Weather of {place}``."""
    for name, value in values.items():
        if _occurs_in(value, text):
            text = re.sub(_create_value_pattern(value), f"{{{name}}}", text, flags=re.IGNORECASE)
    return text


def normalize_request(text: str) -> str:
    """Normalize whitespace in a user's request and remove its trailing punctuation."""
    return " ".join(text.split()).rstrip(".!? ")


def _create_value_pattern(value: Any) -> str:
    return rf"(?<!\w)(?<!\d\.){re.escape(' '.join(str(value).split()))}(?!\w|\.\d)"


def request_pattern(request: str, values: Mapping[str, Any]) -> str:
    """Build a regular expression that matches requests worded like an example request.

    Each parameter value becomes a named group. A group never matches a list, and matches at
    most two words or as many words as the original value.

    Args:
        request: Example request.
        values: Parameter values in the request, by name.

    >>> pattern = request_pattern("Fly from Oslo", {"place": "Oslo"})
    >>> re.fullmatch(pattern, "Fly from New York").groupdict()
    {'place': 'New York'}
    """
    text = normalize_request(request)
    slots: list[tuple[int, int, str]] = []
    for name, value in sorted(values.items(), key=lambda item: -len(str(item[1]))):
        max_extra_words = max(len(str(value).split()), 2) - 1
        slot = rf"(?P<{name}>[^\s,;:?!]+(?: [^\s,;:?!]+){{0,{max_extra_words}}})"
        for found in re.finditer(_create_value_pattern(value), text, re.IGNORECASE):
            start, end = found.span()
            if not any(start < until and at < end for at, until, _ in slots):
                slots.append((start, end, slot))
                slot = rf"(?P={name})"  # a repeated value must be equal
    position, parts = 0, []
    for start, end, slot in sorted(slots):
        parts += [re.escape(text[position:start]), slot]
        position = end
    return "".join([*parts, re.escape(text[position:])])
